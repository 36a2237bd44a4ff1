#include "tests/support/memory_checkpoint.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>

namespace nibble::test {

void MemoryReader::add(TensorInfo info, std::vector<std::byte> bytes, std::size_t file) {
  if (bytes.size() != info.bytes()) throw std::logic_error(info.name + ": bytes disagree with its shape");
  while (files_.size() <= file) files_.push_back("file" + std::to_string(files_.size()));
  tensors_.push_back(info);
  bytes_.push_back(std::move(bytes));
  file_.push_back(file);
}

void MemoryReader::add_normal(const std::string& name, DType dtype, Shape shape, std::size_t file) {
  TensorInfo info{name, dtype, std::move(shape)};
  std::vector<std::byte> bytes(info.bytes());
  std::normal_distribution<float> normal(0, 0.02F);
  const std::size_t width = traits(dtype).bits / 8;
  if (dtype == DType::f32 || dtype == DType::bf16)
    for (std::size_t i = 0; i < bytes.size(); i += width) {
      const float weight = normal(generator_);
      std::byte raw[4];
      std::memcpy(raw, &weight, 4);
      std::copy_n(raw + 4 - width, width, bytes.data() + i);  // the upper half of an fp32 is a bf16
    }
  add(std::move(info), std::move(bytes), file);
}

void MemoryReader::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  const std::vector<std::byte>& from = bytes_.at(tensor);
  if (offset > from.size() || out.size() > from.size() - offset) throw std::logic_error("read past the end");
  std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
  ++*reads_;
  *bytes_read_ += out.size();
  std::uint64_t largest = *largest_read_;
  while (largest < out.size() && !largest_read_->compare_exchange_weak(largest, out.size())) {
  }
}

namespace {

// Grows as it is written, as a file does.
class GrowingScratch final : public Scratch {
 public:
  void write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const std::scoped_lock lock(mutex_);
    if (bytes_.size() < offset + bytes.size()) bytes_.resize(offset + bytes.size());
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  void read(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) throw std::logic_error("read past the end");
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
  }

 private:
  std::mutex mutex_;
  std::vector<std::byte> bytes_;
};

}  // namespace

std::unique_ptr<Scratch> MemoryWriter::make_scratch() {
  ++scratches_;
  return std::make_unique<GrowingScratch>();
}

void MemoryWriter::begin(std::size_t /*index*/, const PartList& parts) {
  ++begun_;
  infos_.clear();
  current_.clear();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    infos_.push_back(parts[i]);
    current_.emplace_back(infos_.back().bytes(), std::byte{0xee});
  }
}

void MemoryWriter::write(std::size_t part, std::uint64_t offset, std::span<const std::byte> bytes) {
  std::vector<std::byte>& to = current_.at(part);
  if (offset > to.size() || bytes.size() > to.size() - offset) throw std::logic_error("write past the end");
  std::copy(bytes.begin(), bytes.end(), to.begin() + static_cast<std::ptrdiff_t>(offset));
}

void MemoryWriter::end() {
  for (std::size_t i = 0; i < infos_.size(); ++i) ended_[infos_[i].name] = current_[i];
}

}  // namespace nibble::test
