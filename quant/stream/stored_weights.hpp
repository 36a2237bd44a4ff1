#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/checkpoint.hpp"
#include "nibble/error.hpp"
#include "quant/schemes/scheme.hpp"

namespace nibble {

/// Calls f(); errors that it throws without a subject are about this checkpoint.
template <class F> auto about(const Reader& checkpoint, F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw about(error, escaped(checkpoint.path().native()));
  }
}

/// The same, about the file of a tensor.
template <class F> auto about_file(const Reader& checkpoint, std::size_t tensor, F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw about(error, checkpoint.label_of(tensor));
  }
}

/// A checkpoint as weights: the parts that a scheme made of a tensor are one tensor again. Thread-safe. Takes next to
/// no memory if no scheme stored anything and nothing is searched for. Schemes are asked once, by the constructor:
/// after that, nothing here reads the checkpoint.
class StoredWeights {
 public:
  /// `by` has the schemes to look for. Throws Error(bad_input) if parts of a tensor are missing or contradict
  /// each other, or are those of two schemes.
  explicit StoredWeights(const Reader& in, std::span<const Scheme* const> by = schemes());

  [[nodiscard]] const Reader& reader() const noexcept { return in_; }
  /// Whether config.json says that the model is quantized in a way that the schemes decode: the weights are plain then,
  /// and what it says is no longer true.
  [[nodiscard]] bool is_declared() const { return is_declared_by(in_, schemes_); }
  [[nodiscard]] std::size_t size() const noexcept { return is_plain_ ? in_.tensors().size() : tensors_.size(); }

  struct Tensor {
    const Scheme* scheme = nullptr;  ///< that stored it; null for plain tensors
    StoredTensor stored;             ///< its codec is "keep" for plain tensors
    std::uint64_t bytes = 0;         ///< of all parts
    [[nodiscard]] bool quantized() const noexcept { return scheme != nullptr; }
  };
  [[nodiscard]] Tensor operator[](std::size_t tensor) const;
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const;
  /// Why a conversion cannot take a plain tensor as it is: Scheme::undecodable(). Empty if it can.
  [[nodiscard]] std::string undecodable(std::size_t tensor) const;
  /// Throws Error(bad_input) with that reason, if there is one.
  void check_decodable(std::size_t tensor) const;
  /// The tensor whose first part is tensor `part` of the reader.
  [[nodiscard]] std::optional<std::size_t> find(std::size_t part) const;

  /// Bytes that it keeps of what schemes found; twice that while it grows.
  [[nodiscard]] std::uint64_t memory_bytes() const noexcept;

 private:
  const Scheme* read_config(std::span<const Scheme* const> by);
  [[nodiscard]] std::optional<StoredTensor> recognize(std::size_t part, std::size_t& scheme, const FindTensor& find);
  void add(std::size_t scheme, const StoredTensor& stored);
  void sort_names() const;
  [[nodiscard]] std::optional<std::size_t> find_part(std::string_view name) const;

  const Reader& in_;
  std::vector<const Scheme*> schemes_;   // the one that config.json names comes first
  std::string undecodable_config_;       // Scheme::undecodable_config() of that one; unless empty, nothing is decoded
  Scheme::Contradiction contradiction_;  // of that one too; may be null
  std::size_t contradicted_ = SIZE_MAX;  // the first part that it is about,
  std::string contradiction_text_;       // and what it said. Others are undecodable as well, by fewer words
  mutable std::once_flag sorted_;
  mutable std::vector<std::uint32_t> by_name_;  // indices of Reader::tensors(), sorted by name, once one is searched
  struct Row {
    std::uint32_t part;
    std::uint32_t found;  // index into found_, or none
  };
  // What Scheme::recognize() found. The name is that of the first part.
  struct Found {
    CodecSpec codec;
    std::uint32_t parts_end;  // in parts_
    std::uint32_t scheme;     // index into schemes_
  };
  bool is_plain_ = true;                       // every part is a tensor, and what follows is empty
  std::vector<Row> tensors_;                   // in the order of the files
  std::vector<std::uint32_t> tensor_of_part_;  // or none
  std::vector<Found> found_;
  TensorList infos_;                  // as the weights were before, without names
  std::vector<std::uint32_t> parts_;  // of all that was found
  static constexpr std::uint32_t none = UINT32_MAX;
};

}  // namespace nibble
