#include "core/json.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/refuse.hpp"
#include "core/text/utf8.hpp"

namespace nibble::json {
namespace {

// A text in pieces, each valid UTF-8. Counts the memory that the parser takes for a token. The parser itself does not
// tell before the end of the token; it keeps the text and the value, in buffers that double as they grow.
class Pieces {
 public:
  Pieces(const Text& text, std::string_view label, MemoryLimit& memory)
      : text_(text), label_(label), token_memory_(memory, label), buffer_(std::min(text.bytes, piece_bytes), '\0') {}

  // Empty at the end.
  std::string_view next() {
    if (offset_ == text_.bytes) return {};
    if (const std::uint64_t token = token_copies * (token_bytes_ += piece_.size()); token > counted_) {
      token_memory_.add(token - counted_);
      counted_ = token;
    }
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size(), text_.bytes - offset_));
    text_.read(offset_, std::span(buffer_).first(size));
    piece_ = std::string_view(buffer_).substr(0, size);
    if (offset_ + size < text_.bytes) piece_.remove_suffix(utf8::incomplete_bytes(piece_));
    check();
    offset_ += piece_.size();
    return piece_;
  }

  // A token ended in the latest piece.
  void end_token() { token_bytes_ = 0; }

 private:
  static constexpr std::uint64_t piece_bytes = 64 << 10;
  static constexpr std::uint64_t token_copies = 4;

  // Three errors that nlohmann-json misses or words badly.
  void check() const {
    if (offset_ == 0 && piece_.substr(0, 3) == "\xEF\xBB\xBF") refuse(label_, "begins with a byte-order mark");
    if (const std::size_t nul = piece_.find('\0'); nul != std::string_view::npos)
      refuse(label_, "not JSON from byte {} on: a NUL", offset_ + nul);  // it would be taken for the end
    if (const auto invalid = utf8::find_invalid(piece_)) refuse(label_, "not UTF-8 at byte {}", offset_ + *invalid);
  }

  const Text& text_;
  std::string_view label_;
  TakenMemory token_memory_;
  std::string buffer_;
  std::string_view piece_;         // the latest
  std::uint64_t offset_ = 0;       // of the next
  std::uint64_t token_bytes_ = 0;  // at most: in pieces that were read to their end since a token ended
  std::uint64_t counted_ = 0;
};

// The position of nlohmann-json in the pieces. It compares with the end before it takes a character.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor() = default;  // the end
  explicit Cursor(Pieces& pieces) : pieces_(&pieces) {}

  reference operator*() const { return *at_; }
  Cursor& operator++() { return ++at_, *this; }
  bool operator==(const Cursor&) const { return at_ == end_ && !advance(); }

 private:
  bool advance() const {
    const std::string_view piece = pieces_->next();
    at_ = piece.data();
    end_ = at_ + piece.size();
    return !piece.empty();
  }

  Pieces* pieces_ = nullptr;
  mutable const char* at_ = nullptr;
  mutable const char* end_ = nullptr;
};

// nlohmann-json's side of the parse. Its parser keeps its own stack on the heap: depth costs memory, not the program.
class Adapter : public nlohmann::json_sax<nlohmann::json> {
 public:
  Adapter(std::string_view label, Events& events, Pieces& pieces) : label_(label), events_(events), pieces_(pieces) {}

  bool null() override { return told(), events_.on_null(), true; }
  bool boolean(bool) override { return told(), events_.on_other("a boolean"), true; }
  bool number_integer(std::int64_t) override { return told(), events_.on_other("a negative number"), true; }
  bool number_unsigned(std::uint64_t value) override { return told(), events_.on_unsigned(value), true; }
  bool number_float(double, const std::string& text) override {
    const bool integer = text.find_first_of(".eE") == std::string::npos;
    return told(), events_.on_other(integer ? "a number beyond 64 bits" : "a fraction"), true;
  }
  bool string(std::string& value) override { return told(), events_.on_string(value), true; }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool key(std::string& name) override { return told(), events_.on_key(name), true; }
  bool start_object(std::size_t) override { return enter(), events_.on_object(), true; }
  bool end_object() override { return leave(), events_.on_object_end(), true; }
  bool start_array(std::size_t) override { return enter(), events_.on_array(), true; }
  bool end_array() override { return leave(), events_.on_array_end(), true; }

  // The library's own text is not passed on: it quotes the input, at any length.
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    if (error.id == 406) refuse(label_, "a number at byte {} is too large", position);
    refuse(label_, "not JSON from byte {} on", position == 0 ? 0 : position - 1);
  }

 protected:
  void told() { pieces_.end_token(); }

 private:
  void enter() {
    told();
    if (++depth_ > max_depth) refuse(label_, "nested deeper than {} levels", max_depth);
  }
  void leave() {
    told();
    --depth_;
  }

  std::string_view label_;
  Events& events_;
  Pieces& pieces_;
  std::size_t depth_ = 0;
};

using Value = nlohmann::ordered_json;

// Builds the tree. Inserts directly: ordered_json's own insertion scans all keys.
class Builder : public Adapter, private Events {
 public:
  Builder(std::string_view label, Pieces& pieces)
      : Adapter(label, static_cast<Events&>(*this), pieces), label_(label) {}
  Value& root() { return root_; }

  // Numbers are kept as they are here.
  bool boolean(bool value) override { return told(), add(value), true; }
  bool number_integer(std::int64_t value) override { return told(), add(value), true; }
  bool number_float(double value, const std::string&) override { return told(), add(value), true; }

 private:
  struct Open {
    Value* value;
    std::unordered_set<std::string> keys;
  };

  Value& add(Value value) {
    if (open_.empty()) return root_ = std::move(value);
    Value& parent = *open_.back().value;
    if (parent.is_array()) return parent.get_ref<Value::array_t&>().emplace_back(std::move(value));
    return parent.get_ref<Value::object_t&>().back().second = std::move(value);
  }

  void on_key(std::string& name) override {
    Open& open = open_.back();
    if (!open.keys.insert(name).second) refuse(label_, "duplicate key '{}'", printable(name));
    auto& members = open.value->get_ref<Value::object_t&>();
    static_cast<Value::object_t::Container&>(members).emplace_back(std::move(name), nullptr);
  }
  void on_string(std::string& value) override { add(std::move(value)); }
  void on_unsigned(std::uint64_t value) override { add(value); }
  void on_null() override { add(nullptr); }
  void on_other(std::string_view) override {}
  void on_object() override { open_.push_back({&add(Value::object()), {}}); }
  void on_object_end() override { open_.pop_back(); }
  void on_array() override { open_.push_back({&add(Value::array()), {}}); }
  void on_array_end() override { open_.pop_back(); }

  std::string_view label_;
  Value root_;
  std::vector<Open> open_;  // pointers stay valid: a parent does not grow while its child is open
};

void parse_with(Pieces& pieces, Adapter& adapter) { nlohmann::json::sax_parse(Cursor(pieces), Cursor(), &adapter); }

}  // namespace

Text Text::view(std::string_view text) {
  return {text.size(), [text](std::uint64_t offset, std::span<char> out) {
            text.copy(out.data(), out.size(), static_cast<std::size_t>(offset));
          }};
}

void parse(const Text& text, std::string_view label, Events& events, MemoryLimit& memory) {
  Pieces pieces(text, label, memory);
  Adapter adapter(label, events, pieces);
  parse_with(pieces, adapter);
}

nlohmann::ordered_json parse(std::string_view text, std::string_view label) {
  MemoryLimit none;
  const Text whole = text;
  Pieces pieces(whole, label, none);
  Builder builder(label, pieces);
  parse_with(pieces, builder);
  return std::move(builder.root());
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  std::size_t plain = 0;  // the start of the part that is copied unchanged
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text.substr(plain, i - plain));
    plain = i + 1;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
    }
  }
  out.append(text.substr(plain)).push_back('"');
}

}  // namespace nibble::json
