#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// Texts of which many are equal: each is kept once, under a number.
class TextPool {
 public:
  /// The number of an equal text, or of a new one.
  std::uint32_t add(std::string_view text);
  /// Valid until the next add().
  [[nodiscard]] std::string_view operator[](std::uint32_t number) const noexcept;

 private:
  void grow();

  std::string text_;
  std::vector<std::uint64_t> ends_;
  std::vector<std::uint32_t> table_;  // numbers + 1 by hash, 0 for none
};

}  // namespace nibble
