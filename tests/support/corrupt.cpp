#include "tests/support/corrupt.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace nibble::test {
namespace {

std::string repeat(std::string_view text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

// The header of a file with one tensor of 16 bytes, whose entry is given.
std::string entry(std::string_view fields) { return fmt::format(R"({{"w":{}}})", fields); }

const std::string four_bytes(4, '\0'), sixteen_bytes(16, '\0');
constexpr std::string_view good_entry = R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})";

}  // namespace

TempDir::TempDir() : TempDir(std::filesystem::temp_directory_path()) {}

TempDir::TempDir(const std::filesystem::path& parent) {
  std::string name = (parent / "nibble_test_XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp: " + name);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path TempDir::write(const std::string& name, std::string_view bytes) const {
  const std::filesystem::path file = path_ / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file;
}

std::vector<std::string> entries_of(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string safetensors_file(std::string_view header, std::string_view data, std::optional<std::uint64_t> length) {
  const std::uint64_t claimed = length.value_or(header.size());
  std::string file(sizeof claimed, '\0');
  std::memcpy(file.data(), &claimed, sizeof claimed);
  return file.append(header).append(data);
}

std::string safetensors_with(const std::vector<std::string>& names) {
  std::string header, data;
  for (const std::string& name : names) {
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[4],"data_offsets":[{},{}]}})", header.empty() ? "{" : ",",
                          name, data.size(), data.size() + 16);
    data += sixteen_bytes;
  }
  return safetensors_file(header + (header.empty() ? "{}" : "}"), data);
}

std::vector<Corrupt> corrupt_safetensors() {
  std::vector<Corrupt> all;
  const auto add = [&](std::string id, std::string file, std::string_view error) {
    all.push_back(
        {std::move(id), {{"f.safetensors", std::move(file)}}, "f.safetensors", "f.safetensors: " + std::string(error)});
  };
  const auto header = [&](std::string id, std::string_view text, std::string_view error) {
    add(std::move(id), safetensors_file(text, sixteen_bytes), error);
  };

  add("empty", "", "is empty");
  add("short", "1234567", "has 7 bytes, fewer than the 8 of the header's length");
  add("length_zero", safetensors_file("", sixteen_bytes), "header: not JSON from byte 0 on");
  add("length_past_end", safetensors_file("{}", "", 9), "header ends at byte 17, file has 10");
  add("length_over_limit", safetensors_file("{}", "", 100'000'001), "header has 100000001 bytes, more than 100000000");
  add("length_wraps", safetensors_file("{}", "", ~std::uint64_t{0}),
      "header has 18446744073709551615 bytes, more than 100000000");

  header("not_json", "hello", "header: not JSON from byte 0 on");
  header("json_cut", R"({"w":{"dtype")", "header: not JSON from byte 13 on");
  header("json_twice", "{}{}", "header: not JSON from byte 2 on");
  header("json_trailing_comma", R"({"a":{"dtype":"F32",}})", "header: not JSON from byte 20 on");
  header("byte_order_mark", "\xEF\xBB\xBF{}", "header: begins with a byte-order mark");
  header("nul_padding", std::string("{}\0\0", 4), "header: not JSON from byte 2 on: a NUL");
  header("not_utf8", "{\"\xFF\":1}", "header: not UTF-8 at byte 2");
  header("overlong_utf8", "{\"\xC0\xAF\":1}", "header: not UTF-8 at byte 2");
  header("surrogate_utf8", "{\"\xED\xA0\x80\":1}", "header: not UTF-8 at byte 2");
  header("surrogate_escape", R"({"\ud800":1})", "header: not JSON from byte 8 on");
  header("number_too_large", entry(R"({"shape":[1e999]})"), "header: a number at byte 20 is too large");
  header("array", "[]", "header is an array, not an object");
  header("number", "12", "header is a number, not an object");
  header("deep_unknown_field", entry(R"({"x":)" + repeat("[", 127) + repeat("]", 127) + "}"),
         "header: nested deeper than 128 levels");
  header("deep_shape", entry(R"({"shape":[[4]]})"), "tensor 'w': shape has an array instead of a dimension");

  header("metadata_list", R"({"__metadata__":[]})", "__metadata__ is an array, not an object");
  header("metadata_number", R"({"__metadata__":{"a":1}})", "__metadata__: 'a' is a number, not a string");
  header("metadata_null", R"({"__metadata__":{"a":null}})", "__metadata__: 'a' is null, not a string");
  header("metadata_object", R"({"__metadata__":{"a":{}}})", "__metadata__: 'a' is an object, not a string");
  header("metadata_duplicate", R"({"__metadata__":{"a":"1","a":"2"}})", "__metadata__: duplicate key 'a'");
  header("metadata_twice", R"({"__metadata__":{},"__metadata__":{}})", "duplicate key '__metadata__'");

  header("entry_list", entry("[]"), "tensor 'w': its entry is an array, not an object");
  header("entry_null", entry("null"), "tensor 'w': its entry is null, not an object");
  header("no_dtype", entry(R"({"shape":[4],"data_offsets":[0,16]})"), "tensor 'w': has no dtype");
  header("no_shape", entry(R"({"dtype":"F32","data_offsets":[0,16]})"), "tensor 'w': has no shape");
  header("no_offsets", entry(R"({"dtype":"F32","shape":[4]})"), "tensor 'w': has no data_offsets");
  header("dtype_unknown", entry(R"({"dtype":"F31"})"), "tensor 'w': unknown dtype 'F31'");
  header("dtype_case", entry(R"({"dtype":"f32"})"), "tensor 'w': unknown dtype 'f32'");
  header("dtype_number", entry(R"({"dtype":3})"), "tensor 'w': dtype is a number, not a string");
  header("dtype_boolean", entry(R"({"dtype":true})"), "tensor 'w': dtype is a boolean, not a string");
  header("shape_number", entry(R"({"shape":4})"), "tensor 'w': shape is a number, not an array");
  header("shape_string", entry(R"({"shape":["4"]})"), "tensor 'w': shape has a string instead of a dimension");
  header("shape_fraction", entry(R"({"shape":[4.0]})"), "tensor 'w': shape has a fraction instead of a dimension");
  header("shape_negative", entry(R"({"shape":[-4]})"),
         "tensor 'w': shape has a negative number instead of a dimension");
  header("shape_negative_zero", entry(R"({"shape":[-0]})"),
         "tensor 'w': shape has a negative number instead of a dimension");
  header("shape_over_64_bits", entry(R"({"shape":[18446744073709551616]})"),
         "tensor 'w': shape has a number beyond 64 bits instead of a dimension");
  header("offsets_number", entry(R"({"data_offsets":0})"), "tensor 'w': data_offsets are a number, not an array");
  header("offsets_one", entry(R"({"data_offsets":[0]})"), "tensor 'w': data_offsets are not two numbers");
  header("offsets_three", entry(R"({"data_offsets":[0,4,8]})"), "tensor 'w': data_offsets are not two numbers");
  header("offsets_negative", entry(R"({"data_offsets":[-4,8]})"),
         "tensor 'w': data_offsets have a negative number where an offset is due");
  header("duplicate_field", entry(R"({"dtype":"F32","dtype":"F32"})"), "tensor 'w': duplicate field 'dtype'");
  header("duplicate_tensor",
         fmt::format(R"({{"w":{},"w":{{"dtype":"F32","shape":[0],"data_offsets":[16,16]}}}})", good_entry),
         "duplicate tensor 'w'");

  const auto second = [&](std::string id, std::string_view fields, std::string_view error) {
    header(std::move(id), fmt::format(R"({{"v":{},"w":{}}})", good_entry, fields), error);
  };
  header("elements_over_64_bits", entry(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
         "tensor 'w': shape 4294967296 x 4294967296 of U8 exceeds 64 bits");
  header("elements_over_64_bits_then_zero",
         entry(R"({"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]})"),
         "tensor 'w': shape 4294967296 x 4294967296 x 0 of U8 exceeds 64 bits");
  header("bits_over_64_bits", entry(R"({"dtype":"U8","shape":[2305843009213693960],"data_offsets":[0,8]})"),
         "tensor 'w': shape 2305843009213693960 of U8 exceeds 64 bits");
  header("half_a_byte", entry(R"({"dtype":"F4","shape":[31],"data_offsets":[0,16]})"),
         "tensor 'w': shape 31 of dtype F4 is not a whole number of bytes");
  header("covers_more", entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,16]})"),
         "tensor 'w': shape 3 of F32 takes 12 bytes, data_offsets cover 16");
  header("covers_less", entry(R"({"dtype":"F32","shape":[5],"data_offsets":[0,16]})"),
         "tensor 'w': shape 5 of F32 takes 20 bytes, data_offsets cover 16");
  header("reversed", entry(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})"),
         "tensor 'w': data_offsets [16, 0] end before they begin");
  header("first_not_zero", entry(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"),
         "tensor 'w': data_offsets begin at 4, the data before it ends at 0");
  second("hole", R"({"dtype":"F32","shape":[0],"data_offsets":[20,20]})",
         "tensor 'w': data_offsets begin at 20, the data before it ends at 16");
  second("overlap", R"({"dtype":"F32","shape":[1],"data_offsets":[12,16]})",
         "tensor 'w': data_offsets begin at 12, the data before it ends at 16");
  second("begin_wraps", R"({"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]})",
         "tensor 'w': data_offsets begin at 18446744073709551614, the data before it ends at 16");
  header("past_end", entry(R"({"dtype":"F32","shape":[5],"data_offsets":[0,20]})"),
         "tensor 'w': data ends at byte 83, file has 79");
  header("far_past_end",
         entry(R"({"dtype":"U8","shape":[2305843009213693951],"data_offsets":[0,2305843009213693951]})"),
         "tensor 'w': data ends at byte 2305843009213694048, file has 113");
  header("trailing", entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"),
         "data ends at byte 75, file has 79");

  add("lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
      "is a Git LFS pointer, not the weights: run git lfs pull");
  add("html", "<!DOCTYPE html><html></html>", "is a web page, not the weights: the download failed");
  add("zip", "PK\x03\x04" + sixteen_bytes, "is a zip archive (torch.save?): torch files are not supported yet");
  add("pickle", "\x80\x02}q\x01." + sixteen_bytes, "is a pickle (torch.save?): torch files are not supported yet");
  add("gguf", "GGUF\x03" + sixteen_bytes, "is a GGUF file: GGUF files are not supported yet");
  all.push_back({"other_file",
                 {{"notes.txt", "some text, nothing else"}},
                 "notes.txt",
                 "notes.txt: is not a weight file: it does not begin like safetensors"});
  return all;
}

std::vector<Corrupt> corrupt_directories() {
  const std::string index_name = "model.safetensors.index.json";
  const std::map<std::string, std::string> shards{{"a.safetensors", safetensors_with({"x"})},
                                                  {"b.safetensors", safetensors_with({"y"})}};
  std::vector<Corrupt> all;
  const auto index = [&](std::string id, const std::string& text, std::string_view error) {
    auto files = shards;
    files[index_name] = text;
    all.push_back({std::move(id), std::move(files), "", std::string(error)});
  };
  const auto in_index = [&](std::string id, const std::string& text, std::string_view error) {
    index(std::move(id), text, index_name + ": " + std::string(error));
  };
  const auto named = [&](std::string id, const std::string& shard, const std::string& shown) {
    in_index(std::move(id), fmt::format(R"({{"weight_map":{{"x":"{}"}}}})", shard),
             fmt::format("weight_map: tensor 'x' is in '{}', which does not name a file in the same directory", shown));
  };

  in_index("index_empty", "", "not JSON from byte 0 on");
  in_index("index_array", "[]", "is an array, not an object");
  in_index("index_number", "1", "is a number, not an object");
  in_index("index_deep", R"({"metadata":)" + repeat("[", 128) + repeat("]", 128) + "}",
           "nested deeper than 128 levels");
  in_index("no_weight_map", R"({"metadata":{"weight_map":{"x":"a.safetensors"}}})", "has no weight_map");
  in_index("weight_map_list", R"({"weight_map":["a.safetensors"]})", "weight_map is an array, not an object");
  in_index("weight_map_null", R"({"weight_map":null})", "weight_map is null, not an object");
  in_index("weight_map_empty", R"({"weight_map":{}})", "weight_map is empty");
  in_index("weight_map_twice", R"({"weight_map":{"x":"a.safetensors"},"weight_map":{}})", "duplicate key 'weight_map'");
  in_index("shard_number", R"({"weight_map":{"x":1}})", "weight_map: tensor 'x' is in a number, not in a file");
  in_index("shard_object", R"({"weight_map":{"x":{}}})", "weight_map: tensor 'x' is in an object, not in a file");
  in_index("shard_list", R"({"weight_map":{"x":[]}})", "weight_map: tensor 'x' is in an array, not in a file");
  in_index("tensor_twice", R"({"weight_map":{"x":"a.safetensors","x":"b.safetensors"}})",
           "weight_map: duplicate tensor 'x'");
  named("shard_empty", "", "");
  named("shard_dot", ".", ".");
  named("shard_dot_dot", "..", "..");
  named("shard_traversal", "../a.safetensors", "../a.safetensors");
  named("shard_absolute", "/dev/null", "/dev/null");
  named("shard_inside", "x/../a.safetensors", "x/../a.safetensors");
  named("shard_backslash", R"(..\\a.safetensors)", R"(..\\a.safetensors)");
  named("shard_nul", R"(a.safetensors\u0000)", R"(a.safetensors\x00)");
  named("shard_long", std::string(256, 'a'), std::string(38, 'a') + "..." + std::string(39, 'a'));

  index("shard_missing", R"({"weight_map":{"x":"c.safetensors"}})",
        "c.safetensors: cannot open: No such file or directory");
  index("tensor_in_other_shard", R"({"weight_map":{"x":"a.safetensors","y":"a.safetensors"}})",
        "a.safetensors: has no tensor 'y', which model.safetensors.index.json lists");
  index("tensor_swapped", R"({"weight_map":{"y":"a.safetensors","x":"b.safetensors"}})",
        "a.safetensors: has no tensor 'y', which model.safetensors.index.json lists");
  index("index_is_shard", R"({"weight_map":{"x":"model.safetensors.index.json"}})",
        "model.safetensors.index.json: is not a weight file: it does not begin like safetensors");
  all.push_back({"tensor_in_two_shards",
                 {{"a.safetensors", safetensors_with({"x"})},
                  {"b.safetensors", safetensors_with({"x", "y"})},
                  {index_name, R"({"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})"}},
                 "",
                 "b.safetensors: duplicate tensor 'x': it is in 'a.safetensors' too"});
  all.push_back({"shard_truncated",
                 {{"a.safetensors", safetensors_with({"x"}).substr(0, 70)},
                  {index_name, R"({"weight_map":{"x":"a.safetensors"}})"}},
                 "",
                 "a.safetensors: tensor 'x': data ends at byte 79, file has 70"});

  const std::string neither = "DIR: has neither model.safetensors nor model.safetensors.index.json";
  all.push_back({"no_weights", {{"README.md", "hi"}}, "", neither});
  all.push_back({"torch_only",
                 {{"pytorch_model.bin", "PK"}, {"model.gguf", "GGUF"}},
                 "",
                 neither + "; torch files are not supported yet"});
  all.push_back({"gguf_only", {{"model.gguf", "GGUF"}}, "", neither + "; GGUF files are not supported yet"});
  all.push_back({"lora",
                 {{"adapter_config.json", "{}"}, {"adapter_model.safetensors", ""}},
                 "",
                 "DIR: is an adapter, not a model: it has to be merged into its base model first"});
  all.push_back({"pipeline",
                 {{"model_index.json", "{}"}, {"a.bin", ""}},
                 "",
                 "DIR: is a pipeline of diffusers: none of its folders has weights in safetensors"});
  all.push_back({"other_safetensors",
                 {{"z.safetensors", ""}, {"c.safetensors", ""}},
                 "",
                 neither + "; to open 'c.safetensors', name the file itself"});
  all.push_back({"quantized_4_bit",
                 {{"model.safetensors", safetensors_with({"a", "w.quant_state.bitsandbytes__nf4"})}},
                 "",
                 "model.safetensors: tensor 'w.quant_state.bitsandbytes__nf4': quantized already by bitsandbytes; "
                 "plain weights are needed, such as the original model's"});
  all.push_back({"quantized_8_bit",
                 {{"q.safetensors", safetensors_with({"p.SCB"})}},
                 "q.safetensors",
                 "q.safetensors: tensor 'p.SCB': quantized already by bitsandbytes; plain weights are "
                 "needed, such as the original model's"});
  return all;
}

std::vector<Corrupt> corrupt_configs() {
  std::vector<Corrupt> all;
  const auto add = [&](std::string id, std::string text, std::string_view error) {
    all.push_back({std::move(id),
                   {{"config.json", std::move(text)}, {"model.safetensors", safetensors_with({"w"})}},
                   "",
                   "config.json: " + std::string(error)});
  };
  const auto json = [&](std::string id, std::string text, std::size_t at, std::string_view expected) {
    add(std::move(id), std::move(text), fmt::format("not JSON from byte {} on: {}", at, expected));
  };
  add("empty", "", "is empty");
  add("only_spaces", " \n", "is empty");
  add("array", "[1,2]", "is not a JSON object");
  add("byte_order_mark", "\xEF\xBB\xBF{}", "begins with a byte-order mark");
  add("not_utf8", "{\"a\":\"\xFF\"}", "not UTF-8 at byte 6");
  add("deep", repeat("{\"a\":", 129) + "1" + repeat("}", 129), "nested deeper than 128 levels");
  add("deep_array", "{\"a\":" + repeat("[", 128) + repeat("]", 128) + "}", "nested deeper than 128 levels");
  add("duplicate", R"({"a":1,"b":2,"\u0061":3})", "duplicate key 'a'");
  json("unclosed", "{", 1, "expected a key in double quotes");
  json("single_quotes", "{'a': 1}", 1, "expected a key in double quotes");
  json("trailing_comma", R"({"a":1,})", 7, "expected a key in double quotes");
  json("trailing_comma_in_array", R"({"a":[1,]})", 8, "expected a value");
  json("no_colon", R"({"a" 1})", 5, "expected ':'");
  json("no_comma", R"({"a":1 "b":2})", 7, "expected ',' or '}'");
  json("no_comma_in_array", R"({"a":[1 2]})", 8, "expected ',' or ']'");
  json("no_value", R"({"a":})", 5, "expected a value");
  json("python_literal", R"({"a":True})", 5, "expected a value");
  json("trailing_text", "{} x", 3, "something after the end");
  json("nul", std::string("{}\0", 3), 2, "something after the end");
  json("leading_zero", R"({"a":01})", 6, "expected ',' or '}'");
  json("lone_minus", R"({"a":-})", 6, "expected a digit");
  json("no_fraction", R"({"a":1.})", 7, "expected a digit");
  json("no_exponent", R"({"a":1e+})", 8, "expected a digit");
  json("open_string", R"({"a)", 3, "a string without end");
  json("control_character", "{\"a\n\":1}", 3, "a control character in a string");
  json("unknown_escape", R"({"\x":1})", 3, "an unknown escape");
  json("short_escape", R"({"\u12":1})", 6, "expected four hexadecimal digits");

  const auto quantized = [&](std::string id, std::string_view text, std::string_view error) {
    add(std::move(id), fmt::format(R"({{"model_type":"llama","quantization_config":{}}})", text), error);
  };
  const std::string hint = "; plain weights are needed, such as the original model's";
  quantized("bitsandbytes", R"({"quant_method":"bitsandbytes"})", "quantized already by bitsandbytes" + hint);
  quantized("bitsandbytes_unnamed", R"({"load_in_8bit": true})", "quantized already by bitsandbytes" + hint);
  quantized("gptq", R"({"quant_method":"gptq","bits":4})", "quantized already: quant_method 'gptq' is not supported");
  quantized("unnamed", "{}", "quantized already: 'quantization_config' does not say by which quant_method");
  quantized("not_an_object", "4", "quantization_config is not an object");
  add("in_text_config", R"({"text_config":{"quantization_config":{"quant_method":"awq"}}})",
      "quantized already: quant_method 'awq' is not supported");
  add("compression_config", R"({"compression_config":{"quant_method":"quark"}})",
      "quantized already: quant_method 'quark' is not supported");
  return all;
}

}  // namespace nibble::test
