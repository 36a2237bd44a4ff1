#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "nibble/convert.hpp"
#include "nibble/error.hpp"
#include "quant/jobs/convert/convert.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::planned_conversion_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::recipe;

class PlannedConversionTest : public testing::Test {
 protected:
  PlannedConversionTest() {
    const std::string header = R"({"layer.weight":{"dtype":"F32","shape":[64,64],"data_offsets":[0,16384]}})";
    const std::uint64_t size = header.size();
    std::ofstream file(in_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), sizeof size) << header << std::string(16'384, '\x3c');
  }

  [[nodiscard]] std::string refused(const fs::path& out, Errc code = Errc::usage) const {
    return error_of([&] { (void)PlannedConversion(in_, out, recipe("nf4")); }, code);
  }

  const test::TempDir root_;
  const fs::path in_ = root_.path() / "in.safetensors", out_ = root_.path() / "out.safetensors";
};

TEST_F(PlannedConversionTest, OneCallWritesWhatTheStepsWrite) {
  const Report report = convert(in_, out_, recipe("nf4"));
  EXPECT_EQ(report.plan.tensors.size(), 1U);
  EXPECT_EQ(report.remains, "");

  const fs::path other = root_.path() / "other.safetensors";
  const auto in = open_checkpoint(in_);
  Plan plan = make_plan(*in, recipe("nf4"));
  const auto out = create_checkpoint(other, *in, {.bytes = plan.stored_bytes()});
  Progress silent;
  (void)convert(*in, std::move(plan), *out, {}, silent);
  EXPECT_EQ(test::read_file(out_), test::read_file(other));
}

TEST_F(PlannedConversionTest, SaysWhatItIsGoingToDo) {
  const PlannedConversion conversion(in_, out_, recipe("nf4"), {.resources = {.threads = 3}});
  EXPECT_EQ(conversion.input().path(), in_);
  EXPECT_EQ(conversion.plan().tensors[0].info.name, "layer.weight");
  EXPECT_EQ(conversion.memory().threads, 3U);
  EXPECT_EQ(conversion.device(), nullptr);
  conversion.check_output();
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(PlannedConversionTest, ProgressIsToldAndMayStopIt) {
  class Cancel final : public Progress {
   public:
    [[nodiscard]] bool cancelled() const override { return true; }
  } cancel;
  EXPECT_EQ(error_of([&] { (void)convert(in_, out_, recipe("nf4"), {}, cancel); }, Errc::interrupted),
            "interrupted: no output was written");
  EXPECT_FALSE(fs::exists(out_));
}

// With --overwrite, too: what was there is there. Beside it is what another run resumes.
TEST_F(PlannedConversionTest, CancelledAtTheEndLeavesTheOldOutput) {
  class Cancel final : public Progress {
   public:
    void ready(const Report& /*report*/) override { is_ready_ = true; }
    [[nodiscard]] bool cancelled() const override { return is_ready_; }

   private:
    bool is_ready_ = false;
  } cancel;
  (void)convert(in_, out_, recipe("nf4"));
  const auto entries = test::entries_of(root_.path());
  const std::string before = test::read_file(out_);
  EXPECT_EQ(error_of([&] { (void)convert(in_, out_, recipe("fp4"), {.overwrite = true}, cancel); }, Errc::interrupted),
            "interrupted: no output was written, and what is finished stays in " +
                (root_.path() / ".out.safetensors.nibble").string());
  EXPECT_EQ(test::read_file(out_), before);
  fs::remove_all(root_.path() / ".out.safetensors.nibble");
  EXPECT_EQ(test::entries_of(root_.path()), entries);
}

TEST_F(PlannedConversionTest, OutputsStayUnlessTheyMayBeReplaced) {
  (void)convert(in_, out_, recipe("nf4"));
  const std::string before = test::read_file(out_);
  const PlannedConversion again(in_, out_, recipe("fp4"));
  EXPECT_NE(error_of([&] { again.check_output(); }, Errc::output_exists), "");
  EXPECT_NE(error_of([&] { (void)convert(in_, out_, recipe("fp4")); }, Errc::output_exists), "");
  EXPECT_EQ(test::read_file(out_), before);
  (void)convert(in_, out_, recipe("fp4"), {.overwrite = true});
  EXPECT_NE(test::read_file(out_), before);
}

// What the name says is what is written.
TEST_F(PlannedConversionTest, NamesThatSayOtherwiseAreRefused) {
  EXPECT_EQ(refused(""), "output '': is empty");
  EXPECT_EQ(refused(root_.path() / "out.gguf"),
            "output '" + (root_.path() / "out.gguf").string() + "': nibble writes safetensors, not .gguf");
  const std::string is_file = "': the input '" + in_.string() + "' is a file, so the output is a file, too: ";
  EXPECT_EQ(refused(root_.path() / "out/"),
            "output '" + (root_.path() / "out/").string() + is_file + "its name must not end in /");
  EXPECT_EQ(refused(root_.path()), "output '" + root_.path().string() + "': is a directory, but the input '" +
                                       in_.string() + "' is a file: name a file for the output");
}

// A device is opened when it is needed, and only if there is enough to do.
TEST_F(PlannedConversionTest, LittleWorkIsLeftToTheCpu) {
  const PlannedConversion conversion(in_, out_, recipe("nf4"), {.device = DeviceChoice::automatic});
  EXPECT_EQ(conversion.device(), nullptr);
}

}  // namespace
}  // namespace nibble::planned_conversion_test
