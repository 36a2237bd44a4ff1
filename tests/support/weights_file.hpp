#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nibble/tensor.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::test {

/// A safetensors file, made tensor by tensor.
class WeightsFile {
 public:
  void add(const std::string& name, DType dtype, const Shape& shape, const std::vector<float>& weights) {
    add_bytes(name, dtype, shape, stored_as(dtype, weights));
  }
  void add_bytes(const std::string& name, DType dtype, const Shape& shape, const Bytes& bytes) {
    header_[name] = {
        {"dtype", traits(dtype).name}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  [[nodiscard]] std::string bytes() const { return safetensors_file(header_.dump(), data_); }

 private:
  nlohmann::ordered_json header_;
  std::string data_;
};

}  // namespace nibble::test
