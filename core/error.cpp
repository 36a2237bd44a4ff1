#include "nibble/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "core/text/utf8.hpp"

namespace nibble {
namespace {

// What a terminal or a reader could take for something else: controls, separators of lines, marks that turn the
// direction of text around, and characters without width at the ends of words.
bool misleads(std::uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD || c == 0x61C || c == 0x200B || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF0 && c <= 0xFFFB) ||
         (c >= 0xE0000 && c <= 0xE0FFF);
}

struct Piece {
  std::string text;
  std::size_t width;  // in characters
};

Piece next_piece(std::string_view name, std::size_t& at) {
  const auto ascii = [](const std::string& text) { return Piece{text, text.size()}; };
  const utf8::CodePoint point = utf8::decode(name, at);
  const std::string_view raw = name.substr(at, point.bytes);
  if (point.bytes == 0) return ascii(fmt::format("\\x{:02x}", static_cast<unsigned char>(name[at++])));
  at += point.bytes;
  switch (point.value) {
    case '\n':
      return ascii("\\n");
    case '\r':
      return ascii("\\r");
    case '\t':
      return ascii("\\t");
    case '\\':
    case '\'':
    case '"':
      return ascii(fmt::format("\\{}", raw));
    default:
      break;
  }
  if (!misleads(point.value)) return {std::string(raw), 1};
  if (point.value < 0x80) return ascii(fmt::format("\\x{:02x}", point.value));
  if (point.value < 0x10000) return ascii(fmt::format("\\u{:04x}", point.value));
  return ascii(fmt::format("\\U{:08x}", point.value));
}

}  // namespace

Error about(const Error& error, std::string_view subject) {
  if (!error.subject().empty()) return error;
  return {error.code(), subject, error.what(), error.remedy()};
}

std::string escaped(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) out += next_piece(text, at).text;
  return out;
}

std::string printable(std::string_view name) {
  constexpr std::size_t limit = 80, head_width = 38, tail_width = 39;  // and "..." between them
  constexpr std::size_t considered = 4 * limit;                        // bytes that can reach the text at either end

  // Almost all names are like this, and there may be a million of them.
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~' && c != '\\' && c != '\'' && c != '"'; };
  if (name.size() <= limit && std::all_of(name.begin(), name.end(), is_plain)) return std::string(name);

  std::string shortened;  // a name may have megabytes
  if (name.size() > 2 * considered) {
    std::size_t tail = name.size() - considered;
    while (tail < name.size() && (static_cast<unsigned char>(name[tail]) & 0xC0u) == 0x80u) ++tail;
    shortened.append(name.substr(0, considered)).append(name.substr(tail));
    name = shortened;
  }

  std::vector<Piece> pieces;
  std::size_t width = 0;
  for (std::size_t at = 0; at < name.size();) width += pieces.emplace_back(next_piece(name, at)).width;
  std::string out;
  if (width <= limit) {
    for (const Piece& piece : pieces) out += piece.text;
    return out;
  }
  std::size_t used = 0;
  for (auto piece = pieces.begin(); used + piece->width <= head_width; used += (piece++)->width) out += piece->text;
  auto first = pieces.rbegin();
  for (used = 0; used + first->width <= tail_width; used += (first++)->width) {
  }
  out += "...";
  for (auto piece = first.base(); piece != pieces.end(); ++piece) out += piece->text;
  return out;
}

}  // namespace nibble
