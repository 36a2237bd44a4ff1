// Files are read in formats/. Whether anything can decode what is quantized in them is known here.

#include <algorithm>
#include <string>
#include <string_view>

#include "core/refuse.hpp"
#include "formats/checkpoint.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/error.hpp"
#include "quant/schemes/scheme.hpp"

namespace nibble {
namespace {

constexpr std::string_view hint = "plain weights are needed, such as the original model's";

void check_config(const Reader& in, const ModelConfig& config, bool accept_quantized) {
  if (config.quantization_config.empty()) return;
  const std::string label = escaped((in.path() / "config.json").native());
  const Scheme* const scheme = declared_scheme(config);
  if (scheme == nullptr && config.quant_method.empty())
    refuse(label, "quantized already: '{}' does not say by which quant_method", config.quantization_key);
  if (scheme == nullptr && !is_nibble_only(config))
    refuse(label, "quantized already: quant_method '{}' is not supported", printable(config.quant_method));
  if (accept_quantized) return;
  const std::string_view method = scheme == nullptr ? nibble_quant_method : scheme->quant_method();
  if (!is_source(in)) refuse(label, "quantized already by {}; {}", method, hint);
  // transformers reads only the outermost one when it loads the whole of a model, and a conversion can replace no
  // other.
  if (config.quantization_key.find('.') != std::string::npos)
    refuse(label,
           "quantized already by {}, as '{}' says: only a key of the outermost object is taken, as in transformers",
           method, config.quantization_key);
  if (!config.second_quantization.empty())
    refuse(label,
           "quantized already by {}, as '{}' says, but a part of it in another way, as '{}' says: only a key of the "
           "outermost object is taken, as in transformers",
           method, config.quantization_key, config.second_quantization);
}

// Deleting quantization_config does not make the weights plain.
void check_names(const Reader& in) {
  for (std::size_t i = 0; i < in.tensors().size(); ++i) {
    const std::string_view name = in.tensors().name(i);
    const auto stores = [&](const Scheme* scheme) { return !scheme->is_source() && scheme->names(name); };
    if (const auto scheme = std::ranges::find_if(schemes(), stores); scheme != schemes().end())
      refuse(in.label_of(i), "tensor '{}': quantized already by {}; {}", printable(name), (*scheme)->quant_method(),
             hint);
  }
}

}  // namespace

std::unique_ptr<Reader> open_checkpoint(const std::filesystem::path& path, const OpenOptions& options) {
  auto in = open_files(path, options.max_memory);
  if (in->config()) check_config(*in, *in->config(), options.accept_quantized);
  if (!options.accept_quantized) check_names(*in);
  return in;
}

}  // namespace nibble
