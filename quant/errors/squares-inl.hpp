// Computes the sums of quant/errors/squares.hpp. Included once per Highway target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_SQUARES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_SQUARES_INL
#undef NIBBLE_QUANT_SQUARES_INL
#else
#define NIBBLE_QUANT_SQUARES_INL
#endif

#include <hwy/highway.h>
#include <cstddef>

#include "quant/errors/squares.hpp"
#include "quant/simd/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// In twice 16 lanes, because an addition waits for the one before.
class SquareSums {
 public:
  // Written out, because the compiler would generate it for another target.
  HWY_INLINE SquareSums() {}  // NOLINT(modernize-use-equals-default)

  // Adds weights [0, squares_step) of a reference and of a test: weight(i) and other(i) are the vectors that begin with
  // the i-th.
  template <class Weight, class Other> HWY_INLINE void add(Weight&& weight, Other&& other) {
    for (std::size_t half = 0; half < 2; ++half)
      for (std::size_t k = 0; k < vector_parts; ++k) {
        const std::size_t i = 16 * half + k * vector_lanes;
        const V w = weight(i), t = other(i), error = hn::Sub(t, w);
        square_[half].add_product(k, error, error);
        reference_[half].add_product(k, w, w);
        test_[half].add_product(k, t, t);
      }
  }

  HWY_INLINE void end(Squares& HWY_RESTRICT squares) {
    fold(square_, squares.square);
    fold(reference_, squares.reference);
    fold(test_, squares.test);
  }

 private:
  static HWY_INLINE void fold(Lanes16 (&sums)[2], float* HWY_RESTRICT to) {
    for (std::size_t k = 0; k < vector_parts; ++k) sums[0].add(k, sums[1].part[k]);
    sums[0].fold(to);
  }

  Lanes16 square_[2], reference_[2], test_[2];
};

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
