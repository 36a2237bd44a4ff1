// The simulated device's global memory: the allocations, and who may touch which byte.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/types.hpp"
#include "tests/simulator/failure.hpp"
#include "tests/simulator/global_races.hpp"

namespace nibble::device::simulator {

/// What a kernel may do with an allocation.
enum class Access {
  constant,  // read_only, and no earlier kernel or copy that may still run writes it either: weights
  read_only,
  read_write,
  write_once,  // an output: each byte is written exactly once between two resets, and never read
  bounds_only,
};

/// One allocation. The bytes around it belong to nobody, so a missed check does no harm.
class Region {
 public:
  Region(std::string name, std::size_t bytes, Access access, std::size_t offset_bytes);
  /// Memory that is the caller's, bounds_only: a mapping that is larger than what the machine has.
  Region(std::string name, void* memory, std::size_t bytes);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  [[nodiscard]] char* base() const { return base_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Access access() const { return access_; }
  [[nodiscard]] bool is_read_only() const { return access_ == Access::read_only || access_ == Access::constant; }
  [[nodiscard]] bool contains(std::uintptr_t address, std::size_t bytes) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(base_);
    return address >= begin && bytes <= bytes_ && address - begin <= bytes_ - bytes;
  }

  /// A kernel touches bytes inside. Throws Failure if it may not.
  void touch(std::size_t offset, std::size_t bytes, Use use, const Site& site);

  /// The host wrote everything, or wants to have a write-once array written again.
  void set_known() { std::fill(written_.begin(), written_.end(), u8{1}); }
  void set_known(std::size_t offset, std::size_t bytes) {
    if (access_ == Access::bounds_only) return;  // nothing is recorded for it
    std::fill_n(written_.begin() + static_cast<std::ptrdiff_t>(offset), bytes, u8{1});
  }
  void reset();

  /// Throws Failure(not_written) if a kernel left out a byte of a write-once array.
  void require_complete(const Site& site) const;
  /// Throws Failure(uninitialized) if the host reads bytes that nobody wrote.
  void require_known(std::size_t offset, std::size_t bytes, const Site& site) const;

 private:
  std::string name_;
  std::unique_ptr<char[]> memory_;
  char* base_;
  std::size_t bytes_;
  Access access_;
  GlobalShadow shadow_;
  std::vector<u8> written_;  // per byte: 1 if it has content
};

/// The allocation that holds `address` or ends there; null if there is none.
Region* find_region(const void* address);

/// Fails unless a kernel may touch these bytes so.
void check_global(const void* address, std::size_t bytes, std::size_t alignment, Region* region, Use use,
                  const Site& site);

/// Fails unless these bytes exist. A prefetch into the L2 cache does not read them: whatever is there will do.
void check_prefetch(const void* address, std::size_t bytes, const Region* region, const Site& site);

/// ld.global.nc is undefined for memory that anybody may write while the kernel runs.
void check_constant(const Region* region, const Site& site);

/// ldcs may be moved by the compiler, also to before dependency_wait.
void check_early(const Region* region, const Site& site);

}  // namespace nibble::device::simulator
