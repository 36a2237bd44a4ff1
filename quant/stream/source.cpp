#include "quant/stream/source.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "formats/checkpoint.hpp"
#include "quant/simd/transpose.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

constexpr std::uint64_t cache_line = 64;

}  // namespace

WeightSource::WeightSource(TensorInfo tensor, std::unique_ptr<const Codec> codec,
                           std::span<const std::span<const std::byte>> rest, Read read, Buffers& buffers,
                           std::uint64_t position)
    : info_(std::move(tensor)),
      codec_(std::move(codec)),
      is_plain_(!codec_->quantizes()),
      read_(std::move(read)),
      buffers_(&buffers),
      position_(position) {
  if (is_plain_)
    info_.dtype = codec_->planes(info_).front().dtype;
  else
    decoder_ = codec_->decoder(info_, rest);
  tensor_ = info_;
}

WeightSource::WeightSource(WeightSource tensor, const PlannedTensor& view) : WeightSource(std::move(tensor)) {
  const bool is_slice = view.info.elements() != tensor_.elements();
  info_ = view.info;
  (decoder_ ? tensor_ : info_).dtype = (decoder_ ? info_ : tensor_).dtype;  // codes are decoded to any type
  transposed_ = view.transposed;
  begin_ = view.source_offset * 8 / traits(tensor_.dtype).bits;
  // The codes of a slice, or codes in another order, are not the codes of a tensor.
  if (decoder_ && (is_slice || transposed_)) is_plain_ = true, position_ = 0;
  if (!decoder_) position_ += view.source_offset;
}

std::span<const std::byte> WeightSource::raw(std::uint64_t first, std::uint64_t n, Buffers::Loan& loan) const {
  if (!memory_.empty()) return memory_.subspan(offset(first), bytes(first, n));
  loan = buffers_->lend(bytes(first, n), position(first));
  read(first, loan.bytes());
  return loan.bytes();
}

std::span<const std::byte> WeightSource::weights(std::uint64_t first, std::uint64_t n, Buffers::Loan& loan) const {
  if (is_plain_) return raw(first, n, loan);
  loan = buffers_->lend(byte_count(info_.dtype, n), 0);
  decode_tensor(first, loan.bytes());
  return loan.bytes();
}

void WeightSource::read(std::uint64_t first, std::span<std::byte> raw) const {
  if (raw.empty()) return;
  if (!is_plain_)
    read_(offset(first), raw);
  else if (transposed_)
    read_transposed(first, raw);
  else
    read_tensor(begin_ + first, raw);
}

void WeightSource::read_tensor(std::uint64_t first, std::span<std::byte> out) const {
  if (decoder_)
    decode_tensor(first, out);
  else
    read_(byte_count(tensor_.dtype, first), out);
}

// If less than a whole step of the decoder is asked for, that part of it is copied.
void WeightSource::decode_tensor(std::uint64_t first, std::span<std::byte> out) const {
  if (out.empty()) return;
  const std::uint64_t width = traits(tensor_.dtype).bits / 8;
  const std::uint64_t last = first + out.size() / width;
  const std::uint64_t step = decoder_->step();
  const std::uint64_t begin = first / step * step;
  const std::uint64_t end = std::min((last + step - 1) / step * step, tensor_.elements());
  const auto code_offset = [this](std::uint64_t weight) { return codec_->code_bytes(tensor_, weight); };
  const std::uint64_t code_begin = code_offset(begin), size = code_offset(end) - code_begin;
  Buffers::Loan loan;
  std::span<const std::byte> codes;
  if (!is_plain_ && !memory_.empty()) {
    codes = memory_.subspan(code_begin, size);
  } else {
    loan = buffers_->lend(size, code_begin);
    read_(code_begin, loan.bytes());
    codes = loan.bytes();
  }
  std::array<std::byte, tile_weights * sizeof(float)> tile;
  for (std::uint64_t at = begin; at < end; at += tile_weights) {
    const std::uint64_t tile_end = std::min<std::uint64_t>(at + tile_weights, end);
    const auto of_tile = codes.subspan(code_offset(at) - code_begin, code_offset(tile_end) - code_offset(at));
    const std::uint64_t from = std::max(at, first), to = std::min(tile_end, last);
    const std::span<std::byte> wanted = out.subspan((from - first) * width, (to - from) * width);
    if (from == at && to == tile_end) {
      decoder_->decode(at, of_tile, tensor_.dtype, wanted);
    } else {
      const std::span<std::byte> all = std::span(tile).first((tile_end - at) * width);
      decoder_->decode(at, of_tile, tensor_.dtype, all);
      std::ranges::copy(all.subspan((from - at) * width, wanted.size()), wanted.begin());
    }
  }
}

// Gathers weights of the transposed [out, in] matrix from [in, out] on disk: of each row on disk, the piece that covers
// the requested columns. Several pieces are read before they are spread over the rows, each of which then gets several
// weights at once: a single one would cost a cache line.
void WeightSource::read_transposed(std::uint64_t first, std::span<std::byte> to) const {
  const std::uint64_t width = traits(info_.dtype).bits / 8;
  const std::uint64_t out = info_.shape[0];
  const std::uint64_t in = info_.shape[1];
  const std::uint64_t last = first + to.size() / width;
  const std::uint64_t row = first / in;
  const std::uint64_t rows = (last - 1) / in - row + 1;
  const std::uint64_t stride = rows + cache_line / width;  // so that pieces do not all fall into the same cache sets
  const std::uint64_t pieces = std::clamp<std::uint64_t>(transposed_bytes / (stride * width), 1, in);
  const Buffers::Loan loan = buffers_->lend(pieces * stride * width, 0);
  for (std::uint64_t k = 0; k < in; k += pieces) {
    const std::uint64_t n = std::min(pieces, in - k);
    for (std::uint64_t i = 0; i < n; ++i)
      read_tensor(begin_ + (k + i) * out + row, loan.bytes().subspan(i * stride * width, rows * width));
    // Rows [begin, end), which have the same columns of the piece.
    const auto put = [&](std::uint64_t begin, std::uint64_t end) {
      const std::uint64_t weight = (row + begin) * in + k;
      const std::uint64_t from = std::clamp(first, weight, weight + n), stop = std::clamp(last, weight, weight + n);
      if (begin < end && from < stop)
        transpose(loan.bytes().data() + ((from - weight) * stride + begin) * width, stride, stop - from, end - begin,
                  width, to.data() + (from - first) * width, in);
    };
    // The first and the last row may be cut.
    const std::uint64_t begin = first > row * in + k ? 1 : 0;
    const std::uint64_t end = std::max(begin, last < (row + rows - 1) * in + k + n ? rows - 1 : rows);
    put(0, begin);
    put(begin, end);
    put(end, rows);
  }
}

std::span<const float> WeightSource::decode(std::uint64_t first, std::span<const std::byte> raw, std::uint64_t at,
                                            std::size_t n, std::span<float> tile) const {
  const auto bytes = stored(first, raw, at, n);
  if (is_plain_) return widen(info_.dtype, bytes, tile);
  decoder_->decode(at, bytes, tile.first(n));
  return tile.first(n);
}

WeightSource open_source(const StoredWeights& in, const StoredWeights::Tensor& tensor, Buffers& buffers) {
  const Reader& reader = in.reader();
  const StoredTensor& stored = tensor.stored;
  const std::size_t part = stored.parts.front();
  const auto read = [&reader, part](std::uint64_t offset, std::span<std::byte> out) { reader.read(part, offset, out); };
  auto codec = make_codec(stored.codec);
  if (!tensor.quantized())
    return {stored.info, std::move(codec), {}, read, buffers, ReaderInternals::position(reader, part, 0)};
  return about_file(reader, part, [&]() -> WeightSource {
    const std::vector<std::vector<std::byte>> planes = tensor.scheme->read_planes(reader, *codec, stored);
    const std::vector<std::span<const std::byte>> rest(planes.begin(), planes.end());
    return {stored.info, std::move(codec), rest, read, buffers, ReaderInternals::position(reader, part, 0)};
  });
}

namespace {

// The slices of a tensor, one after the other. Each is opened when it is read, and only the last one stays open: the
// absmax of all of them might not fit into memory.
class Slices {
 public:
  Slices(const StoredWeights& in, const PlannedTensor& tensor, Buffers& buffers)
      : in_(in),
        slices_(tensor.slices),
        dtype_(tensor.info.dtype),
        weights_(tensor.info.elements() / slices_.size()),
        buffers_(buffers) {}

  void read(std::uint64_t offset, std::span<std::byte> out) const {
    const std::uint64_t width = traits(dtype_).bits / 8;
    for (std::uint64_t first = offset / width; !out.empty();) {
      const std::uint64_t begin = first % weights_;
      const std::uint64_t n = std::min<std::uint64_t>(weights_ - begin, out.size() / width);
      read_slice(first / weights_, begin, out.first(n * width));
      out = out.subspan(n * width);
      first += n;
    }
  }

 private:
  using Open = std::pair<std::size_t, std::shared_ptr<const WeightSource>>;

  void read_slice(std::size_t slice, std::uint64_t first, std::span<std::byte> out) const {
    const std::shared_ptr<const WeightSource> source = open(slice);
    Buffers::Loan loan;
    const std::span<const std::byte> weights = source->weights(first, out.size() / (traits(dtype_).bits / 8), loan);
    if (source->info().dtype == dtype_) {
      std::ranges::copy(weights, out.begin());
      return;
    }
    for_each_tile(source->info().dtype, weights, [&](std::size_t i, std::span<const float> tile) {
      std::ranges::copy(std::as_bytes(tile), out.begin() + static_cast<std::ptrdiff_t>(i * sizeof(float)));
    });
  }

  std::shared_ptr<const WeightSource> open(std::size_t slice) const {
    const std::scoped_lock lock(mutex_);
    if (last_.second == nullptr || last_.first != slice) {
      last_.second.reset();
      const StoredWeights::Tensor tensor = in_[in_.find(slices_[slice]).value()];
      PlannedTensor view;
      view.info = tensor.stored.info;
      if (tensor.quantized()) view.info.dtype = dtype_;
      last_ = {slice, std::make_shared<const WeightSource>(open_source(in_, tensor, buffers_), view)};
    }
    return last_.second;
  }

  const StoredWeights& in_;
  std::vector<std::size_t> slices_;
  DType dtype_;
  std::uint64_t weights_;  // of each
  Buffers& buffers_;
  mutable std::mutex mutex_;
  mutable Open last_{};
};

}  // namespace

WeightSource open_source(const StoredWeights& in, const PlannedTensor& tensor, Buffers& buffers) {
  if (tensor.slices.empty()) return {open_source(in, in[in.find(tensor.source).value()], buffers), tensor};
  const auto slices = std::make_shared<const Slices>(in, tensor, buffers);
  const auto read = [slices](std::uint64_t offset, std::span<std::byte> out) { slices->read(offset, out); };
  return {tensor.info, make_codec(CodecSpec()), {}, read, buffers};
}

}  // namespace nibble
