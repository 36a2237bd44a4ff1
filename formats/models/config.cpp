// config.json as text, scanned and edited. One file, because edits rely on the scanner that finds a member.

#include "formats/models/config.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <vector>

#include "core/json.hpp"
#include "core/refuse.hpp"
#include "core/text/utf8.hpp"
#include "formats/models/names.hpp"

namespace nibble::config {
namespace {

constexpr std::string_view whitespace = " \t\n\r";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

using Found = std::function<void(const Member&)>;

// Walks over JSON as Python's json module accepts it. Recursion is bounded by json::max_depth.
class Scanner {
 public:
  Scanner(std::string_view text, std::string_view label) : text_(text), label_(label) {}

  void document(const Found& found) {
    if (const auto invalid = utf8::find_invalid(text_)) refuse(label_, "not UTF-8 at byte {}", *invalid);
    if (text_.starts_with("\xEF\xBB\xBF")) refuse(label_, "begins with a byte-order mark");
    skip_whitespace();
    if (at_ == text_.size()) refuse(label_, "is empty");
    if (peek() != '{') refuse(label_, "is not a JSON object");
    object(1, &found);
    skip_whitespace();
    if (at_ != text_.size()) fail("something after the end");
  }

  // The string that the text begins with, or the first one of an array; nothing otherwise.
  std::string leading_string() {
    if (take('[')) skip_whitespace();
    std::string decoded;
    if (peek() == '"') string(&decoded);
    return decoded;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { refuse(label_, "not JSON from byte {} on: {}", at_, what); }

  // '\0' at the end: no token begins with it.
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char c) {
    if (peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }

  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  void skip_whitespace() { at_ = std::min(text_.find_first_not_of(whitespace, at_), text_.size()); }

  void enter(std::size_t depth) const {
    if (depth > json::max_depth) refuse(label_, "nested deeper than {} levels", json::max_depth);
  }

  void value(std::size_t depth) {
    const char c = peek();
    if (c == '{') return object(depth + 1, nullptr);
    if (c == '[') return array(depth + 1);
    if (c == '"') return string(nullptr);
    if (c == '-' || is_digit(c)) return number();
    if (!take("true") && !take("false") && !take("null") && !take("NaN") && !take("Infinity")) fail("expected a value");
  }

  void object(std::size_t depth, const Found* found) {
    enter(depth);
    take('{');
    skip_whitespace();
    if (take('}')) return;
    Member member;
    while (true) {
      member.key.clear();
      member.key_begin = at_;
      if (peek() != '"') fail("expected a key in double quotes");
      string(found != nullptr ? &member.key : nullptr);
      member.key_end = at_;
      skip_whitespace();
      if (!take(':')) fail("expected ':'");
      skip_whitespace();
      member.value_begin = at_;
      value(depth);
      member.value_end = at_;
      if (found != nullptr) (*found)(member);
      skip_whitespace();
      if (take('}')) return;
      if (!take(',')) fail("expected ',' or '}'");
      skip_whitespace();
    }
  }

  void array(std::size_t depth) {
    enter(depth);
    take('[');
    skip_whitespace();
    if (take(']')) return;
    while (true) {
      value(depth);
      skip_whitespace();
      if (take(']')) return;
      if (!take(',')) fail("expected ',' or ']'");
      skip_whitespace();
    }
  }

  void number() {
    take('-');
    if (take("Infinity")) return;
    const auto digits = [&] {
      if (!is_digit(peek())) fail("expected a digit");
      while (is_digit(peek())) ++at_;
    };
    if (!take('0')) digits();
    if (take('.')) digits();
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      digits();
    }
  }

  // Decodes into `out` unless that is null. Python accepts lone surrogates; in a key they become U+FFFD.
  void string(std::string* out) {
    const auto append = [&](std::uint32_t c) {
      if (out != nullptr) utf8::append(*out, c);
    };
    ++at_;
    while (true) {
      const std::size_t plain = at_;
      while (at_ < text_.size() && static_cast<unsigned char>(text_[at_]) >= 0x20 && text_[at_] != '"' &&
             text_[at_] != '\\')
        ++at_;
      if (out != nullptr) out->append(text_.substr(plain, at_ - plain));
      if (take('"')) return;
      if (!take('\\')) fail(at_ == text_.size() ? "a string without end" : "a control character in a string");
      constexpr std::string_view letters = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
      if (const std::size_t letter = letters.find(peek()); letter != std::string_view::npos && at_ < text_.size()) {
        ++at_;
        append(static_cast<unsigned char>(meant[letter]));
      } else if (take('u')) {
        std::uint32_t c = hex4();
        if (c >= 0xD800 && c < 0xDC00 && text_.substr(at_, 2) == "\\u") {
          const std::size_t before = at_;
          at_ += 2;
          const std::uint32_t low = hex4();
          if (low >= 0xDC00 && low < 0xE000) {
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
          } else {
            at_ = before;  // two escapes that do not belong together
          }
        }
        append(c);
      } else {
        fail("an unknown escape");
      }
    }
  }

  std::uint32_t hex4() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = peek();
      const int digit = is_digit(c)            ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail("expected four hexadecimal digits");
      value = value << 4 | static_cast<std::uint32_t>(digit);
      ++at_;
    }
    return value;
  }

  std::string_view text_, label_;
  std::size_t at_ = 0;
};

// The keys under which multimodal and encoder-decoder configurations keep the configuration of their language model, as
// transformers' own models name them.
constexpr std::array<std::string_view, 7> parts{"text_config",    "llm_config", "language_config", "decoder",
                                                "thinker_config", "generator",  "model_config"};

constexpr int max_levels = 3;  // of parts in parts

// The other keys that are looked at.
constexpr std::array<std::string_view, 9> facts{"architectures",       "model_type",          "dtype",
                                                "torch_dtype",         "tie_word_embeddings", "vocab_size",
                                                "quantization_config", "compression_config",  "quant_method"};

// An object inside a text that has been scanned already. It holds only the members that nibble reads.
class Object {
 public:
  Object(std::string_view text, std::string_view label) : text_(text), label_(label) {
    for_each_member(text, label, [&](const Member& member) {
      if (const auto number = number_of(member.key))
        values_[*number] = text_.substr(member.value_begin, member.value_end - member.value_begin);
    });
  }

  // The text of a value; empty if there is none. Of equal keys the last counts, as in Python.
  std::string_view find(std::string_view key) const { return values_[number_of(key).value()]; }

  std::optional<Object> object(std::string_view key) const {
    const std::string_view value = find(key);
    if (!value.starts_with('{')) return std::nullopt;
    return Object(value, label_);
  }

  // The value if it is a string, the first one if it is an array.
  std::string string(std::string_view key) const { return Scanner(find(key), label_).leading_string(); }

 private:
  // Nothing for a key that nibble does not read.
  static std::optional<std::size_t> number_of(std::string_view key) {
    if (const auto part = std::find(parts.begin(), parts.end(), key); part != parts.end())
      return static_cast<std::size_t>(part - parts.begin());
    if (const auto fact = std::find(facts.begin(), facts.end(), key); fact != facts.end())
      return parts.size() + static_cast<std::size_t>(fact - facts.begin());
    return std::nullopt;
  }

  std::string_view text_, label_;
  std::array<std::string_view, parts.size() + facts.size()> values_;
};

std::optional<bool> find_tied(const Object& config, int levels = max_levels) {
  const std::string_view value = config.find("tie_word_embeddings");
  if (value == "true" || value == "false") return value == "true";
  if (levels > 0)
    for (const std::string_view part : parts)
      if (const auto inner = config.object(part))
        if (const auto tied = find_tied(*inner, levels - 1)) return tied;
  return std::nullopt;
}

// That of the language model comes first: some configurations have another one at the top.
std::optional<std::uint64_t> find_vocab_size(const Object& config, int levels = max_levels) {
  if (levels > 0)
    for (const std::string_view part : parts)
      if (const auto inner = config.object(part))
        if (const auto found = find_vocab_size(*inner, levels - 1)) return found;
  const std::string_view value = config.find("vocab_size");
  std::uint64_t size = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), size);
  if (!value.empty() && error == std::errc() && end == value.data() + value.size()) return size;
  return std::nullopt;
}

std::string find_dtype_name(const Object& config, int levels = max_levels) {
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    std::string name = config.string(key);
    if (name.starts_with("torch.")) name.erase(0, 6);
    if (!name.empty()) return name;
  }
  if (levels > 0)
    for (const std::string_view part : parts)
      if (const auto inner = config.object(part))
        if (std::string name = find_dtype_name(*inner, levels - 1); !name.empty()) return name;
  return {};
}

// The model types of the parts of an object, whatever their keys are.
void find_part_types(std::string_view object, std::string_view label, const std::string& path,
                     std::map<std::string, std::string>& types, int levels = max_levels) {
  constexpr std::size_t max_parts = 100;   // thinker, talker and their towers are seven
  constexpr std::size_t max_length = 256;  // no type or path of transformers has more bytes
  for_each_member(object, label, [&](const Member& member) {
    const std::string_view value = object.substr(member.value_begin, member.value_end - member.value_begin);
    if (!value.starts_with('{')) return;
    const std::string part = path.empty() ? member.key : fmt::format("{}.{}", path, member.key);
    if (types.size() == max_parts || part.size() > max_length) return;
    const Object inner(value, label);
    const std::string_view type = inner.find("model_type");
    if (type.starts_with('"') && type.size() <= max_length && type != "\"\"")
      types.insert_or_assign(part, inner.string("model_type"));
    if (levels > 1) find_part_types(value, label, part, types, levels - 1);
  });
}

struct Quantization {
  std::string key;
  std::string_view value;
};

// All quantizations; those of an object come before those of its parts.
void find_quantizations(const Object& config, const std::string& path, std::vector<Quantization>& found,
                        int levels = max_levels) {
  for (const std::string_view key : quantization_keys)
    if (const std::string_view value = config.find(key); !value.empty() && value != "null")
      found.push_back({fmt::format("{}{}", path, key), value});
  if (levels == 0) return;
  for (const std::string_view part : parts)
    if (const auto inner = config.object(part))
      find_quantizations(*inner, fmt::format("{}{}.", path, part), found, levels - 1);
}

struct Style {
  bool lines = false;        // one member per line
  std::string separator;     // the text between '{' or ',' and a key
  std::string colon = ": ";  // between a key and its value
  std::string line_end = "\n", indent = "  ";
};

Style style_of(std::string_view text, const std::optional<Member>& first) {
  if (!first) return {true, "\n  ", ": ", "\n", "  "};
  Style style;
  const std::size_t open = text.find('{');
  style.separator = text.substr(open + 1, first->key_begin - open - 1);
  style.colon = text.substr(first->key_end, first->value_begin - first->key_end);
  const std::size_t line = style.separator.rfind('\n');
  style.lines = line != std::string::npos;
  if (style.lines) {
    style.indent = style.separator.substr(line + 1);
    if (line > 0 && style.separator[line - 1] == '\r') style.line_end = "\r\n";
    style.separator.replace(0, line + 1, style.line_end);
  } else {
    style.separator.assign(style.colon.ends_with(' ') ? 1 : 0, ' ');
  }
  return style;
}

// Breaks a value into lines as the file does, starting one level deep. Only whitespace between tokens changes.
std::string formatted(std::string_view value, const Style& style) {
  if (!style.lines) return std::string(value);
  std::string out;
  std::size_t level = 1;
  bool quoted = false;
  const auto line = [&] {
    out += style.line_end;
    for (std::size_t i = 0; i < level; ++i) out += style.indent;
  };
  for (std::size_t i = 0; i < value.size(); ++i) {
    const char c = value[i];
    if (quoted) {
      out += c;
      if (c == '\\') out += value[++i];
      if (c == '"') quoted = false;
    } else if (c == '{' || c == '[') {
      out += c;
      const std::size_t next = value.find_first_not_of(whitespace, i + 1);
      if (value[next] == '}' || value[next] == ']') {
        out += value[i = next];
      } else {
        ++level, line();
      }
    } else if (c == '}' || c == ']') {
      --level, line();
      out += c;
    } else if (c == ',') {
      out += c;
      line();
    } else if (c == ':') {
      out += ": ";
    } else if (whitespace.find(c) == std::string_view::npos) {
      out += c;
      quoted = c == '"';
    }
  }
  return out;
}

// Where an edit happens: the member of that key and those around it, the first one and the last.
struct Position {
  std::optional<Member> first, before, member, after, last;
};

Position find_position(std::string_view text, std::string_view key, std::string_view label) {
  Position position;
  for_each_member(text, label, [&](const Member& member) {
    if (!position.first) position.first = member;
    if (position.member && !position.after) position.after = member;
    if (!position.member && member.key == key) {
      position.before = position.last;
      position.member = member;
    }
    position.last = member;
  });
  return position;
}

void apply(std::string& text, const Edit& edit, std::string_view label) {
  const auto [first, before, member, after, last] = find_position(text, edit.key, label);
  if (!member && !edit.value) return;
  if (!edit.value) {
    if (after) {
      text.erase(member->key_begin, after->key_begin - member->key_begin);
    } else {
      const std::size_t begin = before ? before->value_end : member->key_begin;
      text.erase(begin, member->value_end - begin);
    }
    return;
  }
  std::size_t values = 0;
  for_each_member(fmt::format("{{\"\":{}}}", *edit.value), label, [&](const Member&) { ++values; });
  if (values != 1) refuse(label, "the new value of '{}' is more than one", edit.key);
  const Style style = style_of(text, first);
  const std::string value = formatted(*edit.value, style);
  if (member) {
    text.replace(member->value_begin, member->value_end - member->value_begin, value);
    return;
  }
  std::string inserted = last ? "," + style.separator : style.separator;
  json::append_quoted(inserted, edit.key);
  inserted += style.colon + value;
  if (last) {
    text.insert(last->value_end, inserted);
  } else {
    const std::size_t open = text.find('{');
    text.replace(open + 1, text.find('}') - open - 1, inserted + style.line_end);
  }
}

void untie(std::string& text, std::string_view label, int levels) {
  apply(text, {"tie_word_embeddings", "false"}, label);
  if (levels == 0) return;
  for (const std::string_view part : parts) {
    const std::optional<Member> member = find_position(text, part, label).member;
    if (!member || text[member->value_begin] != '{') continue;
    const std::size_t size = member->value_end - member->value_begin;
    std::string inner = text.substr(member->value_begin, size);
    untie(inner, label, levels - 1);
    text.replace(member->value_begin, size, inner);
  }
}

// Memory that a key takes while all are compared.
std::uint64_t bytes_to_compare(const Member& member) {
  return 2 * (member.key.size() + NameList::bytes_per_name) + NameIndex::bytes_per_name;
}

void check_unique(std::string_view text, std::string_view label, MemoryLimit& limit) {
  TakenMemory memory(limit, label);
  NameList keys;
  for_each_member(text, label, [&](const Member& member) {
    memory.add(bytes_to_compare(member));
    keys.push_back(member.key);
  });
  if (const auto twice = NameIndex(keys).duplicate())
    refuse(label, "duplicate key '{}'", printable(keys[twice->second]));
}

}  // namespace

void for_each_member(std::string_view text, std::string_view label, const std::function<void(const Member&)>& found) {
  Scanner(text, label).document(found);
}

ModelConfig read(std::string_view text, std::string_view label, MemoryLimit& memory) {
  ModelConfig model;
  check_unique(text, label, memory);
  const Object config(text, label);
  model.architecture = config.string("architectures");
  model.model_type = config.string("model_type");
  model.dtype = find_dtype_name(config);
  model.tie_word_embeddings = find_tied(config);
  model.vocab_size = find_vocab_size(config);
  find_part_types(text, label, {}, model.part_types);

  std::vector<Quantization> found;
  find_quantizations(config, {}, found);
  if (found.empty()) return model;
  model.quantization_key = std::move(found.front().key);
  model.quantization_config = found.front().value;
  if (!model.quantization_config.starts_with('{')) refuse(label, "{} is not an object", model.quantization_key);
  model.quant_method = Object(model.quantization_config, label).string("quant_method");
  // A conversion replaces both keys of the outermost object.
  const auto is_inner = [](const Quantization& other) { return other.key.find('.') != std::string::npos; };
  if (const auto inner = std::find_if(found.begin() + 1, found.end(), is_inner); inner != found.end())
    model.second_quantization = inner->key;
  return model;
}

std::string untie(std::string text, std::string_view label) {
  untie(text, label, max_levels);
  return text;
}

std::uint64_t rewrite_bytes(std::string_view text, std::string_view label) {
  std::uint64_t bytes = 2 * text.size();
  for_each_member(text, label, [&](const Member& member) { bytes += bytes_to_compare(member); });
  return bytes;
}

std::string patch(std::string text, std::span<const Edit> edits, std::string_view label) {
  for (const Edit& edit : edits) apply(text, edit, label);
  MemoryLimit none;  // this memory was counted when the text was read
  check_unique(text, label, none);
  return text;
}

}  // namespace nibble::config
