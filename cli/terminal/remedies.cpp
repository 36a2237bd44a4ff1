// The command-line options that do what the library says would help.

#include "cli/terminal/remedies.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace nibble::cli {
namespace {

std::string options_of(const Remedy& remedy) {
  constexpr std::uint64_t megabyte = 1'000'000;
  switch (remedy.kind) {
    case Remedy::Kind::none:
      return {};
    case Remedy::Kind::max_memory:
      return fmt::format("raise --max-memory to {}MB or more", (remedy.bytes + megabyte - 1) / megabyte);
    case Remedy::Kind::dequantize:
      return "`nibble dequantize` makes plain weights of it";
    case Remedy::Kind::merge:
      return "`nibble merge` does that";
    case Remedy::Kind::replace_output:
      return "pass --overwrite to replace it";
    case Remedy::Kind::finish_replacement:
      return "pass --overwrite to finish the replacement";
    case Remedy::Kind::resume:
      return "the same command with --resume goes on from there";
    case Remedy::Kind::begin_again:
      return "without --resume it is removed, and everything is converted again";
    case Remedy::Kind::allow_nibble_only:
      return "pass --allow-nibble-only to write it anyway";
    case Remedy::Kind::nibble_only_formats:
      return "--allow-nibble-only allows more formats";
    case Remedy::Kind::no_double_quant:
      return "--no-double-quant avoids this";
    case Remedy::Kind::nonfinite:
      return "see --nonfinite";
    case Remedy::Kind::on_overflow:
      return "see --on-overflow";
    case Remedy::Kind::device:
      return "use --device cpu to convert without a GPU";
    case Remedy::Kind::experts:
      return "--experts CODEC --allow-nibble-only quantizes them";
    case Remedy::Kind::embeddings:
      return "--embeddings bf16 halves them";
    case Remedy::Kind::lm_head:
      return "--lm-head bf16 halves them";
    case Remedy::Kind::embeddings_and_lm_head:
      return "--embeddings bf16 --lm-head bf16 halves them";
    case Remedy::Kind::plain_types:
      return "--tensor RE=bf16 or RE=fp16 casts those whose names match";
    case Remedy::Kind::reasons:
      return "--dry-run shows the reason for each tensor";
  }
  return {};
}

}  // namespace

std::string with_options(std::string_view text, const Remedy& remedy) {
  const std::string options = options_of(remedy);
  return options.empty() ? std::string(text) : fmt::format("{}; {}", text, options);
}

}  // namespace nibble::cli
