#include "quant/quantizers/device.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <utility>

#include "core/memory/buffers.hpp"
#include "core/memory/huge_pages.hpp"
#include "kernels/host/device_interface.h"
#include "nibble/error.hpp"
#include "nibble/fp4.hpp"
#include "nibble/nf4.hpp"
#include "quant/quantizers/cuda_library.hpp"

namespace nibble {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(Errc::usage, why); }

Error asked_for(Errc code, const Error& error) {
  return {code, std::string("cannot use CUDA: ") + error.what(), Remedy::Kind::device};
}

// Look for the driver by the name that CUDA itself loads; without a driver, that takes microseconds.
bool may_have_device() {
  if (CudaLibrary::is_chosen()) return true;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (driver != nullptr) dlclose(driver);
  return driver != nullptr;
}

// The functions of the device interface.
class Library {
 public:
  Library() {
    library_.require_version("nibble_device_interface_version", NIBBLE_DEVICE_INTERFACE_VERSION,
                             "the device interface");
    library_.find(last_error, "nibble_last_error");
    library_.find(find_device, "nibble_find_device");
    library_.find(pin, "nibble_pin");
    library_.find(unpin, "nibble_unpin");
    library_.find(queue_create, "nibble_queue_create");
    library_.find(queue_destroy, "nibble_queue_destroy");
    library_.find(quantize_four_bit, "nibble_queue_quantize_four_bit");
    library_.find(quantize_int8, "nibble_queue_quantize_int8");
  }

  decltype(&nibble_last_error) last_error = nullptr;
  decltype(&nibble_find_device) find_device = nullptr;
  decltype(&nibble_pin) pin = nullptr;
  decltype(&nibble_unpin) unpin = nullptr;
  decltype(&nibble_queue_create) queue_create = nullptr;
  decltype(&nibble_queue_destroy) queue_destroy = nullptr;
  decltype(&nibble_queue_quantize_four_bit) quantize_four_bit = nullptr;
  decltype(&nibble_queue_quantize_int8) quantize_int8 = nullptr;

 private:
  CudaLibrary library_;
};

struct DestroyQueue {
  const Library* library;
  void operator()(nibble_queue* queue) const noexcept { library->queue_destroy(queue); }
};
using Queue = std::unique_ptr<nibble_queue, DestroyQueue>;

// Only the first line of an error counts: the others follow from it.
class Note {
 public:
  void set(const std::string& text) {
    const std::scoped_lock lock(mutex_);
    if (text_.empty()) text_ = text;
  }
  [[nodiscard]] std::string get() const {
    const std::scoped_lock lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

class PinnedMemory final : public std::pmr::memory_resource {
 public:
  PinnedMemory(const Library& library, int device) : library_(library), device_(device) {}
  [[nodiscard]] std::string refusal() const { return refusal_.get(); }

 private:
  // Existing memory is pinned instead of allocated by CUDA, so it stays ordinary memory: the disk can access it
  // directly, and if pinning is refused, nothing else changes. Each block begins at a page, so no page belongs to two
  // blocks.
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    void* const memory = pages_.allocate(bytes, std::max(alignment, Buffers::page));
    if (library_.pin(device_, memory, bytes) != NIBBLE_OK) refusal_.set(library_.last_error());
    return memory;
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    library_.unpin(device_, memory);
    pages_.deallocate(memory, bytes, std::max(alignment, Buffers::page));
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  const Library& library_;
  int device_;
  HugePages pages_;
  Note refusal_;
};

std::optional<nibble_dtype> dtype_of(DType source) {
  switch (source) {
    case DType::f32:
      return NIBBLE_F32;
    case DType::f16:
      return NIBBLE_F16;
    case DType::bf16:
      return NIBBLE_BF16;
    default:
      return std::nullopt;
  }
}

std::optional<nibble_codebook> number_of(std::span<const float> codebook) {
  if (std::ranges::equal(codebook, nf4::codebook.value)) return NIBBLE_NF4;
  if (std::ranges::equal(codebook, fp4::codebook.value)) return NIBBLE_FP4;
  return std::nullopt;
}

}  // namespace

struct Device::State {
  explicit State(DeviceChoice asked) : choice(asked) {
    std::array<char, 256> text{};
    if (library.find_device(&device, text.data(), text.size()) != NIBBLE_OK)
      refuse(std::string("no device can be used: ") + library.last_error());
    name = escaped(text.data());
    memory.emplace(library, device);
    queues.reserve(1);
    queues.push_back(make_queue());  // creates the context, so that errors of starting the device show before any work
  }

  Queue make_queue() const {
    nibble_queue* queue = nullptr;
    if (library.queue_create(device, &queue) != NIBBLE_OK) refuse(name + " cannot be used: " + library.last_error());
    return {queue, DestroyQueue{&library}};
  }

  Queue take() {
    {
      const std::scoped_lock lock(mutex);
      if (!queues.empty()) {
        Queue queue = std::move(queues.back());
        queues.pop_back();
        return queue;
      }
    }
    return make_queue();
  }
  void take_back(Queue queue) {
    const std::scoped_lock lock(mutex);
    queues.push_back(std::move(queue));
  }

  // Quantizes on this thread's own queue. Returns whether the result is valid.
  template <class Quantize> bool run(Quantize&& quantize) {
    if (failed.load(std::memory_order_relaxed)) return false;
    std::uint64_t nonfinite = 0;
    try {
      Queue queue = take();
      if (quantize(queue.get(), &nonfinite) != NIBBLE_OK) throw Error(Errc::io, name, library.last_error());
      take_back(std::move(queue));
    } catch (const Error& error) {
      if (choice == DeviceChoice::cuda) throw asked_for(Errc::io, error);
      failed.store(true, std::memory_order_relaxed);
      failure.set(error.what());
      return false;
    }
    if (nonfinite != 0) return false;
    chunks.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  DeviceChoice choice;
  Library library;
  int device = 0;
  std::string name;
  std::optional<PinnedMemory> memory;
  std::mutex mutex;
  std::vector<Queue> queues;  // as many as threads have encoded at a time
  std::atomic<bool> failed{false};
  Note failure;
  std::atomic<std::uint64_t> chunks{0};
};

Device::Device(DeviceChoice choice) : state_(std::make_unique<State>(choice)) {}
Device::~Device() = default;

std::unique_ptr<Device> Device::open(DeviceChoice choice) {
  if (choice == DeviceChoice::cpu) return nullptr;
  if (choice == DeviceChoice::automatic && !may_have_device()) return nullptr;
  try {
    return std::unique_ptr<Device>(new Device(choice));
  } catch (const Error& error) {
    // No library, an old driver, or a device without free memory: use the CPU, unless a device was asked for.
    if (choice == DeviceChoice::automatic) return nullptr;
    throw asked_for(error.code(), error);
  }
}

const std::string& Device::name() const noexcept { return state_->name; }
std::uint64_t Device::chunks() const noexcept { return state_->chunks.load(std::memory_order_relaxed); }

std::vector<std::string> Device::warnings() const {
  std::vector<std::string> warnings;
  if (const std::string why = state_->failure.get(); !why.empty())
    warnings.push_back(why + "; the CPU encoded the rest");
  if (const std::string why = state_->memory->refusal(); !why.empty())
    warnings.push_back(state_->name + ": memory could not be pinned, so copies wait for each other: " + why);
  return warnings;
}

std::pmr::memory_resource* DeviceEncoder::pinned_memory() const noexcept { return &*state_.memory; }

bool DeviceEncoder::takes(DType source) noexcept { return dtype_of(source).has_value(); }

bool DeviceEncoder::encode_four_bit(std::span<const float> codebook, DType source, std::span<const std::byte> weights,
                                    std::size_t blocksize, std::span<std::uint8_t> packed,
                                    std::span<float> absmax) const {
  const auto dtype = dtype_of(source);
  const auto number = number_of(codebook);
  if (!dtype || !number || weights.empty()) return false;
  const std::size_t n = weights.size() / (traits(source).bits / 8);
  return state_.run([&](nibble_queue* queue, std::uint64_t* nonfinite) {
    return state_.library.quantize_four_bit(queue, weights.data(), *dtype, n, *number,
                                            static_cast<std::uint32_t>(blocksize), packed.data(), absmax.data(),
                                            nonfinite);
  });
}

bool DeviceEncoder::encode_int8(DType source, std::span<const std::byte> weights, std::span<std::int8_t> codes,
                                std::span<float> absmax) const {
  const auto dtype = dtype_of(source);
  if (!dtype || codes.empty()) return false;
  return state_.run([&](nibble_queue* queue, std::uint64_t* nonfinite) {
    return state_.library.quantize_int8(queue, weights.data(), *dtype, absmax.size(), codes.size() / absmax.size(),
                                        codes.data(), absmax.data(), nonfinite);
  });
}

}  // namespace nibble
