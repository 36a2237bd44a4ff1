// Quantizing from and to host memory, for programs that have their weights there.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "kernels/device/stream.hpp"
#include "kernels/host/device_interface.h"
#include "kernels/host/interface.hpp"

namespace nibble::kernels {
namespace {

constexpr std::size_t page = 4096;
constexpr u32 min_capability = 80;  // CMake has the architectures

// Pages of the host, pinned if that is allowed: the driver copies others itself, and one after the other.
class HostPages {
 public:
  HostPages() = default;
  explicit HostPages(std::size_t bytes)
      : bytes_((bytes + page - 1) / page * page), pages_(::operator new (bytes_, std::align_val_t{page})) {
    try {
      device::pin(pages_.get(), bytes_);
    } catch (const device::LaunchError&) {
    }
  }
  [[nodiscard]] char* data() const { return static_cast<char*>(pages_.get()); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* pages) const noexcept {
      device::unpin(pages);
      ::operator delete (pages, std::align_val_t{page});
    }
  };
  std::size_t bytes_ = 0;
  std::unique_ptr<void, Free> pages_;
};

void grow(device::Memory& memory, const char* name, std::size_t bytes) {
  if (memory.bytes() >= bytes) return;
  memory = {};  // not two of them at a time
  memory = device::Memory(name, bytes);
}

void check_status(int status) {
  if (status != NIBBLE_OK) throw Error(static_cast<Errc>(status), nibble_last_error());
}

}  // namespace
}  // namespace nibble::kernels

struct nibble_queue {
  int device;
  nibble::device::Stream stream;
  nibble::device::Memory weights, codes;
  nibble::device::Memory numbers;           // how many blocks or rows are not finite, in 16 bytes; every absmax
  nibble::kernels::HostPages host_numbers;  // the same
};

namespace nibble::kernels {
namespace {

constexpr std::size_t count_bytes = 16;  // keeps absmax aligned

// `quantize` puts the kernel on the queue's stream: (weights, codes, absmax, count), all in device memory.
template <class Quantize>
u64 run(nibble_queue& queue, const void* weights, std::size_t weights_bytes, void* codes, std::size_t codes_bytes,
        float* absmax, std::size_t absmax_count, Quantize&& quantize) {
  const std::size_t number_bytes = count_bytes + absmax_count * sizeof(float);
  device::use_device(queue.device);
  grow(queue.weights, "weights", weights_bytes);
  grow(queue.codes, "codes", codes_bytes);
  grow(queue.numbers, "numbers", number_bytes);
  if (queue.host_numbers.bytes() < number_bytes) queue.host_numbers = HostPages(number_bytes);
  try {
    queue.stream.copy_to_device(queue.weights.data(), weights, weights_bytes);
    queue.stream.clear(queue.numbers.data(), count_bytes);
    check_status(quantize(queue.weights.data(), queue.codes.data(),
                          reinterpret_cast<float*>(queue.numbers.data() + count_bytes),
                          reinterpret_cast<u64*>(queue.numbers.data())));
    queue.stream.copy_to_host(codes, queue.codes.data(), codes_bytes);
    queue.stream.copy_to_host(queue.host_numbers.data(), queue.numbers.data(), number_bytes);
    queue.stream.wait();
  } catch (...) {
    queue.stream.abandon();  // the caller frees what copies still touch
    throw;
  }
  u64 count = 0;
  std::memcpy(&count, queue.host_numbers.data(), sizeof count);
  std::memcpy(absmax, queue.host_numbers.data() + count_bytes, absmax_count * sizeof(float));
  return count;
}

void check_queue(const nibble_queue* queue, const u64* nonfinite) {
  check_pointer("queue", queue, 1);
  check_pointer("nonfinite", nonfinite, alignof(u64));
}

}  // namespace
}  // namespace nibble::kernels

int nibble_device_interface_version(void) { return NIBBLE_DEVICE_INTERFACE_VERSION; }

int nibble_find_device(int* device, char* name, size_t name_bytes) {
  using namespace nibble::kernels;
  return result_of([&] {
    check_pointer("device", device, alignof(int));
    check_pointer("name", name, 1);
    std::string refused = "there is none";
    for (int i = 0, count = nibble::device::device_count(); i < count; ++i) {
      const std::string called = nibble::device::device_name(i);
      if (const u32 has = nibble::device::capability_of(i); has < min_capability) {
        refused =
            called + " is sm_" + std::to_string(has) + ", at least sm_" + std::to_string(min_capability) + " is needed";
        continue;
      }
      *device = i;
      std::snprintf(name, name_bytes, "%s", called.c_str());
      return;
    }
    throw nibble::device::LaunchError(0, refused);
  });
}

int nibble_pin(int device, void* memory, size_t bytes) {
  using namespace nibble::kernels;
  return result_of([&] {
    check_pointer("memory", memory, page);
    nibble::device::use_device(device);
    nibble::device::pin(memory, (bytes + page - 1) / page * page);
  });
}

void nibble_unpin(int device, void* memory) {
  using namespace nibble::kernels;
  static_cast<void>(result_of([&] { nibble::device::use_device(device); }));  // also where that fails
  nibble::device::unpin(memory);
}

int nibble_queue_create(int device, nibble_queue** queue) {
  using namespace nibble::kernels;
  return result_of([&] {
    check_pointer("queue", queue, alignof(nibble_queue*));
    nibble::device::use_device(device);
    *queue = std::make_unique<nibble_queue>(nibble_queue{device, {}, {}, {}, {}, {}}).release();
  });
}

void nibble_queue_destroy(nibble_queue* queue) {
  using namespace nibble::kernels;
  const std::unique_ptr<nibble_queue> owned(queue);
  if (owned) static_cast<void>(result_of([&] { nibble::device::use_device(owned->device); }));
}

int nibble_queue_quantize_four_bit(nibble_queue* queue, const void* weights, nibble_dtype dtype, uint64_t size,
                                   nibble_codebook codebook, uint32_t blocksize, uint8_t* packed, float* absmax,
                                   uint64_t* nonfinite) {
  using namespace nibble::kernels;
  return result_of([&] {
    check_queue(queue, nonfinite);
    check_dtype("dtype", dtype);
    check_codebook("codebook", codebook);
    check_blocksize("blocksize", blocksize);
    checked_size("weights", size, 1);
    *nonfinite = 0;
    if (size == 0) return;
    check_pointer("weights", weights, 1);
    check_pointer("packed", packed, 1);
    check_pointer("absmax", absmax, alignof(float));
    const u64 blocks = size / blocksize + (size % blocksize != 0);
    *nonfinite = run(*queue, weights, size * element_bytes(dtype), packed, size / 2 + size % 2, absmax, blocks,
                     [&](const void* in, void* codes, float* scales, u64* count) {
                       const nibble_four_bit_output out{.struct_bytes = sizeof(nibble_four_bit_output),
                                                        .codebook = codebook,
                                                        .blocksize = blocksize,
                                                        .packed = static_cast<uint8_t*>(codes),
                                                        .absmax = scales,
                                                        .absmax_codes = nullptr,
                                                        .nested_absmax = nullptr,
                                                        .nested_offset = nullptr};
                       return nibble_quantize_four_bit(in, dtype, size, &out, count, nullptr, 0,
                                                       static_cast<nibble_stream>(queue->stream.get()));
                     });
  });
}

int nibble_queue_quantize_int8(nibble_queue* queue, const void* weights, nibble_dtype dtype, uint64_t n, uint64_t k,
                               int8_t* codes, float* absmax, uint64_t* nonfinite) {
  using namespace nibble::kernels;
  return result_of([&] {
    check_queue(queue, nonfinite);
    check_dtype("dtype", dtype);
    const u64 size = checked_size("weights", n, k);
    if (size == 0)
      refuse("weights has " + std::to_string(n) + " x " + std::to_string(k) + " elements, must have at least one");
    check_pointer("weights", weights, 1);
    check_pointer("codes", codes, 1);
    check_pointer("absmax", absmax, alignof(float));
    *nonfinite = run(*queue, weights, size * element_bytes(dtype), codes, size, absmax, n,
                     [&](void* in, void* out, float* scales, u64* count) {
                       const nibble_matrix matrix{sizeof matrix, dtype, n, k, k, in};
                       return nibble_quantize_int8(&matrix, static_cast<int8_t*>(out), scales, count,
                                                   static_cast<nibble_stream>(queue->stream.get()));
                     });
  });
}
