#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/xxh3.hpp"
#include "formats/commit/writer.hpp"
#include "nibble/plan.hpp"
#include "quant/quantizers/quantizer.hpp"
#include "quant/schemes/scheme.hpp"
#include "quant/stream/codings.hpp"

namespace nibble {

/// The parts of planned tensors. Their names append the same suffixes to the tensor's name for almost all tensors of a
/// codec, so these are stored once; the scheme is asked again for the rest.
class ShardParts final : public PartList {
 public:
  ShardParts(const PlannedTensors& tensors, std::size_t begin, std::size_t end, const Codings& codings)
      : tensors_(tensors), codings_(codings), begin_(begin) {
    for (std::size_t i = begin; i < end; ++i) {
      const PlannedTensor tensor = tensors[i];
      first_part_.push_back(static_cast<std::uint32_t>(tensor_of_.size()));
      kind_.push_back(kind_of(tensor.info.name, stored_parts(*codings[tensor.codec].codec, tensor.info)));
      tensor_of_.insert(tensor_of_.end(), kinds_[kind_.back()].size(), static_cast<std::uint32_t>(i - begin));
    }
  }

  std::size_t size() const noexcept override { return tensor_of_.size(); }
  Name name(std::size_t part) const noexcept override {
    const std::string_view name = tensors_.infos().name(begin_ + tensor_of_[part]);
    return {name.substr(0, name.size() - ending(part).dropped), ending(part).added};
  }
  DType dtype(std::size_t part) const noexcept override { return ending(part).dtype; }
  TensorInfo operator[](std::size_t part) const override {
    // Sorted by name, several parts of a tensor follow each other.
    if (const std::size_t i = begin_ + tensor_of_[part]; i != latest_) {
      const PlannedTensor tensor = tensors_[i];
      latest_parts_ = stored_parts(*codings_[tensor.codec].codec, tensor.info);
      latest_ = i;
    }
    return latest_parts_[part - first_part_[tensor_of_[part]]].info;
  }

  /// The index in the plan of the tensor that a part belongs to.
  [[nodiscard]] std::size_t tensor_of(std::size_t part) const noexcept { return begin_ + tensor_of_[part]; }

  /// The number of each tensor's first part; afterwards the list must not be used.
  std::vector<std::uint32_t> take_first_parts() { return std::move(first_part_); }

 private:
  // A part's name is that of its tensor without some last bytes, plus a suffix.
  struct Ending {
    std::size_t dropped;
    std::string added;
    DType dtype;
    bool operator==(const Ending&) const = default;
  };

  const Ending& ending(std::size_t part) const noexcept {
    const std::uint32_t tensor = tensor_of_[part];
    return kinds_[kind_[tensor]][part - first_part_[tensor]];
  }

  std::uint32_t kind_of(const std::string& name, const std::vector<Part>& parts) {
    std::vector<Ending> kind;
    for (const auto& [part, plane] : parts) {
      const auto differs = std::mismatch(name.begin(), name.end(), part.name.begin(), part.name.end());
      kind.push_back({static_cast<std::size_t>(name.end() - differs.first),
                      std::string(differs.second, part.name.end()), part.dtype});
    }
    // There are only a few suffixes, whatever the names are, so the search is short.
    const auto found = std::find(kinds_.rbegin(), kinds_.rend(), kind);
    if (found != kinds_.rend()) return static_cast<std::uint32_t>(kinds_.rend() - found - 1);
    kinds_.push_back(std::move(kind));
    return static_cast<std::uint32_t>(kinds_.size() - 1);
  }

  const PlannedTensors& tensors_;
  const Codings& codings_;
  std::size_t begin_;
  std::vector<std::vector<Ending>> kinds_;
  std::vector<std::uint32_t> kind_;        // of each tensor
  std::vector<std::uint32_t> first_part_;  // of each tensor
  std::vector<std::uint32_t> tensor_of_;   // of each part
  mutable std::size_t latest_ = SIZE_MAX;
  mutable std::vector<Part> latest_parts_;
};

/// Writes and hashes the parts of a tensor that follow the codes: the planes that an encoder makes at the end, and what
/// only the scheme knows.
class PartWriter final : public PlaneSink {
 public:
  /// The memory that the encoder fills is passed to Writer::write_behind(), up to this many bytes at a time. 0: not at
  /// all.
  PartWriter(Writer& out, std::size_t first_part, std::span<const Part> parts, std::size_t behind)
      : out_(out),
        first_part_(first_part),
        parts_(parts),
        behind_(behind),
        hashes_(parts.size()),
        written_(parts.size()) {}

  void write(std::size_t plane, std::span<const std::byte> bytes) override {
    if (const auto part = part_of(plane)) return write_part(*part, bytes);
    if (loose_.size() <= plane) loose_.resize(plane + 1);
    loose_[plane].insert(loose_[plane].end(), bytes.begin(), bytes.end());
  }
  void fill(std::size_t plane, std::size_t size, const std::function<void(std::span<std::byte>)>& make) override {
    const auto part = part_of(plane);
    if (!part || size < Writer::min_behind_bytes || size > behind_) return PlaneSink::fill(plane, size, make);
    Buffers::Loan loan = out_.lend(first_part_ + *part, written_[*part], size);
    make(loan.bytes());
    hashes_.at(*part).append(loan.bytes());
    out_.write_behind(first_part_ + *part, written_[*part], std::move(loan));
    written_[*part] += size;
  }

  /// Writes the parts that hold no plane, when the planes are complete.
  void write_own(const Codec& codec, const TensorInfo& tensor) {
    for (std::size_t part = 0; part < parts_.size(); ++part)
      if (!parts_[part].plane) write_part(part, scheme_of(codec).own_bytes(codec, tensor, parts_[part], loose_));
  }

  [[nodiscard]] std::vector<Xxh3> take_hashes(std::size_t part) { return hashes_.at(part).take(); }

 private:
  [[nodiscard]] std::optional<std::size_t> part_of(std::size_t plane) const {
    const auto found =
        std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) { return part.plane == plane; });
    if (found == parts_.end()) return std::nullopt;
    return static_cast<std::size_t>(found - parts_.begin());
  }

  void write_part(std::size_t part, std::span<const std::byte> bytes) {
    hashes_.at(part).append(bytes);
    out_.write(first_part_ + part, written_[part], bytes);
    written_[part] += bytes.size();
  }

  Writer& out_;
  std::size_t first_part_;
  std::span<const Part> parts_;
  std::size_t behind_;
  std::vector<Xxh3Chunks> hashes_;
  std::vector<std::uint64_t> written_;
  std::vector<std::vector<std::byte>> loose_;  // planes that no part holds
};

}  // namespace nibble
