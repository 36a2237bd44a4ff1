// One container, so one file: reading and writing the header of a safetensors file, and the data behind it. Each side
// tests the other, and both spell the same types, names and offsets.

#include "formats/containers/safetensors.hpp"

#include <fmt/compile.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <tuple>

#include "core/checked.hpp"
#include "core/json.hpp"
#include "core/refuse.hpp"
#include "formats/containers/container.hpp"
#include "formats/models/names.hpp"

namespace nibble {
namespace safetensors {
namespace {

static_assert(std::endian::native == std::endian::little, "the length is copied as it is");
constexpr std::size_t length_bytes = 8;
constexpr std::string_view metadata_key = "__metadata__";

struct Offsets {
  std::uint64_t begin = 0, end = 0;  // data_offsets, from the end of the header
  bool operator<(const Offsets& other) const { return std::tie(begin, end) < std::tie(other.begin, other.end); }
};

// The most memory that a tensor takes until the header is read: what is kept of it, twice while the lists grow, and
// three times if they have to be sorted.
std::uint64_t opening_bytes(const TensorInfo& tensor) {
  return 3 * (TensorList::memory_bytes(tensor) + sizeof(Offsets)) + NameIndex::bytes_per_name;
}

// Collects the entries. The parser is in one of a few states, since the format nests four levels only.
class HeaderEvents final : public json::Events {
 public:
  HeaderEvents(std::string_view label, TakenMemory& memory) : label_(label), memory_(memory) {}

  TensorList tensors;
  std::vector<Offsets> offsets;  // of each

  void on_key(std::string& name) override {
    if (skipped_ > 0) return;
    switch (state_) {
      case State::top:
        return begin_entry(name);
      case State::metadata:
        memory_.add(2 * (name.size() + NameList::bytes_per_name) + NameIndex::bytes_per_name);
        metadata_.push_back(name);
        return;
      default:
        return begin_field(name);
    }
  }

  void on_string(std::string& value) override {
    if (skip_value()) return;
    if (state_ == State::metadata) return;  // unused
    if (state_ == State::dtype) {
      const auto dtype = find_dtype(value);
      if (!dtype) refuse_entry("unknown dtype '{}'", printable(value));
      tensor_.dtype = *dtype;
      state_ = State::entry;
    } else {
      unexpected("a string");
    }
  }

  void on_unsigned(std::uint64_t value) override {
    if (skip_value()) return;
    if (state_ == State::dimensions) {
      if (tensor_.shape.size() == max_dimensions) refuse_entry("shape has more than {} dimensions", max_dimensions);
      tensor_.shape.push_back(value);
    } else if (state_ == State::offsets && numbers_ < 2) {
      (numbers_++ == 0 ? data_.begin : data_.end) = value;
    } else if (state_ == State::offsets) {
      refuse_entry("data_offsets are not two numbers");
    } else {
      unexpected("a number");
    }
  }

  void on_null() override {
    if (skip_value()) return;
    if (state_ != State::metadata_value) unexpected("null");
    state_ = State::top;  // the library treats it like no metadata
  }

  void on_other(std::string_view kind) override {
    if (!skip_value()) unexpected(kind);
  }

  void on_object() override {
    if (skip_deeper()) return;
    switch (state_) {
      case State::document:
        state_ = State::top;
        return;
      case State::metadata_value:
        state_ = State::metadata;
        return;
      case State::entry_value:
        state_ = State::entry;
        return;
      default:
        unexpected("an object");
    }
  }

  void on_object_end() override {
    if (skip_back()) return;
    if (state_ == State::metadata) return end_metadata();
    if (state_ == State::entry) return end_entry();
  }

  void on_array() override {
    if (skip_deeper()) return;
    switch (state_) {
      case State::shape:
        state_ = State::dimensions;
        return;
      case State::data_offsets:
        state_ = State::offsets;
        return;
      default:
        unexpected("an array");
    }
  }

  void on_array_end() override {
    if (skip_back()) return;
    if (state_ == State::offsets && numbers_ != 2) refuse_entry("data_offsets are not two numbers");
    state_ = State::entry;
  }

 private:
  enum class State {
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
    refuse(label_, "tensor '{}': {}", printable(tensor_.name), fmt::format(text, std::forward<Args>(args)...));
  }

  [[noreturn]] void unexpected(std::string_view kind) const {
    switch (state_) {
      case State::document:
        refuse(label_, "header is {}, not an object", kind);
      case State::metadata_value:
        refuse(label_, "{} is {}, not an object", metadata_key, kind);
      case State::metadata:
        refuse(label_, "{}: '{}' is {}, not a string", metadata_key, printable(metadata_[metadata_.size() - 1]), kind);
      case State::dtype:
        refuse_entry("dtype is {}, not a string", kind);
      case State::shape:
        refuse_entry("shape is {}, not an array", kind);
      case State::dimensions:
        refuse_entry("shape has {} instead of a dimension", kind);
      case State::data_offsets:
        refuse_entry("data_offsets are {}, not an array", kind);
      case State::offsets:
        refuse_entry("data_offsets have {} where an offset is due", kind);
      default:
        refuse_entry("its entry is {}, not an object", kind);
    }
  }

  void begin_entry(const std::string& name) {
    if (name == metadata_key) {
      if (has_metadata_) refuse(label_, "duplicate key '{}'", metadata_key);
      has_metadata_ = true;
      state_ = State::metadata_value;
    } else {
      tensor_.name = name;
      tensor_.shape.clear();
      fields_ = 0;
      state_ = State::entry_value;
    }
  }

  void begin_field(const std::string& name) {
    const auto begin = [&](Field field, State state) {
      if ((fields_ & field) != 0) refuse_entry("duplicate field '{}'", name);
      fields_ |= field;
      state_ = state;
    };
    if (name == "dtype") return begin(dtype_field, State::dtype);
    if (name == "shape") return begin(shape_field, State::shape);
    numbers_ = 0;
    if (name == "data_offsets") return begin(offsets_field, State::data_offsets);
    state_ = State::unknown;
  }

  void end_entry() {
    if ((fields_ & dtype_field) == 0) refuse_entry("has no dtype");
    if ((fields_ & shape_field) == 0) refuse_entry("has no shape");
    if ((fields_ & offsets_field) == 0) refuse_entry("has no data_offsets");
    memory_.add(opening_bytes(tensor_));
    tensors.push_back(tensor_);
    offsets.push_back(data_);
    state_ = State::top;
  }

  void end_metadata() {
    if (const auto twice = NameIndex(metadata_).duplicate())
      refuse(label_, "{}: duplicate key '{}'", metadata_key, printable(metadata_[twice->second]));
    metadata_ = {};
    state_ = State::top;
  }

  // The value of an unknown field may be anything: these follow it to its end.
  bool skip_value() {
    if (skipped_ > 0) return true;
    if (state_ != State::unknown) return false;
    state_ = State::entry;
    return true;
  }
  bool skip_deeper() {
    if (state_ == State::unknown) ++skipped_;
    return skipped_ > 0;
  }
  bool skip_back() {
    if (skipped_ == 0) return false;
    if (--skipped_ == 0) state_ = State::entry;
    return true;
  }

  std::string_view label_;
  TakenMemory& memory_;
  State state_ = State::document;
  NameList metadata_;        // its keys so far
  TensorInfo tensor_;        // whose entry is being read
  Offsets data_;             // its data
  unsigned fields_ = 0;      // seen in this entry
  std::size_t numbers_ = 0;  // seen in this array
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

// Files are written in the order of their data; headers need not be.
void put_in_order(TensorList& tensors, std::vector<Offsets>& offsets) {
  std::vector<std::size_t> order(offsets.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return offsets[a] < offsets[b]; });
  TensorList sorted;
  sorted.reserve(tensors.size());
  for (const std::size_t i : order) sorted.push_back(tensors[i]);
  tensors = std::move(sorted);
  std::sort(offsets.begin(), offsets.end());
}

// No holes, no overlaps, nothing before and nothing after: one file has one meaning.
void check_offsets(const TensorList& tensors, std::span<const Offsets> offsets, std::uint64_t data_begin,
                   std::uint64_t file_bytes, std::string_view label) {
  Checked position = data_begin;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Offsets& entry = offsets[i];
    const auto name = [&] { return printable(tensors.name(i)); };
    if (entry.end < entry.begin)
      refuse(label, "tensor '{}': data_offsets [{}, {}] end before they begin", name(), entry.begin, entry.end);
    const Checked begin = Checked(data_begin) + entry.begin;
    if (!begin.valid() || begin.value() != position.value())
      refuse(label, "tensor '{}': data_offsets begin at {}, the data before it ends at {}", name(), entry.begin,
             (position - data_begin).value());
    const TensorInfo tensor = tensors[i];
    const std::uint64_t bytes = bytes_of(tensor, label), covered = (Checked(entry.end) - entry.begin).value();
    if (bytes != covered)
      refuse(label, "tensor '{}': shape {} of {} takes {} bytes, data_offsets cover {}", name(),
             to_string(tensor.shape), traits(tensor.dtype).name, bytes, covered);
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
  [[nodiscard]] std::uint64_t position(std::size_t tensor) const override { return offsets_.at(tensor); }
  void check_unchanged() const override { file_.check_unchanged(); }

 private:
  InputFile file_;
  std::vector<std::uint64_t> offsets_;
};

// A plausible length, then a brace: no other format begins like this.
bool sniff(std::span<const std::byte> head) {
  if (head.size() <= length_bytes) return false;
  std::uint64_t length = 0;
  std::memcpy(&length, head.data(), length_bytes);
  return length >= 2 && length <= max_header_bytes && head[length_bytes] == std::byte{'{'};
}

constexpr std::string_view header_begin = R"({"__metadata__":{"format":"pt"})";
constexpr std::string_view header_end = "}";

void append_entry(std::string& text, const TensorInfo& part, std::uint64_t begin, std::uint64_t end) {
  text += ',';
  json::append_quoted(text, part.name);
  fmt::format_to(std::back_inserter(text), FMT_COMPILE(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})"),
                 traits(part.dtype).name, fmt::join(part.shape, ","), begin, end);
}

WeightFile open(InputFile file, MemoryLimit& memory) {
  Header header = read_header(file, memory);
  return {std::move(header.tensors), std::make_unique<SafetensorsSource>(std::move(file), std::move(header.offsets))};
}

}  // namespace

Header parse_header(const json::Text& json, std::uint64_t data_begin, std::uint64_t file_bytes, std::string_view label,
                    MemoryLimit& limit) {
  TakenMemory memory(limit, label);
  HeaderEvents events(label, memory);
  json::parse(json, fmt::format("{}: header", label), events, limit);
  std::vector<Offsets>& offsets = events.offsets;
  TensorList& tensors = events.tensors;
  // Empty tensors share their begin with the next.
  if (!std::is_sorted(offsets.begin(), offsets.end())) put_in_order(tensors, offsets);
  if (const auto twice = NameIndex(tensors).duplicate())
    refuse(label, "duplicate tensor '{}'", printable(tensors.name(twice->second)));
  check_offsets(tensors, offsets, data_begin, file_bytes, label);

  Header header;
  header.tensors = std::move(tensors);
  header.offsets.reserve(offsets.size() + 1);
  for (const Offsets& entry : offsets) header.offsets.push_back((Checked(data_begin) + entry.begin).value());
  header.offsets.push_back(file_bytes);
  return header;
}

Header read_header(const InputFile& file, MemoryLimit& memory) {
  const std::string& label = file.label();
  if (file.size() == 0) refuse(label, "is empty");
  if (file.size() < length_bytes)
    refuse(label, "has {} bytes, fewer than the {} of the header's length", file.size(), length_bytes);
  std::uint64_t length = 0;
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > max_header_bytes) refuse(label, "header has {} bytes, more than {}", length, max_header_bytes);
  const std::uint64_t data_begin = (Checked(length_bytes) + length).value();
  if (data_begin > file.size()) refuse(label, "header ends at byte {}, file has {}", data_begin, file.size());

  const json::Text json(length, [&](std::uint64_t offset, std::span<char> out) {
    file.read(length_bytes + offset, std::as_writable_bytes(out));
  });
  return parse_header(json, data_begin, file.size(), label, memory);
}

Layout lay_out(const PartList& parts) {
  if (const auto twice = find_duplicate(parts))
    throw Error(Errc::bad_input,
                fmt::format("two tensors would be written as '{}'", printable(parts[twice->second].name)));
  Layout layout;
  layout.order.resize(parts.size());
  std::iota(layout.order.begin(), layout.order.end(), std::uint32_t{0});
  std::sort(layout.order.begin(), layout.order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const DType first = parts.dtype(a), second = parts.dtype(b);
    return first != second ? first > second : is_before(parts.name(a), parts.name(b));
  });

  layout.offsets.resize(parts.size());
  std::uint64_t header_bytes = length_bytes + header_begin.size() + header_end.size();
  std::string text;
  Checked position = 0;
  for (const std::uint32_t i : layout.order) {
    const TensorInfo part = parts[i];
    const std::uint64_t begin = position.value();
    layout.offsets[i] = begin;
    position = position + part.bytes();
    text.clear();
    append_entry(text, part, begin, position.value());
    header_bytes += text.size();
  }
  layout.header_bytes = (header_bytes + 7) / 8 * 8;
  if (const std::uint64_t length = layout.header_bytes - length_bytes; length > max_header_bytes)
    throw Error(Errc::bad_input, fmt::format("{} tensors need a header of {} bytes, more than {}", parts.size(), length,
                                             max_header_bytes));
  for (std::uint64_t& offset : layout.offsets) offset = (Checked(offset) + layout.header_bytes).value();
  layout.file_bytes = (position + layout.header_bytes).value();
  return layout;
}

void write_header(const PartList& parts, const Layout& layout,
                  const std::function<void(std::uint64_t offset, std::string_view piece)>& write) {
  constexpr std::size_t piece_bytes = 64 << 10;
  const std::uint64_t length = layout.header_bytes - length_bytes;
  std::string text(length_bytes, '\0');
  std::memcpy(text.data(), &length, length_bytes);
  text += header_begin;
  std::uint64_t written = 0;
  for (const std::uint32_t i : layout.order) {
    const TensorInfo part = parts[i];
    const std::uint64_t begin = layout.offsets[i] - layout.header_bytes;
    append_entry(text, part, begin, begin + part.bytes());
    if (text.size() < piece_bytes) continue;
    write(written, text);
    written += text.size();
    text.clear();
  }
  text += header_end;
  text.resize(layout.header_bytes - written, ' ');
  write(written, text);
}

}  // namespace safetensors

Container make_safetensors() {
  return {{"safetensors", "Hugging Face safetensors, single files and sharded", ".safetensors", true},
          safetensors::sniff,
          safetensors::open};
}

}  // namespace nibble
