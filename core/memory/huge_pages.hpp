#pragma once

#include <cstddef>
#include <memory_resource>
#include <mutex>
#include <vector>

namespace nibble {

/// Memory for buffers that the disk reads from or writes to: contiguous in huge pages, as far as the system has any. A
/// disk request then lists one piece of memory for 2 MiB instead of 512 pieces; writing became 1.4 to 1.7 times as fast
/// (docs/performance.md), and the first touch is one page fault.
///
/// Deallocated memory goes back to the system, and its addresses are not used again: use it for few, long-lived
/// buffers. Thread-safe.
class HugePages final : public std::pmr::memory_resource {
 public:
  static constexpr std::size_t huge_page = std::size_t{2} << 20;

  HugePages() = default;
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  ~HugePages() override;

 private:
  struct Slab {
    std::byte* begin = nullptr;
    std::size_t size = 0;
  };

  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override;
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  std::mutex mutex_;
  std::vector<Slab> slabs_;
  std::size_t used_ = 0;  // of the last
};

/// std::pmr::new_delete_resource(), but blocks of 2 MiB or more consist of huge pages, except for the end of a block,
/// which is in ordinary pages so that no more memory is touched than was asked for. The first touch of a huge page is
/// one page fault instead of 512. Thread-safe.
[[nodiscard]] std::pmr::memory_resource* huge_new_delete_resource() noexcept;

}  // namespace nibble
