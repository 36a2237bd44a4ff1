// Commands: wrong words, listeners, and the end on demand.

#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/python/c_api/call.hpp"

namespace nibble::c_api_test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct Result {
  int code;
  std::string json;
};

Result command(const std::vector<const char*>& words, const nibble_listener* listener = nullptr) {
  char* json = nullptr;
  const int code = nibble_command(static_cast<int>(words.size()), words.data(), listener, &json);
  Result result{code, json == nullptr ? "" : json};
  nibble_free(json);
  return result;
}

nibble_listener listener() {
  nibble_listener empty{};
  empty.struct_bytes = sizeof empty;
  return empty;
}

TEST(CommandArguments, NullAndNothingAreNamed) {
  char* json = nullptr;
  const char* const words[] = {"formats", nullptr};
  EXPECT_EQ(nibble_command(1, nullptr, nullptr, &json), NIBBLE_USAGE);
  EXPECT_EQ(message(), "arguments is null");
  EXPECT_EQ(nibble_command(2, words, nullptr, &json), NIBBLE_USAGE);
  EXPECT_EQ(message(), "arguments[1] is null");
  for (const int count : {0, -1, std::numeric_limits<int>::min()}) {
    EXPECT_EQ(nibble_command(count, words, nullptr, &json), NIBBLE_USAGE);
    EXPECT_THAT(message(), HasSubstr("argument_count is less than 1"));
  }
  EXPECT_EQ(json, nullptr);
  EXPECT_EQ(nibble_list_commands(nullptr), NIBBLE_USAGE);
  EXPECT_EQ(message(), "json is null");
  EXPECT_EQ(nibble_command(1, words, nullptr, nullptr), NIBBLE_OK) << "json may be null";
  EXPECT_EQ(nibble_cpu_targets(nullptr, &json), NIBBLE_USAGE);
  EXPECT_EQ(message(), "targets is null");
  EXPECT_EQ(nibble_cpu_targets(&json, nullptr), NIBBLE_USAGE);
  EXPECT_EQ(message(), "in_use is null");
  EXPECT_EQ(nibble_cpu_extensions(nullptr), NIBBLE_USAGE);
  EXPECT_EQ(message(), "extensions is null");
  nibble_free(nullptr);
}

TEST(CommandArguments, OnlyCommandsWithJsonRun) {
  for (const char* word : {"--json", "-h", "completion"}) {
    EXPECT_EQ(command({word}).code, NIBBLE_USAGE) << word;
    EXPECT_EQ(message(), "'" + std::string(word) + "' is not a command with --json");
  }
  for (const char* word : {"", "nonsense", "conv\nert", "\xff\xfe"}) {
    EXPECT_EQ(command({word}).code, NIBBLE_USAGE) << word;
    EXPECT_THAT(message(), testing::AnyOf(HasSubstr("no command is given"), HasSubstr("is not one of convert")));
  }
}

TEST(CommandArguments, AListenerHasItsSize) {
  nibble_listener small = listener();
  small.struct_bytes = sizeof small - 1;
  EXPECT_EQ(command({"formats"}, &small).code, NIBBLE_USAGE);
  EXPECT_THAT(message(), StartsWith("listener: struct_bytes is "));
  struct {
    nibble_listener known = listener();
    void* added = nullptr;
  } later;
  later.known.struct_bytes = sizeof later;
  EXPECT_EQ(command({"formats"}, &later.known).code, NIBBLE_OK) << message();
  later.added = &later;
  EXPECT_EQ(command({"formats"}, &later.known).code, NIBBLE_USAGE);
  EXPECT_THAT(message(), HasSubstr(" is not 0, and this library knows the first " + std::to_string(sizeof small)));
}

TEST(Listener, EndsACommandAndNoOutputIsLeft) {
  const WorkFolder folder;
  WorkFolder::write_checkpoint("in.safetensors");
  const std::vector<const char*> words = {"convert", "in.safetensors", "out.safetensors", "--to", "bf16"};

  const int set = 1;
  nibble_listener cancelled = listener();
  cancelled.cancel = &set;
  EXPECT_EQ(command(words, &cancelled).code, NIBBLE_INTERRUPTED);
  message();
  EXPECT_FALSE(std::filesystem::exists("out.safetensors"));

  nibble_listener stopped = listener();
  stopped.progress = [](void*, const char*, std::uint64_t, std::uint64_t) { return 1; };
  EXPECT_EQ(command(words, &stopped).code, NIBBLE_INTERRUPTED);
  EXPECT_FALSE(std::filesystem::exists("out.safetensors"));

  const int clear = 0;
  nibble_listener patient = listener();
  std::uint64_t last = 0;
  patient.user = &last;
  patient.cancel = &clear;
  patient.progress = [](void* user, const char*, std::uint64_t done, std::uint64_t total) {
    *static_cast<std::uint64_t*>(user) = done == total ? total : 0;
    return 0;
  };
  EXPECT_EQ(command(words, &patient).code, NIBBLE_OK);
  EXPECT_EQ(last, 16384u);
  EXPECT_TRUE(std::filesystem::exists("out.safetensors"));
}

TEST(ErrorMessage, BelongsToItsThread) {
  EXPECT_EQ(command({"nonsense"}).code, NIBBLE_USAGE);
  const std::string mine = message();
  std::thread([] {
    EXPECT_STREQ(nibble_error_message(), "");
    EXPECT_EQ(nibble_list_commands(nullptr), NIBBLE_USAGE);
    EXPECT_STREQ(nibble_error_message(), "json is null");
  }).join();
  EXPECT_EQ(message(), mine);
}

// Words in any order: commands, options, their values, paths that are there, paths that are not.
TEST(RandomArguments, WordsEndInACodeAndASentence) {
  const WorkFolder folder;
  WorkFolder::write_checkpoint("in.safetensors");
  const std::string long_word(100000, 'x');
  const std::vector<const char*> starts = {"convert", "measure", "inspect", "formats"};
  const std::vector<const char*> words = {"in.safetensors",
                                          "in.safetensors",
                                          "out.safetensors",
                                          "missing.safetensors",
                                          ".",
                                          "",
                                          "-",
                                          "--",
                                          "--to",
                                          "nf4",
                                          "--to=int8",
                                          "--to=nf4:block-size=31",
                                          "--to=fp8:scales=block",
                                          "--block-size=64",
                                          "--block-size",
                                          "-1",
                                          "18446744073709551616",
                                          "--threads=0",
                                          "--threads=3",
                                          "--threads=99999999999",
                                          "--max-memory=1",
                                          "--max-memory=20MB",
                                          "--max-memory=-5",
                                          "--skip=.*",
                                          "--skip=(",
                                          "--tensor=layer.*=fp4",
                                          "--tensor==",
                                          "--overwrite",
                                          "--dry-run",
                                          "--advise=5bits",
                                          "--worst=3",
                                          "--min-sqnr=99",
                                          "--max-rmse=x",
                                          "--html=report.html",
                                          "--json",
                                          "--help",
                                          "--no-such-option",
                                          "\xff\xc0",
                                          "a\nb",
                                          "--nonfinite=error",
                                          "--device=cpu",
                                          "--max-shard-size=1kB",
                                          long_word.c_str()};
  std::mt19937_64 random(3);
  int passed = 0;
  for (int i = 0; i < 1500; ++i) {
    std::vector<const char*> given = {starts[random() % starts.size()]};
    for (std::uint64_t n = random() % 6; n > 0; --n) given.push_back(words[random() % words.size()]);
    const Result result = command(given);
    ASSERT_GE(result.code, 0);
    if (result.code != NIBBLE_OK) message();
    ASSERT_NE(result.code, NIBBLE_INTERNAL) << nibble_error_message();
    passed += result.code == NIBBLE_OK;
  }
  EXPECT_GT(passed, 100);
}

}  // namespace
}  // namespace nibble::c_api_test
