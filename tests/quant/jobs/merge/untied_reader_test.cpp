#include "quant/jobs/merge/untied_reader.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint.hpp"
#include "tests/quant/jobs/merge/merged_base.hpp"

namespace nibble::untied_reader_test {
namespace {

using test::bytes_of;
using test::MemoryReader;

// Three tensors, each in a file of its own.
std::unique_ptr<MemoryReader> tied(std::optional<bool> says = true) {
  auto in = std::make_unique<MemoryReader>();
  in->set_architecture("LlamaForCausalLM", says);
  in->add_normal("a.weight", DType::bf16, {8, 4}, 0);
  in->add_normal("model.embed_tokens.weight", DType::f16, {6, 4}, 1);
  in->add_normal("b.weight", DType::f32, {3, 4}, 2);
  return in;
}

std::vector<std::string> names_of(const Reader& in) {
  std::vector<std::string> names;
  for (std::size_t t = 0; t < in.tensors().size(); ++t) names.emplace_back(in.tensors().name(t));
  return names;
}

TEST(UntiedReader, TheCopyStandsBehindTheEmbeddings) {
  for (const std::optional<bool> says : {std::optional<bool>(true), std::optional<bool>()}) {
    const auto before = tied(says);
    const UntiedReader reader(tied(says), {1, "lm_head.weight", {}, true});
    EXPECT_EQ(names_of(reader),
              (std::vector<std::string>{"a.weight", "model.embed_tokens.weight", "lm_head.weight", "b.weight"}));
    for (const auto& [tensor, source] : {std::pair<std::size_t, std::size_t>{0, 0}, {1, 1}, {2, 1}, {3, 2}}) {
      EXPECT_EQ(bytes_of(reader, tensor), bytes_of(*before, source)) << tensor;
      EXPECT_EQ(reader.tensors().dtype(tensor), before->tensors().dtype(source)) << tensor;
      EXPECT_EQ(reader.tensors()[tensor].shape, before->tensors()[source].shape) << tensor;
      EXPECT_EQ(reader.file_of(tensor), source) << tensor;
      EXPECT_EQ(ReaderInternals::model_type(reader, tensor), before->tensors().dtype(source)) << tensor;
      EXPECT_EQ(ReaderInternals::position(reader, tensor, 7), ReaderInternals::position(*before, source, 7)) << tensor;
    }
    EXPECT_EQ(reader.config()->tie_word_embeddings, false);
    EXPECT_TRUE(ReaderInternals::was_tied(reader));
    EXPECT_FALSE(ReaderInternals::was_tied(*before));
    EXPECT_GT(reader.memory_bytes(), before->memory_bytes());
  }
}

TEST(UntiedReader, TheLastTensorMayBeTheEmbeddings) {
  auto in = tied();
  in->add_normal("c.weight", DType::bf16, {2, 2}, 2);
  const UntiedReader reader(std::move(in), {3, "lm_head.weight", {}, true});
  EXPECT_EQ(names_of(reader), (std::vector<std::string>{"a.weight", "model.embed_tokens.weight", "b.weight", "c.weight",
                                                        "lm_head.weight"}));
  EXPECT_EQ(bytes_of(reader, 4), bytes_of(reader, 3));
}

TEST(UntiedReader, WhatIsStoredIsNotCopied) {
  for (const std::size_t stored : {0, 2}) {
    const UntiedReader reader(tied(), {1, "lm_head.weight", stored, true});
    EXPECT_EQ(names_of(reader), names_of(*tied()));
    EXPECT_EQ(bytes_of(reader, 2), bytes_of(*tied(), 2));
    EXPECT_EQ(reader.config()->tie_word_embeddings, false);
    EXPECT_TRUE(ReaderInternals::was_tied(reader));
  }
}

}  // namespace
}  // namespace nibble::untied_reader_test
