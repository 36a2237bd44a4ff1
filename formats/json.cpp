#include "formats/json.hpp"

#include <unordered_set>
#include <utility>
#include <vector>

#include "formats/refuse.hpp"
#include "formats/utf8.hpp"

namespace nibble::json {
namespace {

// nlohmann-json's side of the parse. Its parser keeps its own stack on the heap: depth costs memory, not the program.
class Adapter : public nlohmann::json_sax<nlohmann::json> {
 public:
  Adapter(std::string_view label, Events& events) : label_(label), events_(events) {}

  bool null() override { return events_.on_null(), true; }
  bool boolean(bool) override { return events_.on_other("a boolean"), true; }
  bool number_integer(std::int64_t) override { return events_.on_other("a negative number"), true; }
  bool number_unsigned(std::uint64_t value) override { return events_.on_unsigned(value), true; }
  bool number_float(double, const std::string& text) override {
    const bool integer = text.find_first_of(".eE") == std::string::npos;
    return events_.on_other(integer ? "a number beyond 64 bits" : "a fraction"), true;
  }
  bool string(std::string& value) override { return events_.on_string(value), true; }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool key(std::string& name) override { return events_.on_key(name), true; }
  bool start_object(std::size_t) override { return enter(), events_.on_object(), true; }
  bool end_object() override { return --depth_, events_.on_object_end(), true; }
  bool start_array(std::size_t) override { return enter(), events_.on_array(), true; }
  bool end_array() override { return --depth_, events_.on_array_end(), true; }

  // The library's own text is not passed on: it quotes the input, at any length.
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    if (error.id == 406) refuse(label_, "a number at byte {} is too large", position);
    refuse(label_, "not JSON from byte {} on", position == 0 ? 0 : position - 1);
  }

 private:
  void enter() {
    if (++depth_ > max_depth) refuse(label_, "nested deeper than {} levels", max_depth);
  }

  std::string_view label_;
  Events& events_;
  std::size_t depth_ = 0;
};

using Value = nlohmann::ordered_json;

// Builds the tree. Objects are filled behind the back of ordered_json, whose own insertion looks at every key again.
class Builder : public Adapter, private Events {
 public:
  explicit Builder(std::string_view label) : Adapter(label, static_cast<Events&>(*this)), label_(label) {}
  Value& root() { return root_; }

  // Numbers are wanted here as they are.
  bool boolean(bool value) override { return add(value), true; }
  bool number_integer(std::int64_t value) override { return add(value), true; }
  bool number_float(double value, const std::string&) override { return add(value), true; }

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

void parse_with(std::string_view text, std::string_view label, Adapter& adapter) {
  // Three things that nlohmann-json lets pass or words badly.
  if (text.substr(0, 3) == "\xEF\xBB\xBF") refuse(label, "begins with a byte-order mark");
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    refuse(label, "not JSON from byte {} on: a NUL", nul);  // it would be taken for the end
  if (const auto invalid = utf8::find_invalid(text)) refuse(label, "not UTF-8 at byte {}", *invalid);
  nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &adapter);
}

}  // namespace

void parse(std::string_view text, std::string_view label, Events& events) {
  Adapter adapter(label, events);
  parse_with(text, label, adapter);
}

nlohmann::ordered_json parse(std::string_view text, std::string_view label) {
  Builder builder(label);
  parse_with(text, label, builder);
  return std::move(builder.root());
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  std::size_t plain = 0;  // where the part begins that is copied as it is
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
