#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

/// A choice that a codec leaves to its user.
struct CodecOption {
  std::string_view name;                     ///< "block-size"
  std::string_view help;                     ///< for people: "Weights per absmax"
  std::span<const std::string_view> values;  ///< the words that it takes
  std::size_t default_value;                 ///< index into `values`
  bool is_stored = true;                     ///< a stored tensor tells its value; if not, it is read as the default
};

/// The declaration of a codec.
struct CodecInfo {
  std::string_view name;
  std::string_view summary;  ///< for people: what a weight becomes, without a full stop
  std::span<const CodecOption> options;
};

/// A codec and its options, as users write them. A small value: copying and comparing are cheap.
///
///   spec = NAME | NAME ":" OPTION "=" VALUE { "," OPTION "=" VALUE }
///
/// "nf4" and "nf4:block-size=32,double-quant=no" are such texts. Options come in any order, each at most once, and
/// those that are not given have their defaults. In the name of an option, "_" may stand for "-". Nothing else is
/// accepted: no spaces, no empty option, no second spelling of a value.
class CodecSpec {
 public:
  /// "keep": the codec that leaves a tensor as it is.
  CodecSpec() = default;

  /// Not explicit, so that a text can stand wherever a codec is asked for. Throws Error(usage) for an unknown codec,
  /// option or value, and for an option that is given twice.
  CodecSpec(std::string_view text);                                          // NOLINT(google-explicit-constructor)
  CodecSpec(const char* text) : CodecSpec(std::string_view(text)) {}         // NOLINT(google-explicit-constructor)
  CodecSpec(const std::string& text) : CodecSpec(std::string_view(text)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] std::string_view name() const { return info().name; }
  [[nodiscard]] const CodecInfo& info() const;

  /// Whether this is "keep".
  [[nodiscard]] bool keeps() const noexcept { return *this == CodecSpec(); }

  /// Whether the codec declares an option of this name.
  [[nodiscard]] bool has(std::string_view option) const;

  /// The value of an option: an index into CodecOption::values. Throws Error(usage) for an option that is not declared.
  [[nodiscard]] std::size_t index(std::string_view option) const;

  /// The same codec with another value of one option. Throws Error(usage) as the constructor does.
  [[nodiscard]] CodecSpec with(std::string_view option, std::string_view value) const;

  /// The shortest text of this codec: options that have their defaults are left out, the others come in the order in
  /// which the codec declares them.
  [[nodiscard]] std::string text() const;

  /// In the order of codec_names().
  friend auto operator<=>(const CodecSpec&, const CodecSpec&) = default;  // NOLINT(modernize-use-nullptr)

  static constexpr std::size_t max_options = 7;

 private:
  std::uint8_t codec_ = 0;                          // index into codec_names(); "keep" is the first
  std::array<std::uint8_t, max_options> values_{};  // of the options that the codec declares
};

/// Names of all registered codecs, in the order of the registry.
[[nodiscard]] std::span<const std::string_view> codec_names();

}  // namespace nibble
