// Preloaded by test_cuda_operators.py: what libnibble_torch asks torch about a CUDA device, answered for tensors in
// ordinary memory, and the memory of those tensors counts as that of the simulated device
// (kernels/simulated_memory.cpp).
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

using Open = void* (*)(const char*, int);

void* open(const char* file, int flags) {
  static const auto next = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "dlopen"));
  return next(file, flags);
}

// A function of torch, which this library may stand before.
template <class Function> Function of_torch(const char* name) {
  static void* const torch = open("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(dlsym(torch, name));
}

int guards = 0;  // that exist

// Lets kernels touch the bytes of a tensor. 0, as all functions of torch that succeed.
std::int32_t simulate(void* tensor, const void* pointer) {
  static const auto numel = of_torch<std::int32_t (*)(void*, std::int64_t*)>("aoti_torch_get_numel");
  static const auto dtype = of_torch<std::int32_t (*)(void*, std::int32_t*)>("aoti_torch_get_dtype");
  static const auto size = of_torch<std::size_t (*)(std::int32_t)>("aoti_torch_dtype_element_size");
  static void* const kernels = open(std::getenv("NIBBLE_CUDA_LIBRARY"), RTLD_NOW);
  static const auto simulate_memory =
      reinterpret_cast<void (*)(const void*, std::size_t)>(dlsym(kernels, "nibble_simulate_memory"));
  std::int64_t elements = 0;
  std::int32_t type = 0;
  numel(tensor, &elements);
  dtype(tensor, &type);
  if (elements > 0) simulate_memory(pointer, static_cast<std::size_t>(elements) * size(type));
  return 0;
}

}  // namespace

extern "C" {

// libtorch_cuda, of which the operators ask for the current stream, is this library.
void* dlopen(const char* file, int flags) {
  const bool is_torch_cuda = file != nullptr && std::strcmp(file, "libtorch_cuda.so") == 0;
  Dl_info own{};
  if (is_torch_cuda && dladdr(reinterpret_cast<void*>(&dlopen), &own) != 0) file = own.dli_fname;
  return open(file, flags);
}

std::int32_t aoti_torch_get_current_cuda_stream(std::int32_t device, void** stream) {
  *stream = nullptr;
  return device == -1 && guards > 0 ? 0 : 1;  // the device of a tensor in ordinary memory, made the current one
}

std::int32_t aoti_torch_create_device_guard(std::int32_t, void** guard) {
  *guard = &guards;
  ++guards;
  return 0;
}

std::int32_t aoti_torch_delete_device_guard(void*) {
  --guards;
  return 0;
}

std::int32_t torch_get_mutable_data_ptr(void* tensor, void** pointer) {
  static const auto get = of_torch<std::int32_t (*)(void*, void**)>("torch_get_mutable_data_ptr");
  const std::int32_t error = get(tensor, pointer);
  return error != 0 ? error : simulate(tensor, *pointer);
}

std::int32_t torch_get_const_data_ptr(void* tensor, const void** pointer) {
  static const auto get = of_torch<std::int32_t (*)(void*, const void**)>("torch_get_const_data_ptr");
  const std::int32_t error = get(tensor, pointer);
  return error != 0 ? error : simulate(tensor, *pointer);
}

}  // extern "C"
