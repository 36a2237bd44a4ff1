// The simulated device of a host: its memory has the checks of global_memory.hpp, streams run at once, and what is
// copied to the host is there after wait() and not before.
//
// Programs that load the simulator as a library ask for failures by NIBBLE_SIMULATED_FAULT=NAME[:N]: from the Nth on,
// calls of the function of that name fail. Besides, "none" is a machine without a device, "old" one with an older
// device, and "unpinned" makes copies fail from and to host memory that is not pinned.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulator/global_memory.hpp"

namespace nibble::device {

int device_count();
std::string device_name(int device);
u32 capability_of(int device);
int current_device();
void use_device(int device);

/// Pages that two buffers share cannot be pinned twice, as on a GPU.
void pin(void* memory, std::size_t bytes);
void unpin(void* memory) noexcept;

/// At once, as all that is put on a stream.
void clear_memory(void* memory, std::size_t bytes, StreamRef stream);

class Memory {
 public:
  Memory() = default;
  Memory(const char* name, std::size_t bytes);
  [[nodiscard]] char* data() const { return region_ ? region_->base() : nullptr; }
  [[nodiscard]] std::size_t bytes() const { return region_ ? region_->bytes() : 0; }

 private:
  std::unique_ptr<simulator::Region> region_;
};

class Stream {
 public:
  Stream();
  ~Stream() { finish_copies(); }  // as on a GPU: nothing but abandon() stops copies in flight
  Stream(Stream&& other) noexcept : copies_(std::exchange(other.copies_, {})) {}
  Stream& operator=(Stream&&) = delete;
  [[nodiscard]] StreamRef get() const { return nullptr; }
  void copy_to_device(void* to, const void* from, std::size_t bytes);
  void copy_to_host(void* to, const void* from, std::size_t bytes);
  void clear(void* memory, std::size_t bytes) { clear_memory(memory, bytes, get()); }
  void wait();
  void abandon() noexcept { copies_.clear(); }

 private:
  struct CopyToHost {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  void finish_copies();
  std::vector<CopyToHost> copies_;
};

}  // namespace nibble::device
