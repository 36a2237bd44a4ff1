// A conversion that was interrupted, and the one that resumes it: the same bytes as of a single one, and nothing on
// disk is believed that cannot be checked. tests/faults/run.py kills conversions at every call of the system. One file,
// because each test interrupts the same conversion, spoils something else, and compares with the same bytes.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/commit/work_log.hpp"
#include "nibble/convert.hpp"
#include "nibble/error.hpp"
#include "quant/jobs/merge/plain_reader.hpp"
#include "tests/support/calibration.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/weights_file.hpp"

namespace nibble::resume_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::recipe;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using Contents = std::map<std::string, std::string>;

constexpr std::size_t side = 64, tensors = 6;

// Stops a conversion when this many batches have been written; each tensor of the model is one.
class StopAfter final : public Progress {
 public:
  explicit StopAfter(std::size_t batches) : left_(batches) {}
  void advance(std::string_view /*tensor*/, std::uint64_t done, std::uint64_t /*total*/) override {
    if (told_.empty() || done > told_.back()) told_.push_back(done);
    if (left_ > 0) --left_;
  }
  [[nodiscard]] bool cancelled() const override { return left_ == 0; }
  [[nodiscard]] const std::vector<std::uint64_t>& told() const { return told_; }

 private:
  std::atomic<std::size_t> left_;
  std::vector<std::uint64_t> told_;
};

// Counts what is read of the weights.
class CountingReader final : public DerivedReader {
 public:
  CountingReader(std::unique_ptr<const Reader> in, std::atomic<std::uint64_t>& bytes)
      : DerivedReader(static_cast<const Reader&>(*in)), in_(std::move(in)), bytes_(bytes) {}
  [[nodiscard]] const TensorList& tensors() const noexcept override { return in_->tensors(); }
  [[nodiscard]] std::size_t file_of(std::size_t tensor) const override { return in_->file_of(tensor); }
  [[nodiscard]] const std::optional<ModelConfig>& config() const noexcept override { return in_->config(); }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override {
    bytes_ += out.size();
    in_->read(tensor, offset, out);
  }

 private:
  std::unique_ptr<const Reader> in_;
  std::atomic<std::uint64_t>& bytes_;
};

class ResumeTest : public testing::Test {
 protected:
  ResumeTest() {
    write_model({});
    (void)root_.write("model/config.json", R"({"model_type": "llama"})");
    (void)root_.write("model/extra/note.txt", "carried over");
  }

  // With NaN in these tensors.
  void write_model(const std::vector<std::size_t>& with_nan) const {
    test::WeightsFile file;
    for (std::size_t i = 0; i < tensors; ++i) {
      std::vector<float> weights = test::normal_weights(side * side, static_cast<unsigned>(i) + 1);
      if (std::ranges::count(with_nan, i) > 0) weights[5] = std::numeric_limits<float>::quiet_NaN();
      file.add("model.layers." + std::to_string(i) + ".mlp.up_proj.weight", DType::f32, {side, side}, weights);
    }
    (void)root_.write("model/model.safetensors", file.bytes());
  }

  static Contents contents_of(const fs::path& path) {
    if (fs::is_regular_file(path)) return {{"", test::read_file(path)}};
    Contents contents;
    if (fs::exists(path))
      for (const auto& entry : fs::recursive_directory_iterator(path))
        if (entry.is_regular_file()) contents[fs::relative(entry.path(), path)] = test::read_file(entry.path());
    return contents;
  }

  // The error of a conversion that stops after so many batches.
  std::string interrupt(const Recipe& how, std::size_t batches, unsigned threads = 1) const {
    StopAfter progress(batches);
    return error_of([&] { (void)convert(in_, out_, how, {.resources = {.threads = threads}}, progress); },
                    Errc::interrupted);
  }
  Report resume(const Recipe& how, unsigned threads = 1) const {
    return convert(in_, out_, how, {.resources = {.threads = threads}, .resume = true});
  }
  std::string refusal(const Recipe& how) const {
    return error_of([&] { (void)resume(how); }, Errc::output_exists);
  }
  // How many tensors of the input a resumed conversion reads.
  std::uint64_t tensors_read(const Recipe& how, bool overwrite = false) const {
    std::atomic<std::uint64_t> bytes = 0;
    (void)PlannedConversion(std::make_unique<CountingReader>(open_checkpoint(in_), bytes), out_, how,
                            {.overwrite = overwrite, .resume = true})
        .run(silent_);
    EXPECT_EQ(bytes % (side * side * 4), 0U);
    return bytes / (side * side * 4);
  }
  // What a run leaves that was interrupted when four of the six tensors were finished.
  void leave() const {
    if (fs::exists(work_)) return;
    EXPECT_NE(interrupt(recipe("nf4"), 4), "") << "it was done before it could be stopped";
  }

  void remove_output() const {
    fs::remove_all(out_);
    fs::remove(out_.string() + ".nibble.json");
  }

  // Interrupts it after every `step` tensors, resumes it, interrupts and resumes it again: the bytes are those of one
  // conversion.
  void expect_same(const Recipe& how, const std::string& what, std::size_t step = 1) {
    remove_output();
    (void)convert(in_, out_, how, {.resources = {.threads = 2}});
    const Contents whole = contents_of(out_);
    remove_output();
    std::size_t interrupted = 0;
    for (std::size_t batches = 1; batches < 100; batches += step) {
      const std::string said = interrupt(how, batches, 1 + batches % 2);
      if (said.empty()) break;
      ++interrupted;
      EXPECT_FALSE(fs::exists(out_)) << what << ", " << batches;
      StopAfter more(2);
      (void)error_of([&] { (void)convert(in_, out_, how, {.resources = {.threads = 2}, .resume = true}, more); },
                     Errc::interrupted);
      if (!fs::exists(out_)) (void)resume(how, 3 - batches % 2);
      EXPECT_EQ(contents_of(out_), whole) << what << ", " << batches;
      EXPECT_FALSE(fs::exists(work_)) << what << ", " << batches;
      remove_output();
    }
    EXPECT_GE(interrupted, 2U) << what;
    remove_output();
  }

  test::TempDir root_{fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path()};
  fs::path in_ = root_.path() / "model", out_ = root_.path() / "out", work_ = root_.path() / ".out.nibble";
  fs::path built_ = work_ / "new" / "model.safetensors";
  mutable Progress silent_;
};

TEST_F(ResumeTest, GivesTheSameBytes) {
  for (const char* const to : {"nf4", "nf4:double-quant=no", "fp4:absmax=search", "int8", "fp16", "bf16", "keep"})
    expect_same(recipe(to), to, 3);
  Recipe tensor_scales = recipe("fp8:scales=tensor");  // reads every tensor twice
  tensor_scales.allow_nibble_only = true;
  expect_same(tensor_scales, "fp8", 5);
}

TEST_F(ResumeTest, GivesTheSameReport) {
  for (const ErrorReport report : {ErrorReport::none, ErrorReport::full}) {
    Recipe how = recipe("nf4");
    how.error_report = report;
    expect_same(how, "report " + std::to_string(static_cast<int>(report)), 3);
  }
  const Report whole = convert(in_, out_, recipe("nf4"));
  fs::remove_all(out_);
  EXPECT_NE(interrupt(recipe("nf4"), 3), "");
  const Report resumed = resume(recipe("nf4"));
  EXPECT_EQ(resumed.findings, whole.findings);
  EXPECT_EQ(resumed.worst.name, whole.worst.name);
  EXPECT_EQ(resumed.worst.sqnr_db, whole.worst.sqnr_db);
  EXPECT_EQ(resumed.totals.quantized.tensors, whole.totals.quantized.tensors);
  EXPECT_EQ(resumed.totals.quantized.error, whole.totals.quantized.error);
}

TEST_F(ResumeTest, InSeveralShards) {
  Recipe how = recipe("nf4");
  how.max_shard_bytes = 5'000;
  expect_same(how, "shards");
  how = recipe("int8");
  how.max_shard_bytes = 10'000;
  expect_same(how, "shards of two", 2);
}

TEST_F(ResumeTest, WithTensorsThatAreNotFinite) {
  write_model({1, 4});
  Recipe how = recipe("nf4");
  expect_same(how, "one shard", 2);
  how.max_shard_bytes = 7'000;
  expect_same(how, "shards");
}

TEST_F(ResumeTest, OfExperts) {
  test::WeightsFile file;
  for (const char* const name : {"down_proj", "gate_up_proj"})
    file.add("model.layers.0.mlp.experts." + std::string(name), DType::f32, {4, side, side},
             test::normal_weights(4 * side * side, 1));
  (void)root_.write("model/model.safetensors", file.bytes());
  (void)root_.write("model/config.json", R"({"architectures": ["Qwen3MoeForCausalLM"]})");
  expect_same(test::with_experts("nf4"), "experts", 3);
}

TEST_F(ResumeTest, Compensated) {
  test::StatisticsMaker maker;
  std::vector<float> moment(side * side);
  for (std::size_t i = 0; i < side; ++i) moment[i * side + i] = static_cast<float>(i + 1);
  maker.add("model.layers.0.mlp.up_proj", std::vector<float>(side, 1.0f), moment);
  maker.add("model.layers.3.mlp.up_proj", std::vector<float>(side, 2.0f), moment);
  for (const char* const layer : {"1", "2"})
    maker.manifest["weights"]["model.layers." + std::string(layer) + ".mlp.up_proj.weight"] = {
        "model.layers.0.mlp.up_proj"};
  Recipe how = recipe("nf4");
  how.calibration = maker.write(root_);
  how.compensate = true;
  expect_same(how, "compensated", 2);

  EXPECT_NE(interrupt(how, 4), "");
  (void)root_.write(how.calibration.filename().string() + "/notes.txt", "of no meaning");
  EXPECT_NE(resume(how).plan.tensors.size(), 0U);
  remove_output();
  EXPECT_NE(interrupt(how, 4), "");
  fs::last_write_time(how.calibration / test::StatisticsMaker::weights_name, fs::file_time_type::clock::now());
  EXPECT_THAT(refusal(how), HasSubstr("it had other calibration statistics"));
}

TEST_F(ResumeTest, IntoAFile) {
  in_ /= "model.safetensors";
  out_ = root_.path() / "out.safetensors";
  work_ = root_.path() / ".out.safetensors.nibble";
  expect_same(recipe("nf4"), "file", 2);
}

TEST_F(ResumeTest, OverAnOldOutput) {
  (void)convert(in_, out_, recipe("nf4"));
  const Contents whole = contents_of(out_);
  for (const bool stays : {false, true}) {
    (void)convert(in_, out_, recipe("int8"), {.overwrite = true});
    if (stays) (void)root_.write("out/.git/HEAD", "mine");  // then it is built in the old output
    const Contents old = contents_of(out_);
    StopAfter progress(3);
    const ConversionOptions options{.resources = {.threads = 1}, .overwrite = true};
    EXPECT_NE(error_of([&] { (void)convert(in_, out_, recipe("nf4"), options, progress); }, Errc::interrupted), "");
    EXPECT_TRUE(fs::exists(stays ? out_ / ".nibble" / "log" : work_ / "log"));
    EXPECT_EQ(tensors_read(recipe("nf4"), true), 3U);
    Contents found = contents_of(out_);
    EXPECT_EQ(found.erase(".git/HEAD"), stays ? 1U : 0U);
    EXPECT_EQ(found, whole);
    EXPECT_FALSE(fs::exists(work_) || fs::exists(out_ / ".nibble"));
  }
}

// What stays in OUT came after the run was interrupted: the work directory is still beside it.
TEST_F(ResumeTest, WhereSomethingHasComeThatStays) {
  (void)convert(in_, out_, recipe("int8"));
  StopAfter progress(4);
  const ConversionOptions options{.resources = {.threads = 1}, .overwrite = true};
  EXPECT_NE(error_of([&] { (void)convert(in_, out_, recipe("nf4"), options, progress); }, Errc::interrupted), "");
  (void)root_.write("out/.git/HEAD", "mine");
  EXPECT_EQ(tensors_read(recipe("nf4"), true), 2U);
  EXPECT_EQ(test::read_file(out_ / ".git/HEAD"), "mine");
  EXPECT_FALSE(fs::exists(work_) || fs::exists(out_ / ".nibble"));
}

TEST_F(ResumeTest, SkipsWhatIsFinished) {
  EXPECT_EQ(tensors_read(recipe("nf4")), tensors);  // nothing to resume
  fs::remove_all(out_);
  EXPECT_THAT(interrupt(recipe("nf4"), 4),
              AllOf(StartsWith("interrupted: no output was written, and what is finished stays in "),
                    testing::EndsWith(".out.nibble")));
  EXPECT_EQ(tensors_read(recipe("nf4")), 2U);
  fs::remove_all(out_);

  EXPECT_NE(interrupt(recipe("nf4"), 4), "");
  StopAfter progress(100);
  (void)convert(in_, out_, recipe("nf4"), {.resume = true}, progress);
  EXPECT_EQ(progress.told().size(), tensors);  // those that were finished, too
}

TEST_F(ResumeTest, SkipsWhatIsFinishedOfAShardThatBeganAgain) {
  write_model({1});
  EXPECT_NE(interrupt(recipe("nf4"), tensors + 4), "");  // it began again after all of them
  EXPECT_EQ(tensors_read(recipe("nf4")), 2U);
}

TEST_F(ResumeTest, TheErrorSaysHow) {
  StopAfter progress(2);
  try {
    (void)convert(in_, out_, recipe("nf4"), {.resources = {.threads = 1}}, progress);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.remedy().kind, Remedy::Kind::resume);
  }
}

TEST_F(ResumeTest, NothingStaysOfARunThatHasFinishedNothing) {
  EXPECT_EQ(interrupt(recipe("nf4"), 0), "interrupted: no output was written");
  EXPECT_FALSE(fs::exists(work_));
}

TEST_F(ResumeTest, ARunThatDoesNotResumeBeginsAgainAndSaysSo) {
  EXPECT_NE(interrupt(recipe("nf4"), 4), "");
  const Report report = convert(in_, out_, recipe("int8"));
  EXPECT_THAT(report.warnings.back().text, HasSubstr("out: what an interrupted run had finished was removed"));
  EXPECT_FALSE(fs::exists(work_));
}

TEST_F(ResumeTest, AnOutputThatExistsIsRefused) {
  (void)convert(in_, out_, recipe("nf4"));
  EXPECT_THAT(refusal(recipe("nf4")), HasSubstr("out: exists"));
}

// Each of these is refused, and nothing is lost: afterwards the right run resumes what is there.
class OtherRunTest : public ResumeTest {
 protected:
  OtherRunTest() {
    (void)convert(in_, out_, recipe("nf4"));
    whole_ = contents_of(out_);
    fs::remove_all(out_);
    leave();
  }
  void expect_refusal(const Recipe& how, const std::string& fact) const {
    const Contents before = contents_of(work_);
    EXPECT_THAT(refusal(how), HasSubstr(fact));
    EXPECT_EQ(contents_of(work_), before);
    EXPECT_FALSE(fs::exists(out_));
  }
  void expect_resumed() const {
    EXPECT_EQ(tensors_read(recipe("nf4")), 2U);
    EXPECT_EQ(contents_of(out_), whole_);
    EXPECT_FALSE(fs::exists(work_));
  }

  Contents whole_;
};

TEST_F(OtherRunTest, OtherOptions) {
  expect_refusal(recipe("fp4"),
                 "the interrupted run cannot be resumed: its recipe has 'to' nf4, and this one's has fp4");
  Recipe other = recipe("nf4");
  other.max_shard_bytes = 1'000'000;
  expect_refusal(other, "its recipe has 'max_shard_size' 5000000000, and this one's has 1000000");
  expect_resumed();
}

TEST_F(OtherRunTest, ChangedInput) {
  const fs::path file = in_ / "model.safetensors";
  const auto time = fs::last_write_time(file);
  fs::last_write_time(file, time + std::chrono::nanoseconds(1));
  expect_refusal(recipe("nf4"),
                 "the input's 'model.safetensors' is another file than it was (its size, time or inode)");
  fs::last_write_time(file, time);
  const std::string bytes = test::read_file(file);
  fs::rename(file, root_.path() / "first");
  (void)root_.write("model/model.safetensors", bytes);
  fs::last_write_time(file, time);
  expect_refusal(recipe("nf4"),
                 "the input's 'model.safetensors' is another file than it was (its size, time or inode)");
  fs::rename(root_.path() / "first", file);
  expect_resumed();
}

// Messages shorten such names in the middle.
TEST_F(ResumeTest, LongNamesAreToldApart) {
  fs::remove(in_ / "model.safetensors");
  std::string map;
  const auto write = [&](char shard) {
    const std::string file = std::string(60, 'x') + shard + std::string(60, 'y') + ".safetensors";
    test::WeightsFile weights;
    for (std::size_t i = shard == '1' ? 0 : tensors / 2; i < (shard == '1' ? tensors / 2 : tensors); ++i) {
      const std::string name = "model.layers." + std::to_string(i) + ".mlp.up_proj.weight";
      weights.add(name, DType::f32, {side, side}, test::normal_weights(side * side, static_cast<unsigned>(i)));
      map += (map.empty() ? "\"" : ", \"") + name + "\": \"" + file + "\"";
    }
    (void)root_.write("model/" + file, weights.bytes());
  };
  write('1');
  write('2');
  (void)root_.write("model/model.safetensors.index.json", R"({"weight_map": {)" + map + "}}");
  leave();
  write('1');
  EXPECT_THAT(refusal(recipe("nf4")), HasSubstr("is another file than it was"));
}

// What the interrupted run has finished is not lost by a run that fails.
TEST_F(OtherRunTest, ARunThatFailsLeavesItThere) {
  class FailingReader final : public DerivedReader {
   public:
    explicit FailingReader(std::unique_ptr<const Reader> in)
        : DerivedReader(static_cast<const Reader&>(*in)), in_(std::move(in)) {}
    [[nodiscard]] const TensorList& tensors() const noexcept override { return in_->tensors(); }
    [[nodiscard]] std::size_t file_of(std::size_t tensor) const override { return in_->file_of(tensor); }
    [[nodiscard]] const std::optional<ModelConfig>& config() const noexcept override { return in_->config(); }
    void read(std::size_t /*tensor*/, std::uint64_t /*offset*/, std::span<std::byte> /*out*/) const override {
      throw Error(Errc::io, "the disk is gone");
    }

   private:
    std::unique_ptr<const Reader> in_;
  };
  PlannedConversion conversion(std::make_unique<FailingReader>(open_checkpoint(in_)), out_, recipe("nf4"),
                               {.resume = true});
  EXPECT_EQ(error_of([&] { (void)std::move(conversion).run(silent_); }, Errc::io), "the disk is gone");
  expect_resumed();
}

// A file system without modes: the next run would not believe what it finds.
TEST_F(ResumeTest, NothingStaysWhereOthersCanEnter) {
  class Opening final : public Progress {
   public:
    explicit Opening(fs::path work) : work_(std::move(work)) {}
    void advance(std::string_view /*tensor*/, std::uint64_t /*done*/, std::uint64_t /*total*/) override {
      if (++told_ == 4) fs::permissions(work_, fs::perms::owner_all | fs::perms::group_exec);
    }
    [[nodiscard]] bool cancelled() const override { return told_ >= 4; }

   private:
    fs::path work_;
    std::atomic<int> told_ = 0;
  } progress(work_);
  EXPECT_EQ(error_of([&] { (void)convert(in_, out_, recipe("nf4"), {.resources = {.threads = 1}}, progress); },
                     Errc::interrupted),
            "interrupted: no output was written");
  EXPECT_FALSE(fs::exists(work_));
}

// Its files are as private as those of a single run.
TEST_F(OtherRunTest, WithAnotherUmask) {
  const mode_t before = umask(077);
  expect_resumed();
  umask(before);
  EXPECT_EQ(fs::status(out_).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(out_ / "model.safetensors").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(OtherRunTest, ALogOfNothingIsNotInTheWay) {
  fs::remove(work_ / "log");
  const Descriptor work(open(work_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  (void)WorkLog(work.get(), "work", "of another run");
  EXPECT_EQ(tensors_read(recipe("nf4")), tensors);
  EXPECT_EQ(contents_of(out_), whole_);
}

TEST_F(OtherRunTest, ChangedConfiguration) {
  (void)root_.write("model/config.json", R"({"model_type": "bert"})");
  EXPECT_THAT(refusal(recipe("nf4")), HasSubstr("the input's 'config.json' is another file than it was"));
}

TEST_F(OtherRunTest, OtherVersion) {
  const Descriptor work(open(work_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  auto log = WorkLog::find(work.get(), "work");
  ASSERT_TRUE(log);
  std::string head = log->head();
  const std::string mine = R"("nibble":")";
  ASSERT_NE(head.find(mine), std::string::npos);
  head.insert(head.find(mine) + mine.size(), "9");
  fs::rename(work_ / "log", root_.path() / "log");
  WorkLog other(work.get(), "work", head);
  while (const auto record = log->read()) other.append(*record);
  expect_refusal(recipe("nf4"), "nibble 9");
  fs::rename(root_.path() / "log", work_ / "log");
  expect_resumed();
}

TEST_F(OtherRunTest, OthersCanEnterItsDirectory) {
  fs::permissions(work_, fs::perms::owner_all | fs::perms::group_exec);
  expect_refusal(recipe("nf4"), ".out.nibble: cannot be resumed: others can enter it");
  fs::permissions(work_, fs::perms::owner_all);
  expect_resumed();
}

TEST_F(OtherRunTest, DamagedLog) {
  const std::string log = test::read_file(work_ / "log");
  std::string damaged = log;
  damaged[50] = static_cast<char>(damaged[50] ^ 1);
  (void)root_.write(".out.nibble/log", damaged);
  expect_refusal(recipe("nf4"), ".out.nibble/log: cannot be resumed: it is damaged");
  (void)root_.write(".out.nibble/log", log);
  expect_resumed();
}

// From the first tensor on whose bytes are others than the log says, everything is converted again.
TEST_F(OtherRunTest, DamagedBytes) {
  const std::string built = test::read_file(built_);
  std::uint64_t length = 0;
  std::memcpy(&length, built.data(), sizeof length);
  std::vector<std::uint64_t> found;
  for (const std::size_t at : {std::size_t{20}, sizeof length + length, built.size() - 1}) {
    leave();
    std::string damaged = built;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    (void)root_.write(".out.nibble/new/model.safetensors", damaged);
    found.push_back(tensors_read(recipe("nf4")));
    EXPECT_EQ(contents_of(out_), whole_) << at;
    fs::remove_all(out_);
  }
  EXPECT_THAT(found, testing::Each(testing::Ge(2U)));
  EXPECT_EQ(found[0], tensors);
  EXPECT_GT(found[1], 2U);
}

// A shard that cannot be the one that was written: shorter, a link, with a second name.
TEST_F(OtherRunTest, OtherFiles) {
  const auto replace = [&](const std::function<void()>& by) {
    leave();
    by();
    EXPECT_EQ(tensors_read(recipe("nf4")), tensors);
    EXPECT_EQ(contents_of(out_), whole_);
    fs::remove_all(out_);
  };
  replace([&] { fs::resize_file(built_, fs::file_size(built_) - 1); });
  replace([&] { fs::remove(built_); });
  const fs::path elsewhere = root_.path() / "elsewhere";
  replace([&] {
    fs::rename(built_, elsewhere);
    fs::create_symlink(elsewhere, built_);
  });
  const std::string untouched = test::read_file(elsewhere);
  replace([&] {
    fs::remove(built_);
    fs::create_hard_link(elsewhere, built_);
  });
  EXPECT_EQ(test::read_file(elsewhere), untouched);
}

TEST_F(OtherRunTest, OtherEntriesAreRemoved) {
  (void)root_.write(".out.nibble/new/config.json", "{}");
  (void)root_.write(".out.nibble/new/extra/old.txt", "");
  (void)root_.write(".out.nibble/new/planted.py", "");
  expect_resumed();
}

// A commit had begun: what is in the work directory may be the old output.
TEST_F(OtherRunTest, NothingIsResumedOfACommit) {
  for (const char* const name : {"exchanged", "trash"}) {
    leave();
    fs::create_directory(work_ / name);
    EXPECT_EQ(tensors_read(recipe("nf4")), tensors) << name;
    fs::remove_all(out_);
  }
  leave();
  (void)root_.write(".out.nibble/.done", "");
  EXPECT_EQ(tensors_read(recipe("nf4")), tensors);
}

// The space that finished shards take is not needed again.
TEST_F(OtherRunTest, DryRunFindsIt) {
  const PlannedConversion conversion(in_, out_, recipe("nf4"), {.resume = true});
  conversion.check_output();
  EXPECT_TRUE(fs::exists(work_ / "log"));
  expect_resumed();
}

}  // namespace
}  // namespace nibble::resume_test
