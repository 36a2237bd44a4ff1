#include "quant/jobs/merge/untied_reader.hpp"

#include <cstddef>
#include <limits>
#include <utility>

namespace nibble {
namespace {

constexpr std::size_t no_copy = std::numeric_limits<std::size_t>::max();  // the output layer is stored

}  // namespace

UntiedReader::UntiedReader(std::unique_ptr<const Reader> tied, const TiedOutput& output)
    : DerivedReader(static_cast<const Reader&>(*tied)),  // not its copy constructor
      tied_(std::move(tied)),
      copy_(output.stored ? no_copy : output.embeddings + 1),
      config_(tied_->config()) {
  const TensorList& stored = tied_->tensors();
  for (std::size_t t = 0; t < stored.size(); ++t) {
    TensorInfo tensor = stored[t];
    tensors_.push_back(tensor);
    if (t + 1 != copy_) continue;
    tensor.name = output.weight;
    tensors_.push_back(tensor);
  }
  if (config_) config_->tie_word_embeddings = false;
}

}  // namespace nibble
