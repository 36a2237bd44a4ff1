// What a run can resume after a power cut: everything that was flushed with the log.

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/file.hpp"
#include "formats/commit/writer.hpp"
#include "nibble/checkpoint.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/crash.hpp"
#include "tests/support/plain_parts.hpp"

namespace nibble::resume_crash_test {
namespace {

namespace fs = std::filesystem;

class ResumeCrashTest : public testing::Test {
 protected:
  ResumeCrashTest() {
    (void)away_.write("in/model.safetensors", test::safetensors_with({"a"}));
    in_ = open_checkpoint(away_.path() / "in");
    bytes_.resize(in_->tensors()[0].bytes());
    in_->read(0, 0, bytes_);
  }
  [[nodiscard]] std::unique_ptr<Writer> writer(bool resume, std::chrono::milliseconds interval) const {
    return create_checkpoint(root_.path() / "out", *in_, {.bytes = 16, .resume = resume, .flush_interval = interval});
  }
  static WorkLog* begin(Writer& writer) {
    return writer.begin_log("head", [](std::string_view) { return std::string(); });
  }

  // Finishes a tensor and dies, with the loss of everything that was not flushed.
  void crash(std::chrono::milliseconds interval) const {
    fs::create_directory(lost_);
    const test::Fate fate = test::run_and_crash({.loss = 1, .before = "create never"}, lost_, [&] {
      const auto out = writer(false, interval);
      WorkLog* const log = begin(*out);
      const test::PlainParts parts(in_->tensors());
      out->begin(0, parts);
      out->write(0, 0, bytes_);
      log->append("a");
      out->flush_log();
      const Directory root(root_.path());
      const OutputFile never(root.fd(), "never", "never");
    });
    EXPECT_TRUE(fate == test::Fate::crashed || fate == test::Fate::no_more) << static_cast<int>(fate);
  }
  // Whether another run finds the record, and the bytes that it is about.
  [[nodiscard]] bool is_found() const {
    const auto out = writer(true, {});
    WorkLog* const log = begin(*out);
    if (log->read() != "a") return false;
    std::vector<std::byte> found(bytes_.size());
    const test::PlainParts parts(in_->tensors());
    return out->reopen(0, parts) && out->read(0, 0, found) && found == bytes_;
  }

  static fs::path folder() { return fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path(); }
  test::TempDir root_{folder()}, away_{folder()};
  fs::path lost_ = away_.path() / "lost";
  std::unique_ptr<const Reader> in_;
  std::vector<std::byte> bytes_;
};

TEST_F(ResumeCrashTest, WhatWasFlushedIsThereAfterAPowerCut) {
  crash({});
  EXPECT_TRUE(is_found());
}

TEST_F(ResumeCrashTest, BeforeTheIntervalHasPassedNothingIsFlushed) {
  crash(std::chrono::hours(1));
  EXPECT_FALSE(is_found());
}

}  // namespace
}  // namespace nibble::resume_crash_test
