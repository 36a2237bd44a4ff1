#include "quant/stream/encode.hpp"

#include <algorithm>
#include <utility>

#include "nibble/error.hpp"

namespace nibble {

Encoding::Encoding(const WeightSource& source, const TensorInfo& tensor, const Codec& codec, const Quantizer& quantizer,
                   const Chunking& chunking, std::unique_ptr<Scratch> scratch, ColumnWeights columns)
    : source_(source),
      tensor_(tensor),
      codec_(codec),
      chunking_(chunking),
      scratch_(std::move(scratch)),
      encoder_(quantizer.encoder(tensor, chunking, *scratch_)) {
  if (!columns.empty()) encoder_->weigh(std::move(columns));
}

template <class F> void Encoding::for_each_chunk(std::uint64_t first, std::uint64_t n, F&& f) {
  for (const std::uint64_t last = first + n; first < last; first += chunking_.weights) {
    const std::uint64_t end = std::min(first + chunking_.weights, last);
    Buffers::Loan loan;
    f(first, end, source_.weights(first, end - first, loan));
  }
}

void Encoding::scan(std::uint64_t first, std::uint64_t n) {
  for_each_chunk(first, n, [&](std::uint64_t at, std::uint64_t, std::span<const std::byte> weights) {
    encoder_->scan(at, weights);
  });
}

Findings Encoding::encode(std::uint64_t first, std::uint64_t n, std::span<std::byte> codes,
                          std::vector<ErrorSums>* errors,
                          const std::function<void(std::span<const std::byte> codes)>& encoded) {
  Findings findings;
  const std::uint64_t begin = offset(first);
  try {
    for_each_chunk(first, n, [&](std::uint64_t at, std::uint64_t end, std::span<const std::byte> weights) {
      const std::span<std::byte> of_chunk = codes.subspan(offset(at) - begin, offset(end) - offset(at));
      findings.add(encoder_->encode(at, weights, of_chunk, errors));
      encoded(of_chunk);
    });
  } catch (const Error& error) {
    if (error.code() != Errc::bad_input || !error.subject().empty()) throw;
    throw Error(Errc::bad_input, "tensor '" + printable(tensor_.name) + "': " + error.what());
  }
  return findings;
}

std::unique_ptr<Scratch> Encoding::end() {
  encoder_.reset();
  return std::move(scratch_);
}

}  // namespace nibble
