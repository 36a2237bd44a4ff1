#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "nibble/c_api.h"

/// What the tests of the C interface share. They know it as any program does: by its header and libnibble.so.
namespace nibble::c_api_test {

/// More than anything has.
inline constexpr std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();

/// What the last failure said. A failure that says nothing, or more than a line, fails the test.
inline std::string message() {
  std::string text = nibble_error_message();
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  return text;
}

/// An array whose bytes are 0xA5 until somebody writes them, with a few more bytes after it that nobody may write.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes), room_(bytes + slack, fill) {}

  [[nodiscard]] nibble_array array() { return {room_.data(), bytes_}; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] bool untouched() const { return room_ == std::vector<unsigned char>(room_.size(), fill); }
  [[nodiscard]] bool kept_inside() const {
    return std::vector<unsigned char>(room_.begin() + static_cast<std::ptrdiff_t>(bytes_), room_.end()) ==
           std::vector<unsigned char>(slack, fill);
  }
  void randomize(std::mt19937_64& random) {
    for (std::size_t i = 0; i < bytes_; ++i) room_[i] = static_cast<unsigned char>(random());
  }

 private:
  static constexpr std::size_t slack = 16;
  static constexpr unsigned char fill = 0xA5;
  std::size_t bytes_;
  std::vector<unsigned char> room_;  // as malloc aligns it
};

/// A folder that is the working directory, and is gone at the end of the test.
class WorkFolder {
 public:
  WorkFolder() : before_(std::filesystem::current_path()) {
    std::string name = std::filesystem::temp_directory_path() / "nibble_c_api_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::filesystem::filesystem_error("mkdtemp", {});
    path_ = name;
    std::filesystem::current_path(path_);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder() {
    std::filesystem::current_path(before_);
    std::filesystem::remove_all(path_);
  }

  /// A safetensors file with one fp32 matrix [64, 64], "layer.weight".
  static void write_checkpoint(const std::string& name) {
    std::string header = R"({"layer.weight":{"dtype":"F32","shape":[64,64],"data_offsets":[0,16384]}})";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::uint64_t size = header.size();
    std::vector<float> weights(64 * 64);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 97) - 48.0f;
    std::ofstream file(name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), sizeof size)
        .write(header.data(), static_cast<std::streamsize>(size));
    file.write(reinterpret_cast<const char*>(weights.data()), 16384);
  }

 private:
  std::filesystem::path before_, path_;
};

/// One of the values.
template <class T> T any(std::mt19937_64& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

}  // namespace nibble::c_api_test
