// Memory of a GPU, and how long work on it takes.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace nibble::bench {

/// Throws std::runtime_error.
void check(cudaError_t error, const char* what);

/// Memory of the device. As new its bytes are 0xff, a NaN in every floating-point type; or nothing was ever written to
/// it, so that a tool that looks for reads of such memory can find them.
class Buffer {
 public:
  enum class Fill { nan, nothing };
  explicit Buffer(std::size_t bytes, Fill fill = Fill::nan);
  template <class T> static Buffer of(const std::vector<T>& host) {
    Buffer buffer(host.size() * sizeof(T), Fill::nothing);
    buffer.from_host(host.data());
    return buffer;
  }

  template <class T> [[nodiscard]] T* as() const { return static_cast<T*>(memory_.get()); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  void poison();
  void from_host(const void* host) const;
  /// Elements [first, first + count). Waits for the device.
  template <class T> [[nodiscard]] std::vector<T> to_host(std::size_t first, std::size_t count) const {
    std::vector<T> host(count);
    read(host.data(), first * sizeof(T), count * sizeof(T));
    return host;
  }
  template <class T> [[nodiscard]] std::vector<T> to_host() const { return to_host<T>(0, bytes_ / sizeof(T)); }

 private:
  struct Free {
    void operator()(void* memory) const { cudaFree(memory); }
  };
  void read(void* host, std::size_t first_byte, std::size_t bytes) const;
  std::size_t bytes_;
  std::unique_ptr<void, Free> memory_;
};

/// One way to do a thing. run(copy, stream) puts it on the stream once, with the copy of the data of that number: a
/// cache must not hold what the next call reads.
struct Contender {
  std::string by;
  std::size_t copies;
  std::function<void(std::size_t copy, cudaStream_t stream)> run;
  /// False for work that goes to the default stream whatever it is told: it is launched call by call.
  bool in_graph = true;
};

/// Of one call, in microseconds: the time of a replay divided by its calls.
struct Times {
  double median, low, high;  // low and high: a tenth of the replays is below, above
  std::size_t replays, calls;
};

/// How long a measurement takes: at least so many replays of so many calls, and more while there is time.
struct Effort {
  double seconds = 0.5;
  std::size_t min_replays = 15, min_calls = 20;
};

/// The contenders take turns, so that clocks and temperature are the same for all. A replay is a CUDA graph of calls,
/// each copy as often as the others, between two events; three replays of each go first.
std::vector<Times> measure(const std::vector<Contender>& contenders, const Effort& effort = {});

}  // namespace nibble::bench
