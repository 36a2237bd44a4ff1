#include "formats/commit/output_name.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::output_name_test {
namespace {

namespace fs = std::filesystem;

class OutputName : public testing::Test {
 protected:
  OutputName() {
    root_.write("model/model.safetensors", test::safetensors_with({"a"}));
    root_.write("model/config.json", "{}");
    root_.write("it's.safetensors", test::safetensors_with({"a"}));
    fs::create_directory(root_.path() / "folder");
    directory_ = open_checkpoint(root_.path() / "model");
    file_ = open_checkpoint(root_.path() / "it's.safetensors");
  }

  // Why the name is refused, without the name; empty if it is not. Throws if the error names another output.
  std::string refusal(const Reader& in, const std::string& out) const {
    const std::string error = test::error_of([&] { check_output_name(out, in); }, Errc::usage);
    const std::string name = "output '" + escaped(out) + "': ";
    if (!error.empty() && !error.starts_with(name)) throw std::runtime_error(error);
    return error.empty() ? error : error.substr(name.size());
  }
  std::string at(const std::string& name) const { return (root_.path() / name).native(); }

  test::TempDir root_;
  std::unique_ptr<Reader> directory_, file_;
  const std::string a_file_ =
      "the input '" + escaped(at("it's.safetensors")) + "' is a file, so the output is a file, too: ";
  const std::string a_folder_ =
      "is a directory, but the input '" + escaped(at("it's.safetensors")) + "' is a file: name a file for the output";
};

TEST_F(OutputName, NamesOfModelsHaveDots) {
  for (const std::string out : {"out", "./out", "/abs/out", "Llama-3.1-8B", "v0.1", "a.b", ".hidden", "bin", "gguf",
                                "x.gguf-nf4", "m.gguf.d", "out.gguf/model", "..", "\xFF"}) {
    EXPECT_EQ(refusal(*directory_, out), "") << out;
    EXPECT_EQ(refusal(*file_, out == ".." ? "a.safetensors" : out), "") << out;
  }
}

TEST_F(OutputName, EmptyIsNoName) {
  for (const Reader* const in : {directory_.get(), file_.get()}) EXPECT_EQ(refusal(*in, ""), "is empty");
}

// The system would take what stands before it for the name.
TEST_F(OutputName, HasNoNulByte) {
  for (const Reader* const in : {directory_.get(), file_.get()})
    EXPECT_EQ(refusal(*in, std::string("out\0name", 8)), "contains a NUL byte");
}

// In any case, and of a directory with a slash, too.
TEST_F(OutputName, WhatOtherToolsWriteIsRefused) {
  for (const Reader* const in : {directory_.get(), file_.get()}) {
    for (const std::string ending :
         {".gguf",    ".ggml", ".bin",   ".pt",   ".pth", ".ckpt", ".pkl",  ".onnx", ".h5", ".pb",  ".tflite",
          ".msgpack", ".npy",  ".npz",   ".zip",  ".tar", ".tgz",  ".gz",   ".bz2",  ".xz", ".zst", ".7z",
          ".json",    ".yaml", ".jsonl", ".toml", ".yml", ".txt",  ".html", ".md",   ".csv"})
      EXPECT_EQ(refusal(*in, "out" + ending), "nibble writes safetensors, not " + ending);
    for (const std::string out :
         {"Out.GGUF", "o.gGuF", "out.gguf/", "out.gguf//", "folder/.gguf", "a.safetensors.gguf"})
      EXPECT_EQ(refusal(*in, out), "nibble writes safetensors, not .gguf") << out;
    EXPECT_EQ(refusal(*in, "model.tar.gz"), "nibble writes safetensors, not .gz");
    EXPECT_EQ(refusal(*in, "model.safetensors.index.json"), "nibble writes safetensors, not .json");
  }
}

TEST_F(OutputName, ADirectoryBecomesADirectory) {
  for (const std::string out : {"out.safetensors", "out.SafeTensors", "out.safetensors/"})
    EXPECT_EQ(refusal(*directory_, out),
              "the input '" + at("model") +
                  "' is a directory, so the output is a directory, too: its name must not end in "
                  ".safetensors")
        << out;
  for (const std::string& out : {std::string("out/"), std::string("out//"), at("folder"), std::string("/")})
    EXPECT_EQ(refusal(*directory_, out), "") << out;
}

TEST_F(OutputName, AFileBecomesAFile) {
  for (const std::string out : {"out/", "out.safetensors/", "out//", "/"})
    EXPECT_EQ(refusal(*file_, out), a_file_ + "its name must not end in /") << out;
  EXPECT_EQ(refusal(*file_, at("folder")), a_folder_);
  fs::create_directory_symlink(at("folder"), at("link"));
  EXPECT_EQ(refusal(*file_, at("link")), a_folder_);
  for (const std::string& out : {std::string("out.safetensors"), at("it's.safetensors"), at("missing/out")})
    EXPECT_EQ(refusal(*file_, out), "") << out;
}

// One line, whatever the name is.
TEST_F(OutputName, IsEscapedInErrors) {
  EXPECT_EQ(test::error_of([&] { check_output_name("a\nb'\xFF.bin", *file_); }, Errc::usage),
            R"(output 'a\nb\'\xff.bin': nibble writes safetensors, not .bin)");
}

}  // namespace
}  // namespace nibble::output_name_test
