#include <array>
#include <bit>
#include <string>

#include "core/suggest.hpp"
#include "nibble/codec.hpp"
#include "nibble/error.hpp"

// One line per codec: quant/codecs/<name>.cpp defines make_<name>().
#define NIBBLE_CODECS(X) \
  X(fp32)                \
  X(fp16)                \
  X(bf16)                \
  X(int8)                \
  X(nf4)                 \
  X(fp4)                 \
  X(keep)

namespace nibble {

#define NIBBLE_DECLARE(name) std::unique_ptr<const Codec> make_##name(const CodecOptions& options);
NIBBLE_CODECS(NIBBLE_DECLARE)

namespace {

using Maker = std::unique_ptr<const Codec> (*)(const CodecOptions&);

#define NIBBLE_NAME(name) std::string_view(#name),
constexpr std::array registered_names{NIBBLE_CODECS(NIBBLE_NAME)};

#define NIBBLE_MAKER(name) &make_##name,
constexpr Maker makers[] = {NIBBLE_CODECS(NIBBLE_MAKER)};

}  // namespace

std::span<const std::string_view> codec_names() { return registered_names; }

std::unique_ptr<const Codec> make_codec(std::string_view name, const CodecOptions& options) {
  if (!std::has_single_bit(options.blocksize) || options.blocksize < 32 || options.blocksize > 4096)
    throw Error(Errc::usage, "blocksize is " + std::to_string(options.blocksize) + ", not one of 32, 64, ..., 4096");
  for (std::size_t i = 0; i < registered_names.size(); ++i)
    if (registered_names[i] == name) return makers[i](options);
  throw Error(Errc::usage, "codec " + none_of(name, registered_names));
}

}  // namespace nibble
