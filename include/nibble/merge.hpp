#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "nibble/checkpoint.hpp"
#include "nibble/convert.hpp"

/// LoRA adapters of peft, merged into the model that they were trained on. Merging is a conversion
/// (nibble/convert.hpp) of what open_merged() returns:
///
///   Recipe recipe;
///   recipe.to = "nf4";
///   Progress silent;
///   PlannedConversion(open_merged("Llama-3.1-8B", "adapter"), "merged-nf4", recipe).run(silent);
namespace nibble {

/// The weights of `base`, which may be quantized in any format that nibble decodes, with `adapter`, a directory with
/// adapter_config.json and adapter_model.safetensors, merged into them as they are read:
///
///   W + scale B A                              LoRA; scale = alpha / r, or alpha / sqrt(r) for rsLoRA
///   m / ||W + scale B A|| * (W + scale B A)    DoRA; m and the norm are those of each output
///
/// in fp32. Merged and decoded tensors are fp32; a conversion that keeps one stores it in the type that the base has.
///
/// Throws Error(bad_input) if it is not a LoRA adapter, if it uses what cannot be merged, or if it was trained on
/// another base: a name that the base lacks, a shape that does not fit. Throws what open_checkpoint() throws.
[[nodiscard]] std::unique_ptr<Reader> open_merged(const std::filesystem::path& base,
                                                  const std::filesystem::path& adapter,
                                                  std::uint64_t max_memory = OpenOptions().max_memory);

/// How much of the update of a tensor is left after quantization. With the update dW that merging makes of W, and Q,
/// which quantizes and decodes:
struct UpdateSurvival {
  std::string name;
  double update_norm = 0;  ///< ||dW||
  double ratio = 0;        ///< ||Q(W + dW) - Q(W)|| / ||dW||; NaN if dW is 0
  double cosine = 0;       ///< of the angle between Q(W + dW) - Q(W) and dW; NaN if either is 0
};

/// That of every tensor that the adapter changes and the plan quantizes. `merged` is what open_merged() returned,
/// `plan` that of its conversion. Reads and encodes these tensors twice, with the update and without. The figures do
/// not depend on threads or memory. `progress` counts the bytes of the updated tensors in fp32. Throws Error(usage) if
/// `merged` is another Reader, Error(interrupted).
[[nodiscard]] std::vector<UpdateSurvival> measure_survival(const Reader& merged, const Plan& plan,
                                                           const Resources& resources, Progress& progress);

}  // namespace nibble
