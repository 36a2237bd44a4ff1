#include "quant/stream/stored_weights.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "nibble/error.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {

StoredWeights::StoredWeights(const Reader& in) : in_(in) {
  const TensorList& parts = in.tensors();
  by_name_.resize(parts.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  const auto is_before = [&](std::uint32_t a, std::uint32_t b) { return parts.name(a) < parts.name(b); };
  if (!std::is_sorted(by_name_.begin(), by_name_.end(), is_before))
    std::sort(by_name_.begin(), by_name_.end(), is_before);
  for (const std::string_view name : codec_names()) codecs_.push_back(make_codec(name));

  const FindTensor find = [this](std::string_view name) { return find_part(name); };
  std::vector<bool> is_claimed(parts.size());
  std::vector<Row> rows;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    Row row{static_cast<std::uint32_t>(part), none};
    for (std::size_t codec = 0; codec < codecs_.size() && row.codec == none; ++codec) {
      const auto stored = codecs_[codec]->recognize(in, part, find);
      if (!stored) continue;
      row.codec = static_cast<std::uint32_t>(codec);
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
  Tensor result{"keep", {in_.tensors()[row.part], {}, {row.part}}};
  if (row.codec != none) {
    result.codec = codec_names()[row.codec];
    result.stored =
        *codecs_[row.codec]->recognize(in_, row.part, [this](std::string_view name) { return find_part(name); });
  }
  for (const std::size_t part : result.stored.parts) result.bytes += in_.tensors().bytes(part);
  return result;
}

WeightSource::WeightSource(const TensorInfo& first_part, std::uint64_t elements, std::unique_ptr<const Decoder> decoder,
                           Read read, std::uint64_t position)
    : dtype_(first_part.dtype),
      elements_(elements),
      first_bytes_(first_part.bytes()),
      decoder_(std::move(decoder)),
      read_(std::move(read)),
      position_(position) {}

// Chunks begin with whole bytes; only at the very end an odd 4-bit code shares its byte with nothing.
std::uint64_t WeightSource::offset(std::uint64_t weight) const {
  if (weight == elements_) return first_bytes_;
  const std::uint64_t bits = 8 * first_bytes_ / elements_;
  return weight / 8 * bits + weight % 8 * bits / 8;
}

std::span<const float> WeightSource::decode(std::uint64_t first, std::span<const std::byte> raw, std::uint64_t at,
                                            std::size_t n, std::span<float> tile) const {
  const auto bytes = stored(first, raw, at, n);
  if (!decoder_) return widen(dtype_, bytes, tile);
  decoder_->decode(at, bytes, tile.first(n));
  return tile.first(n);
}

WeightSource open_weights(const StoredWeights& in, const StoredWeights::Tensor& tensor) {
  const Reader& reader = in.reader();
  const std::vector<std::size_t>& parts = tensor.stored.parts;
  const TensorInfo first = reader.tensors()[parts.front()];
  std::unique_ptr<const Decoder> decoder;
  if (tensor.codec != "keep") {
    std::vector<std::vector<std::byte>> rest;
    for (std::size_t i = 1; i < parts.size(); ++i) {
      rest.emplace_back(reader.tensors().bytes(parts[i]));
      reader.read(parts[i], 0, rest.back());
    }
    const std::vector<std::span<const std::byte>> spans(rest.begin(), rest.end());
    decoder = make_codec(tensor.codec, tensor.stored.options)->decoder(tensor.stored.info, spans);
  }
  return {first, tensor.stored.info.elements(), std::move(decoder),
          [&reader, part = parts.front()](std::uint64_t offset, std::span<std::byte> out) {
            reader.read(part, offset, out);
          },
          reader.position(parts.front(), 0)};
}

WeightSource open_weights(const Reader& in, const PlannedTensor& tensor, Buffers& buffers) {
  return {tensor.info, tensor.info.elements(), nullptr,
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
