#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::utf8 {

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 0;  ///< 0: not valid UTF-8
};

/// The code point that begins at `at`, which must be inside. Overlong forms, surrogates and values above U+10FFFF
/// are invalid (Unicode 15, table 3-7).
[[nodiscard]] constexpr CodePoint decode(std::string_view text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::uint32_t lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() - at < bytes) return {};
  std::uint32_t value = lead & (0x7Fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(at + i) & 0xC0u) != 0x80u) return {};
    value = value << 6 | (byte(at + i) & 0x3Fu);
  }
  if (bytes == 3 && (value < 0x800 || (value >= 0xD800 && value <= 0xDFFF))) return {};
  if (bytes == 4 && (value < 0x10000 || value > 0x10FFFF)) return {};
  return {value, bytes};
}

/// The position of the first byte that is not valid UTF-8.
[[nodiscard]] inline std::optional<std::size_t> find_invalid(std::string_view text) noexcept {
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t word = 0;  // names and headers are ASCII almost everywhere: eight bytes at a time
    if (text.size() - at >= sizeof word) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const CodePoint point = decode(text, at);
    if (point.bytes == 0) return at;
    at += point.bytes;
  }
  return std::nullopt;
}

/// How many bytes at the end belong to a code point that is cut off: 0 to 3.
[[nodiscard]] constexpr std::size_t incomplete_bytes(std::string_view text) noexcept {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0u) == 0x80u) continue;
    const std::size_t bytes = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return bytes > back ? back : 0;
  }
  return 0;
}

/// Appends a code point; surrogates become U+FFFD.
inline void append(std::string& text, std::uint32_t value) {
  if (value >= 0xD800 && value <= 0xDFFF) value = 0xFFFD;
  const auto tail = [&](unsigned shift) { text += static_cast<char>(0x80u | (value >> shift & 0x3Fu)); };
  if (value < 0x80) {
    text += static_cast<char>(value);
  } else if (value < 0x800) {
    text += static_cast<char>(0xC0u | value >> 6);
    tail(0);
  } else if (value < 0x10000) {
    text += static_cast<char>(0xE0u | value >> 12);
    tail(6), tail(0);
  } else {
    text += static_cast<char>(0xF0u | value >> 18);
    tail(12), tail(6), tail(0);
  }
}

}  // namespace nibble::utf8
