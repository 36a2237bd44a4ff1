#include "quant/quantizers/cuda_library.hpp"

#include <dlfcn.h>

#include <cstdlib>

#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr const char* default_library = "libnibble_cuda.so";

void* open(const std::string& file) { return dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }

const char* chosen_library() {
  const char* const chosen = secure_getenv("NIBBLE_CUDA_LIBRARY");
  return chosen != nullptr && *chosen != '\0' ? chosen : nullptr;
}

}  // namespace

void CudaLibrary::Close::operator()(void* handle) const noexcept { dlclose(handle); }

CudaLibrary::CudaLibrary(const std::string& near) {
  const char* const chosen = chosen_library();
  if (chosen == nullptr && !near.empty()) {
    file_ = near;
    handle_.reset(open(near));
  }
  if (!handle_) {
    file_ = chosen != nullptr ? chosen : default_library;
    handle_.reset(open(file_));
  }
  if (handle_) return;
  const char* const why = dlerror();  // begins with the file's name
  throw Error(Errc::usage, escaped(why != nullptr ? why : file_));
}

bool CudaLibrary::is_chosen() { return chosen_library() != nullptr; }

void* CudaLibrary::address_of(const char* name) const {
  if (void* const address = dlsym(handle_.get(), name)) return address;
  throw Error(Errc::usage, escaped(file_) + ": has no " + name + ", so it is not the libnibble_cuda of this version");
}

void CudaLibrary::require_version(const char* name, int needed, const char* interface) const {
  int (*version)() = nullptr;
  find(version, name);
  if (const int has = version(); has != needed)
    throw Error(Errc::usage, escaped(file_) + ": has version " + std::to_string(has) + " of " + interface +
                                 ", this nibble needs " + std::to_string(needed));
}

}  // namespace nibble
