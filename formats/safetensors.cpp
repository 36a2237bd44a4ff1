// The header of a safetensors file, read and written: one file, because each side is the test of the other, and both
// spell the same types, names and offsets.

#include "formats/safetensors.hpp"

#include <fmt/compile.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <tuple>

#include "formats/checked.hpp"
#include "formats/container.hpp"
#include "formats/json.hpp"
#include "formats/names.hpp"
#include "formats/refuse.hpp"

namespace nibble {
namespace safetensors {
namespace {

static_assert(std::endian::native == std::endian::little, "the length is copied as it is");
constexpr std::size_t length_bytes = 8;
constexpr std::string_view metadata_key = "__metadata__";

struct Entry {
  TensorInfo info;
  std::uint64_t begin = 0, end = 0;  // data_offsets, from the end of the header
};

// Collects the entries. Where the parser stands is one of a few places, since the format nests four levels only.
class HeaderEvents final : public json::Events {
 public:
  explicit HeaderEvents(std::string_view label) : label_(label) {}

  std::vector<Entry> entries;
  std::vector<std::pair<std::string, std::string>> metadata;

  void on_key(std::string& name) override {
    if (skipped_ > 0) return;
    switch (place_) {
      case Place::top:
        return begin_entry(name);
      case Place::metadata:
        metadata.emplace_back(std::move(name), std::string());
        return;
      default:
        return begin_field(name);
    }
  }

  void on_string(std::string& value) override {
    if (skip_value()) return;
    if (place_ == Place::metadata) {
      metadata.back().second = std::move(value);
    } else if (place_ == Place::dtype) {
      const auto dtype = find_dtype(value);
      if (!dtype) refuse_entry("unknown dtype '{}'", printable(value));
      entries.back().info.dtype = *dtype;
      place_ = Place::entry;
    } else {
      unexpected("a string");
    }
  }

  void on_unsigned(std::uint64_t value) override {
    if (skip_value()) return;
    if (place_ == Place::dimensions) {
      entries.back().info.shape.push_back(value);
    } else if (place_ == Place::offsets && offsets_ < 2) {
      (offsets_++ == 0 ? entries.back().begin : entries.back().end) = value;
    } else if (place_ == Place::offsets) {
      refuse_entry("data_offsets are not two numbers");
    } else {
      unexpected("a number");
    }
  }

  void on_null() override {
    if (skip_value()) return;
    if (place_ != Place::metadata_value) unexpected("null");
    place_ = Place::top;  // the library takes it for no metadata
  }

  void on_other(std::string_view kind) override {
    if (!skip_value()) unexpected(kind);
  }

  void on_object() override {
    if (skip_deeper()) return;
    switch (place_) {
      case Place::document:
        place_ = Place::top;
        return;
      case Place::metadata_value:
        place_ = Place::metadata;
        return;
      case Place::entry_value:
        place_ = Place::entry;
        return;
      default:
        unexpected("an object");
    }
  }

  void on_object_end() override {
    if (skip_back()) return;
    if (place_ == Place::metadata) return end_metadata();
    if (place_ == Place::entry) return end_entry();
  }

  void on_array() override {
    if (skip_deeper()) return;
    switch (place_) {
      case Place::shape:
        place_ = Place::dimensions;
        return;
      case Place::data_offsets:
        place_ = Place::offsets;
        return;
      default:
        unexpected("an array");
    }
  }

  void on_array_end() override {
    if (skip_back()) return;
    if (place_ == Place::offsets && offsets_ != 2) refuse_entry("data_offsets are not two numbers");
    place_ = Place::entry;
  }

 private:
  enum class Place {
    document,        // before the outermost brace
    top,             // between entries
    metadata_value,  // after "__metadata__":
    metadata,        // inside it
    entry_value,     // after the name of a tensor
    entry,           // between its fields
    dtype,           // after the name of the field
    shape,
    dimensions,  // inside the array
    data_offsets,
    offsets,
    unknown,
  };
  enum Field : unsigned { dtype_field = 1, shape_field = 2, offsets_field = 4, all_fields = 7 };

  template <class... Args> [[noreturn]] void refuse_entry(fmt::format_string<Args...> text, Args&&... args) const {
    refuse(label_, "tensor '{}': {}", printable(entries.back().info.name),
           fmt::format(text, std::forward<Args>(args)...));
  }

  [[noreturn]] void unexpected(std::string_view kind) const {
    switch (place_) {
      case Place::document:
        refuse(label_, "header is {}, not an object", kind);
      case Place::metadata_value:
        refuse(label_, "{} is {}, not an object", metadata_key, kind);
      case Place::metadata:
        refuse(label_, "{}: '{}' is {}, not a string", metadata_key, printable(metadata.back().first), kind);
      case Place::dtype:
        refuse_entry("dtype is {}, not a string", kind);
      case Place::shape:
        refuse_entry("shape is {}, not an array", kind);
      case Place::dimensions:
        refuse_entry("shape has {} where a dimension is due", kind);
      case Place::data_offsets:
        refuse_entry("data_offsets are {}, not an array", kind);
      case Place::offsets:
        refuse_entry("data_offsets have {} where an offset is due", kind);
      default:
        refuse_entry("its entry is {}, not an object", kind);
    }
  }

  void begin_entry(std::string& name) {
    if (name == metadata_key) {
      if (has_metadata_) refuse(label_, "duplicate key '{}'", metadata_key);
      has_metadata_ = true;
      place_ = Place::metadata_value;
    } else {
      entries.emplace_back().info.name = std::move(name);
      fields_ = 0;
      place_ = Place::entry_value;
    }
  }

  void begin_field(const std::string& name) {
    const auto begin = [&](Field field, Place place) {
      if ((fields_ & field) != 0) refuse_entry("duplicate field '{}'", name);
      fields_ |= field;
      place_ = place;
    };
    if (name == "dtype") return begin(dtype_field, Place::dtype);
    if (name == "shape") return begin(shape_field, Place::shape);
    offsets_ = 0;
    if (name == "data_offsets") return begin(offsets_field, Place::data_offsets);
    place_ = Place::unknown;
  }

  void end_entry() {
    if ((fields_ & dtype_field) == 0) refuse_entry("has no dtype");
    if ((fields_ & shape_field) == 0) refuse_entry("has no shape");
    if ((fields_ & offsets_field) == 0) refuse_entry("has no data_offsets");
    place_ = Place::top;
  }

  void end_metadata() {
    std::vector<std::string_view> names;
    for (const auto& [name, value] : metadata) names.push_back(name);
    if (const auto twice = NameIndex(names).duplicate())
      refuse(label_, "{}: duplicate key '{}'", metadata_key, printable(names[twice->second]));
    place_ = Place::top;
  }

  // The value of an unknown field may be anything: these follow it to its end.
  bool skip_value() {
    if (skipped_ > 0) return true;
    if (place_ != Place::unknown) return false;
    place_ = Place::entry;
    return true;
  }
  bool skip_deeper() {
    if (place_ == Place::unknown) ++skipped_;
    return skipped_ > 0;
  }
  bool skip_back() {
    if (skipped_ == 0) return false;
    if (--skipped_ == 0) place_ = Place::entry;
    return true;
  }

  std::string_view label_;
  Place place_ = Place::document;
  unsigned fields_ = 0;      // seen in this entry
  std::size_t offsets_ = 0;  // seen in this array
  std::size_t skipped_ = 0;  // containers open inside an unknown field
  bool has_metadata_ = false;
};

// Bytes of a tensor, counted as the library counts: from left to right and in bits, so that what overflows there is
// refused here, even if a later dimension is 0.
std::uint64_t bytes_of(const TensorInfo& tensor, std::string_view label) {
  Checked bits = 1;
  for (const std::uint64_t dimension : tensor.shape) bits = bits * dimension;
  bits = bits * traits(tensor.dtype).bits;
  if (!bits.valid())
    refuse(label, "tensor '{}': shape {} of {} exceeds 64 bits", printable(tensor.name), to_string(tensor.shape),
           traits(tensor.dtype).name);
  if (bits.value() % 8 != 0)
    refuse(label, "tensor '{}': shape {} of dtype {} is not a whole number of bytes", printable(tensor.name),
           to_string(tensor.shape), traits(tensor.dtype).name);
  return bits.value() / 8;
}

// No holes, no overlaps, nothing before and nothing after: one file has one meaning.
void check_placement(const std::vector<Entry>& entries, std::uint64_t data_begin, std::uint64_t file_bytes,
                     std::string_view label) {
  Checked position = data_begin;
  for (const Entry& entry : entries) {
    const auto name = [&] { return printable(entry.info.name); };
    if (entry.end < entry.begin)
      refuse(label, "tensor '{}': data_offsets [{}, {}] end before they begin", name(), entry.begin, entry.end);
    const Checked begin = Checked(data_begin) + entry.begin;
    if (!begin.valid() || begin.value() != position.value())
      refuse(label, "tensor '{}': data_offsets begin at {}, the data before it ends at {}", name(), entry.begin,
             (position - data_begin).value());
    const std::uint64_t bytes = bytes_of(entry.info, label), covered = (Checked(entry.end) - entry.begin).value();
    if (bytes != covered)
      refuse(label, "tensor '{}': shape {} of {} takes {} bytes, data_offsets cover {}", name(),
             to_string(entry.info.shape), traits(entry.info.dtype).name, bytes, covered);
    position = position + covered;
    if (position.value() > file_bytes)
      refuse(label, "tensor '{}': data ends at byte {}, file has {}", name(), position.value(), file_bytes);
  }
  if (position.value() != file_bytes) refuse(label, "data ends at byte {}, file has {}", position.value(), file_bytes);
}

class SafetensorsSource final : public Source {
 public:
  SafetensorsSource(InputFile file, std::vector<std::uint64_t> offsets)
      : file_(std::move(file)), offsets_(std::move(offsets)) {}

  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override {
    file_.read((Checked(offsets_.at(tensor)) + offset).value(), out);
  }
  void check_unchanged() const override { file_.check_unchanged(); }

 private:
  InputFile file_;
  std::vector<std::uint64_t> offsets_;
};

// A length that can be one, and a brace: eight bytes in between that no other format has.
bool sniff(std::span<const std::byte> head) {
  if (head.size() <= length_bytes) return false;
  std::uint64_t length = 0;
  std::memcpy(&length, head.data(), length_bytes);
  return length >= 2 && length <= max_header_bytes && head[length_bytes] == std::byte{'{'};
}

WeightFile open(InputFile file) {
  Header header = read_header(file);
  return {std::move(header.tensors), std::make_unique<SafetensorsSource>(std::move(file), std::move(header.offsets))};
}

}  // namespace

Header parse_header(std::string_view json, std::uint64_t data_begin, std::uint64_t file_bytes, std::string_view label) {
  HeaderEvents events(label);
  json::parse(json, fmt::format("{}: header", label), events);
  std::vector<Entry>& entries = events.entries;

  const auto before = [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);  // empty tensors share their begin with the next
  };
  if (!std::is_sorted(entries.begin(), entries.end(), before)) std::stable_sort(entries.begin(), entries.end(), before);
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) names.push_back(entry.info.name);
  if (const auto twice = NameIndex(names).duplicate())
    refuse(label, "duplicate tensor '{}'", printable(names[twice->second]));
  check_placement(entries, data_begin, file_bytes, label);

  Header header;
  header.tensors.reserve(entries.size());
  header.offsets.reserve(entries.size() + 1);
  for (Entry& entry : entries) {
    header.tensors.push_back(std::move(entry.info));
    header.offsets.push_back((Checked(data_begin) + entry.begin).value());
  }
  header.offsets.push_back(file_bytes);
  header.metadata = std::move(events.metadata);
  return header;
}

Header read_header(const InputFile& file) {
  const std::string& label = file.label();
  if (file.size() == 0) refuse(label, "is empty");
  if (file.size() < length_bytes)
    refuse(label, "has {} bytes, fewer than the {} of the header's length", file.size(), length_bytes);
  std::uint64_t length = 0;
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > max_header_bytes) refuse(label, "header has {} bytes, more than {}", length, max_header_bytes);
  const std::uint64_t data_begin = (Checked(length_bytes) + length).value();
  if (data_begin > file.size()) refuse(label, "header ends at byte {}, file has {}", data_begin, file.size());

  const auto json = std::make_unique_for_overwrite<char[]>(length);
  file.read(length_bytes, std::as_writable_bytes(std::span(json.get(), length)));
  return parse_header({json.get(), length}, data_begin, file.size(), label);
}

Layout lay_out(std::span<const TensorInfo> parts) {
  std::vector<std::string_view> names;
  names.reserve(parts.size());
  for (const TensorInfo& part : parts) names.push_back(part.name);
  if (const auto twice = NameIndex(names).duplicate())
    throw Error(Errc::bad_input, fmt::format("two tensors would be written as '{}'", printable(names[twice->second])));

  std::vector<std::size_t> order(parts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return parts[a].dtype != parts[b].dtype ? parts[a].dtype > parts[b].dtype : parts[a].name < parts[b].name;
  });

  Layout layout;
  layout.offsets.resize(parts.size());
  std::string& header = layout.header;
  header.assign(length_bytes, '\0').append(R"({"__metadata__":{"format":"pt"})");
  Checked position = 0;
  for (const std::size_t i : order) {
    const TensorInfo& part = parts[i];
    layout.offsets[i] = position.value();
    position = position + part.bytes();
    header += ',';
    json::append_quoted(header, part.name);
    fmt::format_to(std::back_inserter(header), FMT_COMPILE(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})"),
                   traits(part.dtype).name, fmt::join(part.shape, ","), layout.offsets[i], position.value());
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size() - length_bytes;
  if (length > max_header_bytes)
    throw Error(Errc::bad_input, fmt::format("{} tensors need a header of {} bytes, more than {}", parts.size(), length,
                                             max_header_bytes));
  std::memcpy(header.data(), &length, length_bytes);
  for (std::uint64_t& offset : layout.offsets) offset = (Checked(offset) + header.size()).value();
  layout.file_bytes = (position + header.size()).value();
  return layout;
}

}  // namespace safetensors

Container make_safetensors() {
  return {{"safetensors", "Hugging Face safetensors, single files and sharded", true},
          safetensors::sniff,
          safetensors::open};
}

}  // namespace nibble
