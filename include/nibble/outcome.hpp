#pragma once

#include <cstdint>
#include <string_view>

/// What became of a tensor. It decides which tensors the headline figures are about.
namespace nibble {

enum class Outcome : std::uint8_t {
  quantized,  ///< stored as codes
  cast,       ///< stored as numbers of another type, or as other numbers
  kept,       ///< as it was
};

/// `same`: its form and its weights are unchanged.
[[nodiscard]] constexpr Outcome outcome_of(bool quantized, bool same) noexcept {
  return same ? Outcome::kept : quantized ? Outcome::quantized : Outcome::cast;
}

[[nodiscard]] constexpr std::string_view to_string(Outcome outcome) noexcept {
  return outcome == Outcome::quantized ? "quantized" : outcome == Outcome::cast ? "cast" : "kept";
}

/// Quantized or cast.
[[nodiscard]] constexpr bool is_converted(Outcome outcome) noexcept { return outcome != Outcome::kept; }

/// Sums over tensors, one for each outcome. `Sums` has a member `tensors`, their number.
template <class Sums> struct ByOutcome {
  Sums quantized{}, cast{}, kept{};

  [[nodiscard]] Sums& operator[](Outcome outcome) noexcept {
    return outcome == Outcome::quantized ? quantized : outcome == Outcome::cast ? cast : kept;
  }
  [[nodiscard]] const Sums& operator[](Outcome outcome) const noexcept {
    return outcome == Outcome::quantized ? quantized : outcome == Outcome::cast ? cast : kept;
  }

  /// The tensors whose figures stand for the whole: the quantized ones; if there are none, those that were cast; if
  /// there are none of these either, the kept ones. Including weights that lose next to nothing would make the error
  /// look smaller.
  [[nodiscard]] Outcome headlined() const noexcept {
    return quantized.tensors > 0 ? Outcome::quantized : cast.tensors > 0 ? Outcome::cast : Outcome::kept;
  }
  [[nodiscard]] const Sums& headline() const noexcept { return (*this)[headlined()]; }
};

}  // namespace nibble
