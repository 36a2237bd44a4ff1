#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/adapters/adapter.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/support/memory_checkpoint.hpp"

namespace nibble::test {

/// An adapter in memory. Names are those of the model; "base_model.model." is added.
class AdapterMaker {
 public:
  /// `fields` are those of adapter_config.json, beside peft_type: R"("r":16)".
  explicit AdapterMaker(const std::string& fields = {})
      : config_(R"({"peft_type":"LORA")" + (fields.empty() ? "" : "," + fields) + "}") {}

  AdapterMaker& add(const std::string& name, Shape shape, std::vector<float> values, DType dtype = DType::f32) {
    weights_.add({"base_model.model." + name, dtype, std::move(shape)}, stored_as(dtype, values));
    return *this;
  }
  /// With small normal weights.
  AdapterMaker& add(const std::string& name, const Shape& shape, DType dtype = DType::f32) {
    return add(name, shape, normal_weights(element_count(shape), ++seed_, 0.1f), dtype);
  }
  /// lora_A [rank, in] and lora_B [out, rank].
  AdapterMaker& add_low_rank(const std::string& module, std::uint64_t out, std::uint64_t in, std::uint64_t rank,
                             DType dtype = DType::f32) {
    add(module + ".lora_A.weight", {rank, in}, dtype);
    return add(module + ".lora_B.weight", {out, rank}, dtype);
  }

  /// To be called once.
  [[nodiscard]] Adapter make() { return {config_, std::make_unique<MemoryReader>(std::move(weights_))}; }

 private:
  std::string config_;
  MemoryReader weights_;
  unsigned seed_ = 0;
};

}  // namespace nibble::test
