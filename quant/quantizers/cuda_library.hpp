#pragma once

#include <memory>
#include <string>

namespace nibble {

/// libnibble_cuda, which is loaded when it is first needed, because most machines have no device. It stays loaded when
/// this object is gone: the driver may still run some of its code when the program ends.
class CudaLibrary {
 public:
  /// Loads the file that NIBBLE_CUDA_LIBRARY names (not if the program has more rights than its user); else the file
  /// `near`, if it is not empty and can be loaded; else the libnibble_cuda.so that the loader finds. Throws
  /// Error(usage) if there is none.
  explicit CudaLibrary(const std::string& near = {});

  /// Whether NIBBLE_CUDA_LIBRARY names a file.
  [[nodiscard]] static bool is_chosen();

  /// Sets a pointer to the function of this name. Throws Error(usage) if the library lacks it.
  template <class Function> void find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(address_of(name));
  }

  /// Throws Error(usage) unless the function of this name returns `needed`, the version of `interface`.
  void require_version(const char* name, int needed, const char* interface) const;

 private:
  struct Close {
    void operator()(void* handle) const noexcept;
  };

  [[nodiscard]] void* address_of(const char* name) const;

  std::string file_;
  std::unique_ptr<void, Close> handle_;
};

}  // namespace nibble
