// What may come to harm by writing a report; what is in one is shown by tests/cli/measurement/html_report_test.cpp.

#include "cli/measurement/report_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"

namespace nibble::cli::report_file_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::read_file;
using testing::HasSubstr;

constexpr std::string_view page = "<html><meta name=\"generator\" content=\"nibble measure\">one";

class ReportFileTest : public testing::Test {
 protected:
  std::string refusal(Errc code = Errc::output_exists) const {
    return error_of([&] { const ReportFile report(report_); }, code);
  }
  std::vector<std::string> files() const { return test::entries_of(root_.path()); }

  test::TempDir root_;
  fs::path report_ = root_.path() / "report.html";
};

TEST_F(ReportFileTest, AppearsWhole) {
  {
    ReportFile report(report_);
    EXPECT_FALSE(fs::exists(report_));
    EXPECT_THAT(report.write(page), testing::IsEmpty());
  }
  EXPECT_EQ(read_file(report_), page);
  EXPECT_EQ(files(), std::vector<std::string>{"report.html"});
}

TEST_F(ReportFileTest, ReplacesReportsAndEmptyFiles) {
  for (const std::string_view old : {std::string_view(), page}) {
    (void)root_.write("report.html", old);
    (void)ReportFile(report_).write(std::string(page) + "two");
    EXPECT_EQ(read_file(report_), std::string(page) + "two");
  }
}

// The manifest of a model that bears the same name is not the report's.
TEST_F(ReportFileTest, ReplacesNothingElse) {
  (void)root_.write("report.html.nibble.json", "mine");
  (void)root_.write("report.html", "<html>mine");
  EXPECT_THAT(refusal(), HasSubstr("exists and does not look like a file that nibble wrote: remove it first"));
  EXPECT_EQ(read_file(report_), "<html>mine");
  fs::remove(report_);
  (void)ReportFile(report_).write(page);
  EXPECT_EQ(read_file(root_.path() / "report.html.nibble.json"), "mine");
}

TEST_F(ReportFileTest, WhatAppearsMeanwhileIsSpared) {
  ReportFile report(report_);
  (void)root_.write("report.html", "mine");
  EXPECT_NE(error_of([&] { (void)report.write(page); }, Errc::output_exists), "");
  EXPECT_EQ(read_file(report_), "mine");
}

TEST_F(ReportFileTest, LinksPipesAndDirectoriesAreInTheWay) {
  fs::create_symlink("elsewhere", report_);
  EXPECT_THAT(refusal(), HasSubstr("is not a regular file"));
  fs::remove(report_);
  ASSERT_EQ(mkfifo(report_.c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("is not a regular file"));
  fs::remove(report_);
  fs::create_directory(report_);
  EXPECT_THAT(refusal(), HasSubstr("is not a regular file"));
  EXPECT_EQ(files(), std::vector<std::string>{"report.html"});
}

// As users meet it: before hours of measuring, and with the input whole.
class ReportProgram : public ReportFileTest {
 protected:
  ReportProgram() {
    const std::string header = R"({"layer.weight":{"dtype":"F32","shape":[4,64],"data_offsets":[0,1024]}})";
    (void)root_.write("w.safetensors", test::safetensors_file(header, std::string(1024, '\x3f')));
    fs::create_directory(root_.path() / "model");
    fs::copy(root_.path() / "w.safetensors", root_.path() / "model" / "model.safetensors");
    (void)root_.write("model/config.json", "{}");
  }
  test::Outcome run(const std::string& arguments, const std::string& environment = {}) const {
    return test::run_program(root_.path(), "measure " + arguments, environment);
  }
};

TEST_F(ReportProgram, InputsAreNotWrittenOver) {
  const std::string weights = read_file(root_.path() / "w.safetensors");
  for (const char* const arguments :
       {"w.safetensors --to nf4 --html w.safetensors", "model w.safetensors --html w.safetensors",
        "w.safetensors --to nf4 --html ./model/../w.safetensors", "model --to nf4 --html model/config.json",
        "w.safetensors model --html model/model.safetensors"}) {
    const test::Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr("is part of the input")) << arguments;
  }
  EXPECT_EQ(run("w.safetensors --to nf4 --html model/model.safetensors").code, 6);  // no input, but weights
  EXPECT_EQ(read_file(root_.path() / "w.safetensors"), weights);
  EXPECT_EQ(read_file(root_.path() / "model" / "model.safetensors"), weights);
  EXPECT_EQ(read_file(root_.path() / "model" / "config.json"), "{}");
}

TEST_F(ReportProgram, EmptyNamesAreRefused) { EXPECT_EQ(run("w.safetensors --to nf4 --html ''").code, 2); }

TEST_F(ReportProgram, LinksOfItsFormerNameAreNotFollowed) {
  (void)root_.write("victim", "years of work");
  fs::create_symlink("victim", root_.path() / "report.html.partial");
  EXPECT_EQ(run("w.safetensors --to nf4 --html report.html").code, 0);
  EXPECT_EQ(read_file(root_.path() / "victim"), "years of work");
}

TEST_F(ReportProgram, WhatCannotBeWrittenLeavesNothing) {
  (void)root_.write("report.html", page);
  const std::vector<std::string> before = files();
  EXPECT_EQ(run("w.safetensors --to nf4 --html report.html >/dev/null 2>&1", "ulimit -f 8 &&").code, 4);
  EXPECT_EQ(read_file(report_), page);
  EXPECT_EQ(files(), before);
}

}  // namespace
}  // namespace nibble::cli::report_file_test
