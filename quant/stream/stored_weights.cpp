#include "quant/stream/stored_weights.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "nibble/error.hpp"
#include "quant/codecs/codecs.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {

StoredWeights::StoredWeights(const Reader& in) : in_(in) {
  const TensorList& parts = in.tensors();
  by_name_.resize(parts.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  const auto is_before = [&](std::uint32_t a, std::uint32_t b) { return parts.name(a) < parts.name(b); };
  if (!std::is_sorted(by_name_.begin(), by_name_.end(), is_before))
    std::sort(by_name_.begin(), by_name_.end(), is_before);

  const FindTensor find = [this](std::string_view name) { return find_part(name); };
  std::vector<bool> is_claimed(parts.size());
  std::vector<Row> rows;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    Row row{static_cast<std::uint32_t>(part), none};
    for (std::size_t scheme = 0; scheme < schemes().size() && row.scheme == none; ++scheme) {
      const auto stored = schemes()[scheme]->recognize(in, part, find);
      if (!stored) continue;
      row.scheme = static_cast<std::uint32_t>(scheme);
      for (std::size_t i = 1; i < stored->parts.size(); ++i) is_claimed[stored->parts[i]] = true;
    }
    rows.push_back(row);
  }
  tensor_of_part_.assign(parts.size(), none);
  for (const Row& row : rows) {
    if (is_claimed[row.part]) continue;
    tensor_of_part_[row.part] = static_cast<std::uint32_t>(tensors_.size());
    tensors_.push_back(row);
  }
}

std::optional<std::size_t> StoredWeights::find_part(std::string_view name) const {
  const TensorList& parts = in_.tensors();
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [&](std::uint32_t part, std::string_view n) { return parts.name(part) < n; });
  if (found == by_name_.end() || parts.name(*found) != name) return std::nullopt;
  return *found;
}

std::optional<std::size_t> StoredWeights::find(std::string_view name) const {
  const auto part = find_part(name);
  if (!part || tensor_of_part_[*part] == none) return std::nullopt;
  return tensor_of_part_[*part];
}

StoredWeights::Tensor StoredWeights::operator[](std::size_t tensor) const {
  const Row row = tensors_[tensor];
  Tensor result{nullptr, {in_.tensors()[row.part], {}, {row.part}}};
  if (row.scheme != none) {
    result.scheme = schemes()[row.scheme];
    result.stored = *result.scheme->recognize(in_, row.part, [this](std::string_view name) { return find_part(name); });
  }
  for (const std::size_t part : result.stored.parts) result.bytes += in_.tensors().bytes(part);
  return result;
}

WeightSource::WeightSource(TensorInfo tensor, std::unique_ptr<const Codec> codec,
                           std::span<const std::span<const std::byte>> rest, Read read, std::uint64_t position)
    : info_(std::move(tensor)), codec_(std::move(codec)), read_(std::move(read)), position_(position) {
  if (codec_->quantizes())
    decoder_ = codec_->decoder(info_, rest);
  else
    plain_ = codec_->planes(info_).front().dtype;
}

std::span<const float> WeightSource::decode(std::uint64_t first, std::span<const std::byte> raw, std::uint64_t at,
                                            std::size_t n, std::span<float> tile) const {
  const auto bytes = stored(first, raw, at, n);
  if (plain_) return widen(*plain_, bytes, tile);
  decoder_->decode(at, bytes, tile.first(n));
  return tile.first(n);
}

WeightSource open_weights(const StoredWeights& in, const StoredWeights::Tensor& tensor) {
  const Reader& reader = in.reader();
  const StoredTensor& stored = tensor.stored;
  auto codec = make_codec(stored.codec);
  std::vector<std::vector<std::byte>> planes;
  if (tensor.quantized()) planes = tensor.scheme->read_planes(reader, *codec, stored);
  const std::vector<std::span<const std::byte>> rest(planes.begin(), planes.end());
  return {stored.info, std::move(codec), rest,
          [&reader, part = stored.parts.front()](std::uint64_t offset, std::span<std::byte> out) {
            reader.read(part, offset, out);
          },
          reader.position(stored.parts.front(), 0)};
}

WeightSource open_weights(const Reader& in, const PlannedTensor& tensor, Buffers& buffers) {
  return {tensor.info,
          make_codec({}),
          {},
          [&in, &buffers, tensor](std::uint64_t offset, std::span<std::byte> out) {
            read_planned(in, tensor, offset, out, buffers);
          },
          in.position(tensor.source, tensor.source_offset)};
}

namespace {

// Weights [first, first + n) of the transposed [out, in] matrix, out of [in, out] on disk: for each row on disk,
// the piece that covers the columns asked for.
void read_transposed(const Reader& reader, const PlannedTensor& tensor, std::uint64_t first, std::span<std::byte> to,
                     Buffers& buffers) {
  const std::uint64_t width = traits(tensor.info.dtype).bits / 8;
  const std::uint64_t out = tensor.info.shape[0];
  const std::uint64_t in = tensor.info.shape[1];
  const std::uint64_t n = to.size() / width;
  if (n == 0) return;
  const std::uint64_t row = first / in;
  const std::uint64_t rows = (first + n - 1) / in - row + 1;
  const Buffers::Loan piece = buffers.lend(rows * width, 0);
  for (std::uint64_t k = 0; k < in; ++k) {
    reader.read(tensor.source, tensor.source_offset + (k * out + row) * width, piece.bytes());
    for (std::uint64_t r = 0; r < rows; ++r) {
      const std::uint64_t weight = (row + r) * in + k;
      if (weight < first || weight >= first + n) continue;
      std::copy_n(piece.bytes().data() + r * width, width, to.data() + (weight - first) * width);
    }
  }
}

}  // namespace

void read_planned(const Reader& in, const PlannedTensor& tensor, std::uint64_t offset, std::span<std::byte> out,
                  Buffers& buffers) {
  if (tensor.transposed)
    read_transposed(in, tensor, offset * 8 / traits(tensor.info.dtype).bits, out, buffers);
  else
    in.read(tensor.source, tensor.source_offset + offset, out);
}

}  // namespace nibble
