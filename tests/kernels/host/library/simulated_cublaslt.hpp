// What tests tell the cuBLASLt of simulated_cublaslt.cpp, and what it tells them.
#pragma once
#include <cstddef>
#include <cstdint>

struct SimulatedCublasLt {
  bool makes_no_context = false, proposes_nothing = false;
  std::uint64_t max_products = ~std::uint64_t{0}, max_layouts = ~std::uint64_t{0};  // later ones fail
  bool rounds_parts = false;  // where it may: half of each sum is rounded to the type of the result
  /// Called for all that a product reads and writes, unless it is null.
  void (*touch)(const void* address, std::size_t bytes, bool writes) = nullptr;

  std::uint64_t contexts = 0, products = 0, layouts = 0;  // so far
  std::int64_t handles = 0;                               // that are not destroyed, without contexts
};

/// Of the library, by its name in it.
extern "C" SimulatedCublasLt* simulated_cublaslt();
