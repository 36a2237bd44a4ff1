// formats/ reads the files. Whether anything can decode the quantized tensors in them is decided here.

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "core/files/file.hpp"
#include "core/memory_limit.hpp"
#include "core/refuse.hpp"
#include "formats/checkpoint.hpp"
#include "formats/models/config.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/error.hpp"
#include "quant/schemes/scheme.hpp"

namespace nibble {
namespace {

constexpr std::string_view hint = "plain weights are needed, such as the original model's";

// Anything that is quantized in a way that nibble knows.
std::unique_ptr<Reader> open_known(const std::filesystem::path& path, std::uint64_t max_memory) {
  auto in = open_files(path, max_memory);
  if (!in->config() || in->config()->quantization_config.empty()) return in;
  const ModelConfig& config = *in->config();
  const std::string label = escaped((in->path() / config::file_name).native());
  if (declared_scheme(config) != nullptr || is_nibble_only(config)) return in;
  if (config.quant_method.empty())
    refuse(label, "quantized already: '{}' does not say by which quant_method", config.quantization_key);
  refuse(label, "quantized already: quant_method '{}' is not supported", printable(config.quant_method));
}

[[noreturn]] void refuse_quantized(const std::string& label, const std::string& fact) {
  throw Error(Errc::bad_input, label, fmt::format("{}; {}", fact, hint), Remedy::Kind::dequantize);
}

void check_config(const Reader& in, const ModelConfig& config, Intake intake) {
  if (config.quantization_config.empty()) return;
  const std::string label = escaped((in.path() / config::file_name).native());
  const Scheme* const scheme = declared_scheme(config);
  const std::string_view method = scheme == nullptr ? nibble_quant_method : scheme->quant_method();
  if (!is_declared_by(in, schemes_of(intake))) refuse_quantized(label, fmt::format("quantized already by {}", method));
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
  if (scheme == nullptr) return;
  if (const std::string why = scheme->undecodable_config(config.quantization_config); !why.empty())
    refuse(label, "the model is {}", why);
}

// Deleting quantization_config does not make the weights plain.
void check_names(const Reader& in) {
  for (std::size_t i = 0; i < in.tensors().size(); ++i) {
    const std::string_view name = in.tensors().name(i);
    const auto stores = [&](const Scheme* scheme) { return !scheme->is_source() && scheme->names(name); };
    if (const auto scheme = std::ranges::find_if(schemes(), stores); scheme != schemes().end())
      refuse_quantized(in.label_of(i),
                       fmt::format("tensor '{}': quantized already by {}", printable(name), (*scheme)->quant_method()));
  }
}

bool is_fp8(DType dtype) { return dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2; }

bool is_quantized(const TensorList& tensors, std::size_t i) {
  const auto names = [&](const Scheme* scheme) { return scheme->names(tensors.name(i)); };
  return is_fp8(tensors.dtype(i)) || std::ranges::any_of(schemes(), names);
}

// A single file is read without the config.json beside it, which may say how to decode its codes: for example the shape
// of blocks, or that a Conv1D was transposed.
void check_config_beside(const Reader& in, std::uint64_t max_memory) {
  const TensorList& tensors = in.tensors();
  std::size_t first = 0;
  while (first < tensors.size() && !is_quantized(tensors, first)) ++first;
  if (first == tensors.size()) return;
  const std::filesystem::path folder = in.path().has_parent_path() ? in.path().parent_path() : ".";
  const std::filesystem::path path = folder / config::file_name;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  const InputFile file(AT_FDCWD, path, escaped(path.native()));
  file.check_size(config::max_bytes);
  MemoryLimit memory(max_memory);
  TakenMemory text(memory, file.label());
  text.add(file.size());
  const ModelConfig found = config::read(file.read_text(config::max_bytes), file.label(), memory);
  if (found.quantization_config.empty()) return;
  refuse(
      in.label_of(first),
      "tensor '{}' is {}, and '{}' of {} says how to decode it, which nibble reads only if it opens the directory {}",
      printable(tensors.name(first)), is_fp8(tensors.dtype(first)) ? "FP8" : "quantized", found.quantization_key,
      file.label(), escaped(folder.native()));
}

}  // namespace

std::unique_ptr<Reader> open_checkpoint(const std::filesystem::path& path, const OpenOptions& options) {
  return options.accept_quantized ? open_known(path, options.max_memory)
                                  : open_input(path, Intake::plain, options.max_memory);
}

std::unique_ptr<Reader> open_input(const std::filesystem::path& path, Intake intake, std::uint64_t max_memory) {
  auto in = open_known(path, max_memory);
  if (in->config()) check_config(*in, *in->config(), intake);
  if (intake == Intake::plain) check_names(*in);
  if (!in->config() && !in->is_directory()) check_config_beside(*in, max_memory);
  return in;
}

}  // namespace nibble
