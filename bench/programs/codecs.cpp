// Every registered codec on one thread, in cache and far beyond it, beside a copy and a read of the same memory in the
// same run. bench/in_memory.py runs it, adds the shares of copy and read, and writes bench/results/codecs.jsonl.
//
//   encode/CODEC/TYPE/SIZE     Encoder::encode (and scan, where the codec asks for it), chunk by chunk
//   quantize/CODEC/TYPE/SIZE   the whole tensor: a new Encoder, encode, finish; only where finish() has work to do
//   decode/CODEC/TYPE/SIZE     Decoder::decode to TYPE
//   nested/encode, decode      double quantization of absmax, its offset included
//   memcpy, read               the limits
//
// Rates are bytes of input, but those of decode bytes of output: the weights in both cases. Takes 8 GB of memory.

#include <benchmark/benchmark.h>
#include <oneapi/tbb/global_control.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/programs/memory.hpp"
#include "core/memory/scratch.hpp"
#include "nibble/bf16.hpp"
#include "nibble/codec.hpp"
#include "nibble/fp16.hpp"
#include "nibble/nested.hpp"
#include "nibble/target.hpp"
#include "quant/quantizers/quantizer.hpp"

namespace {

using nibble::DType;
using nibble::bench::Pages;

struct Size {
  const char* name;
  std::uint64_t bytes;  // of the weights that are encoded, or of those that come out
};
constexpr std::array<Size, 2> sizes{{
    {"in_cache", 128 << 10},                // stays in L2 together with what comes out
    {"in_memory", std::uint64_t{1} << 30},  // shared caches hold hundreds of megabytes
}};
constexpr std::uint64_t columns = 1 << 12;
constexpr std::array encode_types{DType::f32, DType::bf16, DType::f16};
constexpr std::array decode_types{DType::f32, DType::bf16, DType::f16};

// Drawn once for 4 M weights and repeated: drawing a gigabyte would take longer than all benchmarks, and fewer a
// processor could learn by heart.
constexpr std::size_t drawn = 1 << 22;

template <class To> void fill(std::span<std::byte> out, To (*convert)(float), float low = -1) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<To> values(std::min<std::size_t>(drawn, out.size() / sizeof(To)));
  for (To& value : values) {
    const float weight = normal(generator);
    value = convert(low < 0 ? weight : low + std::abs(weight));
  }
  const auto bytes = std::as_bytes(std::span(values));
  for (std::size_t i = 0; i < out.size(); i += bytes.size())
    std::memcpy(out.data() + i, bytes.data(), std::min(bytes.size(), out.size() - i));
}

float same(float value) { return value; }

// Memory is kept from one benchmark to the next: they alternate, and writing gigabytes anew takes longer than they do.
std::span<const std::byte> weights(DType dtype, std::uint64_t bytes) {
  static std::array<Pages, 3> all;
  Pages& pages = all[dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1 : 2];
  if (pages.bytes().empty()) {
    pages = Pages(sizes.back().bytes);
    if (dtype == DType::f32) fill<float>(pages.bytes(), same);
    if (dtype == DType::bf16) fill<std::uint16_t>(pages.bytes(), nibble::bf16::from_float);
    if (dtype == DType::f16) fill<std::uint16_t>(pages.bytes(), nibble::fp16::from_float);
  }
  return pages.bytes().first(bytes);
}

enum Target { to, encoded };
std::span<std::byte> memory(Target target, std::uint64_t bytes) {
  // Twice the largest input: fp32 from 16 bits.
  static std::array<Pages, 2> all{Pages(2 * sizes.back().bytes), Pages(2 * sizes.back().bytes)};
  if (bytes > all[target].bytes().size()) throw std::length_error("a result is more than twice as large as its input");
  return all[target].bytes().first(bytes);
}

nibble::TensorInfo tensor_of(DType dtype, std::uint64_t bytes) {
  return {"w.weight", dtype, {bytes * 8 / nibble::traits(dtype).bits / columns, columns}};
}

// One tensor, cut as the pipeline cuts it.
class Cut {
 public:
  Cut(const nibble::Codec& codec, nibble::TensorInfo info)
      : tensor(std::move(info)),
        quantizer(make_quantizer(codec)),
        chunking(quantizer->chunking(tensor, chunk_bytes * 8 / nibble::traits(tensor.dtype).bits)),
        stored(codec.code_bytes(tensor, tensor.elements())),
        elements_(tensor.elements()) {}

  // For each chunk: its first weight, its bytes in the source, its bytes among the codes.
  template <class Visit> void for_each_chunk(std::span<const std::byte> source, std::span<std::byte> out, Visit visit) {
    for (std::uint64_t first = 0; first < elements_; first += chunking.weights) {
      const std::uint64_t count = std::min(chunking.weights, elements_ - first);
      const auto part = [&](auto bytes) {
        return bytes.subspan(first * bytes.size() / elements_, count * bytes.size() / elements_);
      };
      visit(first, part(source), part(out));
    }
  }

  void encode(nibble::Encoder& encoder, std::span<const std::byte> source, std::span<std::byte> out) {
    if (chunking.scan)
      for_each_chunk(source, out, [&](std::uint64_t first, auto in, auto) { encoder.scan(first, in); });
    for_each_chunk(source, out, [&](std::uint64_t first, auto in, auto into) {
      benchmark::DoNotOptimize(encoder.encode(first, in, into, nullptr));
    });
  }

  nibble::TensorInfo tensor;
  std::unique_ptr<const nibble::Quantizer> quantizer;
  nibble::Chunking chunking;
  std::uint64_t stored;

 private:
  static constexpr std::uint64_t chunk_bytes = 1 << 20;
  std::uint64_t elements_;
};

// The planes that follow the codes.
struct Planes final : nibble::PlaneSink {
  std::vector<std::vector<std::byte>> bytes;
  void write(std::size_t plane, std::span<const std::byte> more) override {
    if (bytes.size() < plane) bytes.resize(plane);
    bytes[plane - 1].insert(bytes[plane - 1].end(), more.begin(), more.end());
  }
};

void count_bytes(benchmark::State& state, std::uint64_t bytes) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

void encode(benchmark::State& state, const nibble::Codec* codec, DType dtype, std::uint64_t bytes) {
  Cut cut(*codec, tensor_of(dtype, bytes));
  const auto source = weights(dtype, bytes);
  const auto out = memory(to, cut.stored);
  nibble::MemoryScratch scratch(cut.quantizer->scratch_bytes(cut.tensor));
  const auto encoder = cut.quantizer->encoder(cut.tensor, cut.chunking, scratch);
  for (auto _ : state) cut.encode(*encoder, source, out);
  count_bytes(state, bytes);
}

void quantize(benchmark::State& state, const nibble::Codec* codec, DType dtype, std::uint64_t bytes) {
  Cut cut(*codec, tensor_of(dtype, bytes));
  const auto source = weights(dtype, bytes);
  const auto out = memory(to, cut.stored);
  nibble::MemoryScratch scratch(cut.quantizer->scratch_bytes(cut.tensor));
  for (auto _ : state) {
    const auto encoder = cut.quantizer->encoder(cut.tensor, cut.chunking, scratch);
    cut.encode(*encoder, source, out);
    Planes rest;
    encoder->finish(rest);
    benchmark::DoNotOptimize(rest);
  }
  count_bytes(state, bytes);
}

void decode(benchmark::State& state, const nibble::Codec* codec, DType dtype, std::uint64_t bytes) {
  Cut cut(*codec, tensor_of(dtype, bytes));
  const auto stored = memory(encoded, cut.stored);
  nibble::MemoryScratch scratch(cut.quantizer->scratch_bytes(cut.tensor));
  const auto encoder = cut.quantizer->encoder(cut.tensor, cut.chunking, scratch);
  cut.encode(*encoder, weights(dtype, bytes), stored);
  Planes rest;
  encoder->finish(rest);
  const std::vector<std::span<const std::byte>> planes(rest.bytes.begin(), rest.bytes.end());
  const auto decoder = codec->decoder(cut.tensor, planes);
  const auto out = memory(to, bytes);
  for (auto _ : state)
    cut.for_each_chunk(stored, out,
                       [&](std::uint64_t first, auto in, auto into) { decoder->decode(first, in, dtype, into); });
  count_bytes(state, bytes);
}

// absmax values: the largest of 64 normal weights, never far from 2.4 standard deviations.
struct Absmax {
  explicit Absmax(std::uint64_t bytes)
      : absmax(reinterpret_cast<float*>(memory(to, bytes).data()), bytes / 4),
        codes(reinterpret_cast<std::uint8_t*>(memory(encoded, bytes).data()), absmax.size()),
        nested(reinterpret_cast<float*>(memory(encoded, bytes).data() + bytes / 2), absmax.size() / 256) {
    fill<float>(memory(to, bytes), same, 0.04F);
  }
  std::span<float> absmax;
  std::span<std::uint8_t> codes;
  std::span<float> nested;
};

void nested_encode(benchmark::State& state, std::uint64_t bytes) {
  const Absmax data(bytes);
  for (auto _ : state) {
    nibble::nested::encode(data.absmax, nibble::nested::offset(data.absmax), data.codes, data.nested);
    benchmark::ClobberMemory();
  }
  count_bytes(state, bytes);
}

void nested_decode(benchmark::State& state, std::uint64_t bytes) {
  const Absmax data(bytes);
  const float offset = nibble::nested::offset(data.absmax);
  nibble::nested::encode(data.absmax, offset, data.codes, data.nested);
  for (auto _ : state) {
    nibble::nested::decode(data.codes, data.nested, nibble::nested::codebook, offset, data.absmax);
    benchmark::ClobberMemory();
  }
  count_bytes(state, bytes);
}

void copy(benchmark::State& state, std::uint64_t bytes) {
  const auto from = weights(DType::f32, bytes);
  const auto into = memory(to, bytes);
  for (auto _ : state) {
    std::memcpy(into.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  count_bytes(state, bytes);
}

void sum_up(benchmark::State& state, std::uint64_t bytes) {
  const auto from = weights(DType::f32, bytes);
  for (auto _ : state) benchmark::DoNotOptimize(nibble::bench::sum(from));
  count_bytes(state, bytes);
}

struct Registered {
  std::string name;
  std::unique_ptr<const nibble::Codec> codec;
  bool is_variant = false;  // encodes and decodes as the codec with default options does
};

// Every codec with its default options, and what changes how a tensor is quantized: no double quantization, and other
// choices of absmax.
std::vector<Registered> registered() {
  std::vector<Registered> all;
  for (const std::string_view name : nibble::codec_names()) {
    all.push_back({std::string(name), nibble::make_codec(name)});
    if (const nibble::CodecSpec spec(name); spec.has("double-quant"))
      all.push_back(
          {std::string(name) + "-no-double-quant", nibble::make_codec(spec.with("double-quant", "no")), true});
    if (const nibble::CodecSpec spec(name); spec.has("absmax"))
      for (const char* const choice : {"search", "search-positive"})
        all.push_back({std::string(name) + "-" + choice, nibble::make_codec(spec.with("absmax", choice)), true});
  }
  return all;
}

template <class... Args> void add(const std::string& name, const Size& size, Args... args) {
  benchmark::RegisterBenchmark((name + "/" + size.name).c_str(), args..., size.bytes)->UseRealTime();
}

}  // namespace

int main(int argc, char** argv) {
  nibble::force_cpu_target_of_environment();
  const tbb::global_control one_thread(tbb::global_control::max_allowed_parallelism, 1);  // finish() would use all
  const std::vector<Registered> codecs = registered();
  for (const Size& size : sizes) {
    add("memcpy", size, copy);
    add("read", size, sum_up);
    add("nested/encode", size, nested_encode);
    add("nested/decode", size, nested_decode);
    for (const auto& [name, codec, is_variant] : codecs) {
      const auto type_name = [](DType dtype) { return "/" + std::string(nibble::traits(dtype).torch_name); };
      for (const DType dtype : encode_types) {
        const nibble::TensorInfo tensor = tensor_of(dtype, size.bytes);
        if (!codec->accepts(tensor)) continue;
        if (!is_variant) add("encode/" + name + type_name(dtype), size, encode, codec.get(), dtype);
        if (codec->quantizes()) add("quantize/" + name + type_name(dtype), size, quantize, codec.get(), dtype);
      }
      for (const DType dtype : decode_types)
        if (!is_variant) add("decode/" + name + type_name(dtype), size, decode, codec.get(), dtype);
    }
  }
  benchmark::AddCustomContext("simd", nibble::bench::simd_target());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
