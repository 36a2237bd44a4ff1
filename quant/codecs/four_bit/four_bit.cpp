// How 4-bit codes lie in a checkpoint: parts, quantization state, absmax on the way in and out. One file, because all
// of it is the one layout that bitsandbytes reads.

#include "quant/codecs/four_bit/four_bit.hpp"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nibble/checkpoint.hpp"
#include "nibble/device.hpp"
#include "nibble/error.hpp"
#include "nibble/nested.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0); }

template <class T> std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// A finite number as Python's repr() spells it: the shortest digits that read back the same, without an exponent from
// 1e-04 to 1e16.
std::string python_repr(double value) {
  char text[32];
  const auto scientific = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific);
  const std::string_view written(text, static_cast<std::size_t>(scientific.ptr - text));
  int exponent = 0;
  const char* first = text + written.find('e') + 1;
  if (*first == '+') ++first;
  std::from_chars(first, scientific.ptr, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(written);
  const auto fixed = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed);
  std::string out(text, fixed.ptr);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

// The longest text of an fp32 offset, such as -1.1754943508222875e-38 without the sign: a mean of magnitudes.
constexpr std::size_t longest_offset = 22;

std::string state_name(std::string_view name, std::string_view codec) {
  return std::string(name) + ".quant_state.bitsandbytes__" + std::string(codec);
}

std::vector<std::string> part_names(const std::string& name, std::string_view codec, bool nested) {
  std::vector<std::string> names{name, name + ".absmax", name + ".quant_map"};
  if (nested) names.insert(names.end(), {name + ".nested_absmax", name + ".nested_quant_map"});
  names.push_back(state_name(name, codec));
  return names;
}

// The JSON text that tells bitsandbytes the rest, as Python's json.dumps() writes it: bitsandbytes refuses other keys.
std::string quant_state(std::string_view codec, std::size_t blocksize, const TensorInfo& tensor,
                        const std::string* nested_offset) {
  const DType dtype = tensor.dtype == DType::f64 ? DType::f32 : tensor.dtype;  // fp64 was rounded to fp32 first
  std::string text = "{\"quant_type\": \"" + std::string(codec) + "\", \"blocksize\": " + std::to_string(blocksize) +
                     ", \"dtype\": \"" + std::string(traits(dtype).torch_name) + "\", \"shape\": [";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  text += "]";
  if (nested_offset != nullptr)
    text += ", \"nested_blocksize\": " + std::to_string(nested::blocksize) +
            ", \"nested_dtype\": \"float32\", \"nested_offset\": " + *nested_offset;
  return text + "}";
}

// Its size must follow from the header alone, so what has an offset in it is padded with spaces to the longest.
std::size_t quant_state_size(std::string_view codec, std::size_t blocksize, const TensorInfo& tensor, bool nested) {
  const std::string longest(longest_offset, '0');
  return quant_state(codec, blocksize, tensor, nested ? &longest : nullptr).size();
}

class FourBitEncoder final : public Encoder {
 public:
  FourBitEncoder(const FourBitTables& tables, std::string_view codec, std::size_t blocksize, bool nested,
                 bool sums_errors, Device* device, const TensorInfo& tensor, Scratch& scratch)
      : tables_(tables),
        codec_(codec),
        blocksize_(blocksize),
        nested_(nested),
        sums_errors_(sums_errors),
        keeps_errors_(nested && sums_errors),
        device_(device),
        tensor_(tensor),
        blocks_(ceil_div(tensor.elements(), blocksize)),
        scratch_(scratch) {}

  // In tiles of 4096 weights, at which chunks begin.
  Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> out,
                  std::vector<ErrorSums>* errors) override {
    const std::span<std::uint8_t> packed(reinterpret_cast<std::uint8_t*>(out.data()), out.size());
    const std::size_t size = traits(tensor_.dtype).bits / 8, n = weights.size() / size;
    const std::uint64_t first_block = first / blocksize_;
    std::vector<std::byte> absmax_room, errors_room;
    const auto absmax = lend<float>(first_block * sizeof(float), ceil_div(n, blocksize_), absmax_room);
    const auto block_errors = lend<FourBitError>(errors_at() + first_block * sizeof(FourBitError),
                                                 errors != nullptr && keeps_errors_ ? absmax.size() : 0, errors_room);
    // What is found in weights that are not finite is found here, so those are encoded here, too.
    const bool on_device =
        device_ != nullptr && device_->encode_four_bit(codec_, tensor_.dtype, weights, blocksize_, packed, absmax);
    Findings findings;
    alignas(64) std::array<float, tile_weights> widened;
    for (std::size_t i = 0; i < n && !(on_device && errors == nullptr); i += tile_weights) {
      const std::size_t count = std::min(tile_weights, n - i);
      const auto stored = weights.subspan(i * size, count * size);
      const auto tile = tensor_.dtype == DType::f64 ? std::as_bytes(widen(DType::f64, stored, widened)) : stored;
      const DType dtype = tensor_.dtype == DType::f64 ? DType::f32 : tensor_.dtype;
      const auto codes = packed.subspan(i / 2, ceil_div(count, 2));
      const auto scales = absmax.subspan(i / blocksize_, ceil_div(count, blocksize_));
      const auto of_blocks = block_errors.empty() ? block_errors : block_errors.subspan(i / blocksize_, scales.size());
      std::size_t nonfinite = 0;
      if (on_device)
        sum_four_bit_errors(tables_, dtype, tile, codes, scales, blocksize_, of_blocks, errors->emplace_back());
      else if (errors != nullptr)
        nonfinite = encode_four_bit(tables_, dtype, tile, blocksize_, codes, scales, of_blocks, errors->emplace_back());
      else
        nonfinite = encode_four_bit(tables_, dtype, tile, blocksize_, codes, scales);
      if (nonfinite != 0) findings.add(count_nonfinite(tensor_.dtype, stored, first + i));
    }
    scratch_.write(first_block * sizeof(float), std::as_bytes(absmax));
    scratch_.write(errors_at() + first_block * sizeof(FourBitError), std::as_bytes(block_errors));
    return findings;
  }

  EncodingError late_error() const override { return late_; }

  void finish(PartSink& sink) override {
    std::string offset_text;
    if (sums_errors_)
      for_each_piece([&](std::uint64_t, std::span<const float> absmax) {
        std::array<Spread, piece_groups> spreads;
        for_each_group(absmax,
                       [&](std::size_t g, std::size_t, std::span<const float> values) { spreads[g].add(values); });
        for (const Spread& spread : spreads) late_.absmax.add(spread);
      });
    if (nested_) {
      const float offset = mean();
      offset_text = python_repr(offset);
      encode_nested(offset, sink);
      sink.write(4, std::as_bytes(std::span(nested::codebook)));
    } else {
      for_each_piece([&](std::uint64_t, std::span<const float> absmax) {
        // As much at a time as double quantization makes of a piece, which is what is planned for.
        const std::span<const std::byte> bytes = std::as_bytes(absmax);
        for (std::size_t first = 0; first < bytes.size(); first += piece) {
          const auto part = bytes.subspan(first, std::min(piece, bytes.size() - first));
          sink.fill(1, part.size(), [&](std::span<std::byte> room) { std::ranges::copy(part, room.begin()); });
        }
      });
    }
    sink.write(2, std::as_bytes(std::span(tables_.codebook)));
    std::string state = quant_state(codec_, blocksize_, tensor_, nested_ ? &offset_text : nullptr);
    state.resize(quant_state_size(codec_, blocksize_, tensor_, nested_), ' ');
    sink.write(nested_ ? 5 : 3, std::as_bytes(std::span(state)));
  }

 private:
  template <class T> std::span<T> lend(std::uint64_t offset, std::size_t n, std::vector<std::byte>& room) {
    return {reinterpret_cast<T*>(scratch_.lend(offset, n * sizeof(T), room).data()), n};
  }

  // Absmax values in memory at a time when the tensor is finished: 1 MiB, and work for 16 threads.
  static constexpr std::size_t piece_groups = 16;
  static constexpr std::size_t piece = piece_groups * nested::group;
  static_assert(nested::group % nested::blocksize == 0, "groups begin with a nested block");

  template <class F> void for_each_piece(F&& f) const {
    std::vector<std::byte> room;
    for (std::uint64_t first = 0; first < blocks_; first += piece) {
      const std::size_t n = std::min<std::uint64_t>(blocks_ - first, piece);
      const auto absmax = scratch_.view(first * sizeof(float), n * sizeof(float), room);
      f(first, std::span(reinterpret_cast<const float*>(absmax.data()), n));
    }
  }

  // Calls f(group, its first value, its values) for the groups of a piece, side by side.
  template <class F> static void for_each_group(std::span<const float> absmax, F&& f) {
    const auto call = [&](std::size_t g) {
      const std::size_t first = g * nested::group;
      f(g, first, absmax.subspan(first, std::min(nested::group, absmax.size() - first)));
    };
    const std::size_t groups = ceil_div(absmax.size(), nested::group);
    if (groups == 1) return call(0);
    // Isolated: a thread that waits must not begin a chunk of the pipeline meanwhile.
    tbb::this_task_arena::isolate([&] { tbb::parallel_for(std::size_t{0}, groups, call); });
  }

  // As nested::offset().
  float mean() const {
    double sum = 0;
    for_each_piece([&](std::uint64_t, std::span<const float> absmax) {
      std::array<double, piece_groups> sums{};
      for_each_group(absmax, [&](std::size_t g, std::size_t, std::span<const float> values) {
        sums[g] = nested::group_sum(values);
      });
      for (std::size_t g = 0; g < ceil_div(absmax.size(), nested::group); ++g) sum += sums[g];
    });
    return blocks_ == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(blocks_));
  }

  void encode_nested(float offset, PartSink& sink) {
    for_each_piece([&](std::uint64_t at, std::span<const float> absmax) {
      std::array<ErrorSums, piece_groups> changes{};
      std::vector<float> nested_absmax(ceil_div(absmax.size(), nested::blocksize));
      sink.fill(1, absmax.size(), [&](std::span<std::byte> room) {
        const std::span codes(reinterpret_cast<std::uint8_t*>(room.data()), room.size());
        for_each_group(absmax, [&](std::size_t g, std::size_t first, std::span<const float> values) {
          const auto group_codes = codes.subspan(first, values.size());
          const auto group_absmax =
              std::span(nested_absmax).subspan(first / nested::blocksize, ceil_div(values.size(), nested::blocksize));
          nested::encode(values, offset, group_codes, group_absmax);
          check_finite(group_codes, group_absmax, offset);
          if (keeps_errors_) changes[g] = change_of_error(at + first, values, group_codes, group_absmax, offset);
        });
      });
      for (const ErrorSums& change : changes) late_.sums.add(change);
      sink.write(3, std::as_bytes(std::span(nested_absmax)));
    });
  }

  // Near the end of fp32 an absmax may be rounded beyond it.
  void check_finite(std::span<const std::uint8_t> codes, std::span<const float> nested_absmax, float offset) const {
    constexpr float most = std::numeric_limits<float>::max();
    for (std::size_t i = 0; i < nested_absmax.size(); ++i) {
      if (std::abs(offset) < most / 4 && nested_absmax[i] < most / 4) continue;
      const std::size_t first = i * nested::blocksize, n = std::min(nested::blocksize, codes.size() - first);
      std::array<float, nested::blocksize> decoded;
      const auto values = std::span(decoded).first(n);
      nested::decode(codes.subspan(first, n), nested_absmax.subspan(i, 1), nested::codebook, offset, values);
      if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
        throw Error(Errc::bad_input, "tensor '" + printable(tensor_.name) +
                                         "': its weights are so near to the largest of fp32 that double quantization "
                                         "would make infinities of them; --no-double-quant does not");
    }
  }

  // By how much the sums change when absmax a becomes a' (quant/codecs/four_bit/four_bit_error.hpp has the formulas).
  ErrorSums change_of_error(std::uint64_t first, std::span<const float> absmax, std::span<const std::uint8_t> codes,
                            std::span<const float> nested_absmax, float offset) const {
    std::vector<std::byte> room;
    const auto errors =
        scratch_.view(errors_at() + first * sizeof(FourBitError), absmax.size() * sizeof(FourBitError), room);
    return change_of_errors({reinterpret_cast<const FourBitError*>(errors.data()), absmax.size()}, absmax, codes,
                            nested_absmax, offset);
  }

  [[nodiscard]] std::uint64_t errors_at() const { return blocks_ * sizeof(float); }

  const FourBitTables& tables_;
  std::string_view codec_;
  std::size_t blocksize_;
  bool nested_;
  bool sums_errors_;
  bool keeps_errors_;  // until double quantization is done
  Device* device_;
  TensorInfo tensor_;
  std::uint64_t blocks_;
  Scratch& scratch_;  // the fp32 absmax of the whole tensor, 4 / blocksize bytes per weight; after them the errors
  EncodingError late_;
};

// The absmax of a tensor: as stored, or out of double quantization when they are asked for, which takes a quarter of
// the memory and next to no time.
struct StoredAbsmax {
  std::vector<float> plain;
  std::vector<std::uint8_t> codes;
  std::vector<float> nested_absmax;
  std::vector<float> codebook;
  float offset = 0;

  // Of blocks [first, first + n), n at most most_blocks; `room` may take them.
  static constexpr std::size_t most_blocks = 1024;
  std::span<const float> read(std::size_t first, std::size_t n, std::span<float> room) const {
    if (codes.empty()) return std::span(plain).subspan(first, n);
    for (std::size_t done = 0; done < n;) {
      const std::size_t at = first + done;
      const std::size_t count = std::min(n - done, nested::blocksize - at % nested::blocksize);
      nested::decode(std::span(codes).subspan(at, count), std::span(nested_absmax).subspan(at / nested::blocksize, 1),
                     std::span<const float, 256>(codebook), offset, room.subspan(done, count));
      done += count;
    }
    return room.first(n);
  }
};

class FourBitDecoder final : public Decoder {
 public:
  FourBitDecoder(const FourBitTables& tables, std::size_t blocksize, StoredAbsmax absmax)
      : tables_(tables), blocksize_(blocksize), absmax_(std::move(absmax)) {}

  void decode(std::uint64_t first, std::span<const std::byte> in, std::span<float> out) const override {
    for_each_piece(first, in, out.size(), [&](std::size_t i, std::size_t n, auto packed, auto absmax) {
      decode_four_bit(tables_, packed, absmax, blocksize_, out.subspan(i, n));
    });
  }

  void decode(std::uint64_t first, std::span<const std::byte> in, DType to, std::span<std::byte> out) const override {
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(out.data()) % alignof(std::uint16_t) == 0;
    if ((to != DType::bf16 && to != DType::f16) || !is_aligned) return Decoder::decode(first, in, to, out);
    const std::span<std::uint16_t> weights(reinterpret_cast<std::uint16_t*>(out.data()), out.size() / 2);
    for_each_piece(first, in, weights.size(), [&](std::size_t i, std::size_t n, auto packed, auto absmax) {
      decode_four_bit(tables_, packed, absmax, blocksize_, to, weights.subspan(i, n));
    });
  }

 private:
  // Calls f(i, n, packed, absmax) for weights [i, i + n) of those asked for.
  template <class F>
  void for_each_piece(std::uint64_t first, std::span<const std::byte> in, std::size_t weights, F&& f) const {
    const std::span<const std::uint8_t> packed(reinterpret_cast<const std::uint8_t*>(in.data()), in.size());
    std::array<float, StoredAbsmax::most_blocks> room;
    const std::size_t piece = blocksize_ * room.size();
    for (std::size_t i = 0; i < weights; i += piece) {
      const std::size_t n = std::min(piece, weights - i);
      f(i, n, packed.subspan(i / 2, ceil_div(n, 2)),
        absmax_.read((first + i) / blocksize_, ceil_div(n, blocksize_), room));
    }
  }

  const FourBitTables& tables_;
  std::size_t blocksize_;
  StoredAbsmax absmax_;
};

class FourBitCodec final : public Codec {
 public:
  FourBitCodec(std::string_view name, std::string_view summary, const FourBitTables& tables,
               const NormalSqnr& normal_sqnr, const CodecOptions& options)
      : name_(name),
        summary_(summary),
        tables_(tables),
        normal_sqnr_(normal_sqnr),
        blocksize_(options.blocksize),
        nested_(options.double_quant),
        sums_errors_(options.sums_errors),
        device_(options.device) {}

  std::string_view name() const noexcept override { return name_; }
  std::string_view summary() const noexcept override { return summary_; }

  std::vector<TensorInfo> parts(const TensorInfo& tensor) const override {
    const std::uint64_t n = tensor.elements();
    const std::uint64_t blocks = ceil_div(n, blocksize_);
    const std::vector<std::string> names = part_names(tensor.name, name_, nested_);
    std::vector<TensorInfo> parts{{names[0], DType::u8, {ceil_div(n, 2), 1}},
                                  {names[1], nested_ ? DType::u8 : DType::f32, {blocks}},
                                  {names[2], DType::f32, {tables_.codebook.size()}}};
    if (nested_) {
      parts.push_back({names[3], DType::f32, {ceil_div(blocks, nested::blocksize)}});
      parts.push_back({names[4], DType::f32, {nested::codebook.size()}});
    }
    parts.push_back({names.back(), DType::u8, {quant_state_size(name_, blocksize_, tensor, nested_)}});
    return parts;
  }

  Chunking chunking(const TensorInfo&, std::uint64_t limit) const override {
    // Pieces of errors are not cut.
    const std::uint64_t unit = limit < tile_weights ? blocksize_ : tile_weights;
    return {std::max<std::uint64_t>(limit - limit % unit, blocksize_), false};
  }

  // The fp32 absmax of every block: with double quantization all are needed before the first can be stored. What that
  // does to the errors follows from two sums of each.
  std::uint64_t scratch_bytes(const TensorInfo& tensor) const override {
    const std::uint64_t each = sizeof(float) + (nested_ && sums_errors_ ? sizeof(FourBitError) : 0);
    return each * ceil_div(tensor.elements(), blocksize_);
  }

  std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking&, Scratch& scratch) const override {
    return std::make_unique<FourBitEncoder>(tables_, name_, blocksize_, nested_, sums_errors_, device_, tensor,
                                            scratch);
  }

  std::unique_ptr<Decoder> decoder(const TensorInfo& tensor,
                                   std::span<const std::span<const std::byte>> rest) const override {
    const std::vector<TensorInfo> expected = parts(tensor);
    if (rest.size() != expected.size() - 1)
      fail(tensor, "has " + std::to_string(rest.size() + 1) + " parts, not " + std::to_string(expected.size()));
    for (std::size_t i = 0; i + 1 < rest.size(); ++i)
      if (rest[i].size() != expected[i + 1].bytes())
        fail(expected[i + 1],
             "has " + std::to_string(rest[i].size()) + " bytes, not " + std::to_string(expected[i + 1].bytes()));
    check_codebook(expected[2], values_of<float>(rest[1]));
    const float offset = check_quant_state(tensor, expected.back(), rest.back());
    StoredAbsmax absmax;
    if (nested_)
      absmax = {{}, values_of<std::uint8_t>(rest[0]), values_of<float>(rest[2]), values_of<float>(rest[3]), offset};
    else
      absmax.plain = values_of<float>(rest[0]);
    return std::make_unique<FourBitDecoder>(tables_, blocksize_, std::move(absmax));
  }

  std::optional<BnbConfig> bnb_config() const override { return BnbConfig{4, std::string(name_), nested_}; }

  double normal_sqnr_db(const TensorInfo&) const override {
    return normal_sqnr_[static_cast<std::size_t>(std::countr_zero(blocksize_ / 32))];
  }

  // The quantization state is what gives such a tensor away; its packed bytes may have any type (quant_storage).
  std::optional<StoredTensor> recognize(const Reader& in, std::size_t first, const FindTensor& find) const override {
    const auto state_part = find(state_name(in.tensors().name(first), name_));
    if (!state_part) return std::nullopt;
    const TensorInfo packed = in.tensors()[first];
    StoredTensor stored{{packed.name, DType::f32, {}}, {}, {first}};
    const TensorInfo part = in.tensors()[*state_part];
    if (part.bytes() > longest_state) fail(part, "has " + std::to_string(part.bytes()) + " bytes, more than any state");
    std::vector<std::byte> bytes(part.bytes());
    in.read(*state_part, 0, bytes);
    const auto state = parse_state(part, bytes);
    const auto blocksize = state.find("blocksize");
    if (blocksize == state.end() || !blocksize->is_number_unsigned() || *blocksize < 32u || *blocksize > 4096u ||
        !std::has_single_bit(blocksize->template get<std::uint32_t>()))
      fail(part, "blocksize is none of 32, 64, ..., 4096");
    const auto shape = state.find("shape");
    if (shape == state.end() || !shape->is_array()) fail(part, "shape is missing");
    for (const nlohmann::json& dimension : *shape) {
      if (!dimension.is_number_unsigned()) fail(part, "shape has a dimension that is no size");
      if (stored.info.shape.size() == max_dimensions)
        fail(part, "shape has more than " + std::to_string(max_dimensions) + " dimensions");
      stored.info.shape.push_back(dimension.get<std::uint64_t>());
    }
    stored.info.dtype = dtype_of(part, state);
    stored.options.blocksize = blocksize->template get<std::uint32_t>();
    stored.options.double_quant = state.contains("nested_blocksize");
    const std::vector<std::string> names = part_names(packed.name, name_, stored.options.double_quant);
    for (std::size_t i = 1; i < names.size(); ++i) {
      const auto found = find(names[i]);
      if (!found) fail(packed, "part '" + printable(names[i]) + "' is missing");
      stored.parts.push_back(*found);
    }
    // A product that 64 bits do not count is more than any file holds.
    std::uint64_t n = 1;
    for (const std::uint64_t dimension : stored.info.shape)
      if (__builtin_mul_overflow(n, dimension, &n)) fail(packed, "shape has more weights than 64 bits count");
    if (packed.bytes() != ceil_div(n, 2))
      fail(packed, "has " + std::to_string(packed.bytes()) + " bytes for " + std::to_string(n) + " weights");
    const std::vector<TensorInfo> expected = make_codec(name_, stored.options)->parts(stored.info);
    for (std::size_t i = 1; i < expected.size(); ++i) {
      const TensorInfo found = in.tensors()[stored.parts[i]];
      if (found.dtype != expected[i].dtype)
        fail(found, "type is " + std::string(traits(found.dtype).name) + ", not " +
                        std::string(traits(expected[i].dtype).name));
      if (i + 1 < expected.size() && found.bytes() != expected[i].bytes())
        fail(found, "has " + std::to_string(found.bytes()) + " bytes, not " + std::to_string(expected[i].bytes()));
    }
    return stored;
  }

 private:
  static constexpr std::uint64_t longest_state = 1 << 16;
  static constexpr int deepest_state = 16;

  // What the weights were before: the types that bitsandbytes quantizes.
  static DType dtype_of(const TensorInfo& part, const nlohmann::json& state) {
    const auto name = state.find("dtype");
    if (name == state.end() || !name->is_string()) fail(part, "dtype is missing");
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      if (name->get_ref<const std::string&>() == traits(dtype).torch_name) return dtype;
    fail(part, "dtype is " + printable(name->get<std::string>()) + ", none of float32, float16 and bfloat16");
  }

  static nlohmann::json parse_state(const TensorInfo& part, std::span<const std::byte> bytes) {
    const auto* const text = reinterpret_cast<const char*>(bytes.data());
    // A message may print a value, and what is nested would be printed by recursion: deeper values are left out.
    const auto is_shallow = [](int depth, auto, const auto&) { return depth <= deepest_state; };
    auto state = nlohmann::json::parse(text, text + bytes.size(), is_shallow, /*allow_exceptions=*/false);
    if (!state.is_object()) fail(part, "is not a JSON object");
    return state;
  }

  [[noreturn]] static void fail(const TensorInfo& tensor, const std::string& fact) {
    throw Error(Errc::bad_input, "tensor '" + printable(tensor.name) + "': " + fact);
  }

  // bitsandbytes decodes with its own tables, whose last bits have changed between versions, and so does this.
  void check_codebook(const TensorInfo& part, std::span<const float> codebook) const {
    for (std::size_t i = 0; i < codebook.size(); ++i)
      if (!(std::abs(codebook[i] - tables_.codebook[i]) <= 1e-4f))
        fail(part, "value " + std::to_string(i) + " is " + std::to_string(codebook[i]) + ", in " + std::string(name_) +
                       " it is " + std::to_string(tables_.codebook[i]));
  }

  // Returns the offset of double quantization.
  float check_quant_state(const TensorInfo& tensor, const TensorInfo& part, std::span<const std::byte> bytes) const {
    const auto state = parse_state(part, bytes);
    const auto text_of = [](const nlohmann::json& value) {
      return printable(value.is_string() ? value.get<std::string>() : value.dump());
    };
    const auto expect = [&](const char* key, const nlohmann::json& value) {
      const auto found = state.find(key);
      if (found == state.end() || *found != value)
        fail(part, std::string(key) + " is " + (found == state.end() ? "missing" : text_of(*found)) + ", not " +
                       text_of(value));
    };
    expect("quant_type", name_);
    expect("blocksize", blocksize_);
    expect("shape", tensor.shape);
    if (!nested_) return 0;
    expect("nested_blocksize", nested::blocksize);
    const auto offset = state.find("nested_offset");
    if (offset == state.end() || !offset->is_number()) fail(part, "nested_offset is not a number");
    const double value = offset->get<double>();
    if (!(std::abs(value) <= std::numeric_limits<float>::max())) fail(part, "nested_offset is beyond fp32");
    return static_cast<float>(value);
  }

  std::string_view name_, summary_;
  const FourBitTables& tables_;
  const NormalSqnr& normal_sqnr_;
  std::size_t blocksize_;
  bool nested_;
  bool sums_errors_;
  Device* device_;
};

}  // namespace

void check_four_bit_sizes(std::size_t weights, std::size_t blocksize, std::size_t packed, std::size_t absmax) {
  if (!std::has_single_bit(blocksize) || blocksize < 32 || blocksize > 4096)
    throw Error(Errc::usage, "blocksize is " + std::to_string(blocksize) + ", not one of 32, 64, ..., 4096");
  if (packed != weights / 2 + weights % 2 || absmax != weights / blocksize + (weights % blocksize != 0))
    throw Error(Errc::usage, std::to_string(weights) + " weights in blocks of " + std::to_string(blocksize) +
                                 " do not fit " + std::to_string(packed) + " packed bytes and " +
                                 std::to_string(absmax) + " absmax values");
}

std::unique_ptr<const Codec> make_four_bit(std::string_view name, std::string_view summary, const FourBitTables& tables,
                                           const NormalSqnr& normal_sqnr, const CodecOptions& options) {
  return std::make_unique<FourBitCodec>(name, summary, tables, normal_sqnr, options);
}

}  // namespace nibble
