#pragma once

#include <memory>
#include <string>
#include <utility>

#include "quant/jobs/merge/merged_reader.hpp"
#include "tests/support/adapter.hpp"
#include "tests/support/memory_checkpoint.hpp"

/// A small Llama and an adapter for it.
namespace nibble::test {

inline const std::string attention = "model.layers.0.self_attn.";

/// lm_head, embed_tokens, k_proj, q_proj, norm.
inline std::unique_ptr<MemoryReader> base(DType dtype = DType::bf16) {
  auto in = std::make_unique<MemoryReader>();
  in->set_architecture("LlamaForCausalLM", false);
  in->set_dtype(std::string(traits(dtype).torch_name));
  in->add_normal("lm_head.weight", dtype, {96, 256});
  in->add_normal("model.embed_tokens.weight", dtype, {96, 256});
  in->add_normal(attention + "k_proj.weight", dtype, {256, 256});
  in->add_normal(attention + "q_proj.weight", dtype, {256, 256});
  in->add_normal("model.norm.weight", dtype, {256});
  return in;
}

/// For q_proj, lm_head and norm.
inline Adapter adapter() {
  return AdapterMaker(R"("r":4,"lora_alpha":2)")
      .add_low_rank(attention + "q_proj", 256, 256, 4)
      .add_low_rank("lm_head", 96, 256, 4)
      .add("model.norm.weight", {256})
      .make();
}

inline std::unique_ptr<MergedReader> merged(std::unique_ptr<const Reader> in, Adapter with = adapter()) {
  return std::make_unique<MergedReader>(std::make_unique<const PlainReader>(std::move(in)), std::move(with));
}

inline std::vector<std::byte> bytes_of(const Reader& in, std::size_t tensor) {
  std::vector<std::byte> bytes(in.tensors().bytes(tensor));
  in.read(tensor, 0, bytes);
  return bytes;
}

}  // namespace nibble::test
