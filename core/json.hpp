#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/memory_limit.hpp"

namespace nibble::json {

/// Containers inside containers: an object at the top has depth 1.
inline constexpr std::size_t max_depth = 128;

/// Receives the contents of a document, in order; so a large one is read without a tree in memory. An exception from
/// any function ends the parse.
class Events {
 public:
  virtual ~Events() = default;
  virtual void on_key(std::string& name) = 0;  ///< may be moved from, as in on_string()
  virtual void on_string(std::string& value) = 0;
  virtual void on_unsigned(std::uint64_t value) = 0;  ///< "12", neither "-0" nor "12.0"
  virtual void on_null() = 0;
  virtual void on_other(std::string_view kind) = 0;  ///< "a boolean", "a negative number", "a fraction" (1.0 too), ...
  virtual void on_object() = 0;
  virtual void on_object_end() = 0;
  virtual void on_array() = 0;
  virtual void on_array_end() = 0;
};

/// A text that is read in pieces of 64 KiB, so that it need not be in memory.
struct Text {
  std::uint64_t bytes = 0;
  std::function<void(std::uint64_t offset, std::span<char> out)> read;

  Text(std::uint64_t size, decltype(read) reads) : bytes(size), read(std::move(reads)) {}
  /// A text in memory, which has to outlive this.
  template <std::convertible_to<std::string_view> InMemory>
  Text(const InMemory& text) : Text(view(text)) {}  // NOLINT(google-explicit-constructor)

 private:
  static Text view(std::string_view text);
};

/// Parses one JSON value (RFC 8259) and whitespace around it. Throws Error(bad_input), "<label>: ...", for everything
/// else: bytes that are not UTF-8 (a lone surrogate too), a byte-order mark, containers nested more than max_depth
/// deep, numbers that no double can hold. Keys that occur twice are the business of `events`.
///
/// A string or number takes up to four times its size while it is read. If that is much, it is counted: throws
/// Error(no_space) if `memory` does not allow it.
void parse(const Text& text, std::string_view label, Events& events, MemoryLimit& memory);

/// A small document as a tree: for texts of kilobytes, not for headers. Keys are unique in every object.
[[nodiscard]] nlohmann::ordered_json parse(std::string_view text, std::string_view label);

/// Appends `text` in quotes, escaped as serde_json (and so the safetensors library) does: only what must be. The text
/// has to be valid UTF-8.
void append_quoted(std::string& out, std::string_view text);

}  // namespace nibble::json
