#include "formats/commit/replaceable.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/files/file.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::replaceable_test {
namespace {

using Names = std::vector<std::string>;

TEST(Replaceable, FilesOfAModelAreKnownByTheirNames) {
  for (const char* const name :
       {"config.json", "nibble.json", "tokenizer.json", "vocab.txt", "added_tokens.json", "model.safetensors",
        "model-00001-of-00002.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
        "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json", "diffusion_pytorch_model.safetensors"})
    EXPECT_TRUE(is_model_file(name)) << name;
  for (const char* const name :
       {"README.md", "config.json.bak", "my.bin", "notes.index.json", "vocab", "thesis.tex", ".gitattributes",
        ".model.safetensors", "modeling.py", "adapter_model.safetensors", "adapter_config.json"})
    EXPECT_FALSE(is_model_file(name)) << name;
}

TEST(Replaceable, HiddenEntriesAndOthersStay) {
  const test::TempDir root;
  for (const char* const name : {"config.json", "README.md", "thesis.tex", ".gitattributes"})
    (void)root.write(name, "");
  for (const char* const folder : {".git", "extra", "model.safetensors", "notes"}) {
    std::filesystem::create_directory(root.path() / folder);
    (void)root.write(std::string(folder) + "/file", "");
  }
  const Descriptor directory(open(root.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto found = [&](const Names& fresh) {
    return replaceable(directory.get(), test::entries_of(root.path()), fresh, "out");
  };
  EXPECT_EQ(found({}).entries, Names{"config.json"});
  EXPECT_EQ(found({}).lost, "");
  EXPECT_EQ(found({"README.md", ".git", ".gitattributes", "extra", "extra/file"}).entries,
            (Names{"README.md", "config.json", "extra"}));
  EXPECT_EQ(found({"extra", "extra/file"}).lost, "");
  EXPECT_EQ(found({"extra", "extra/other"}).lost, "extra/file");
  EXPECT_EQ(found({"extra"}).lost, "extra/file");                          // a file of that name
  EXPECT_EQ(found({"model.safetensors"}).lost, "model.safetensors/file");  // a folder is no file of a model
}

}  // namespace
}  // namespace nibble::replaceable_test
