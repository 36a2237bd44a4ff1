// The scripts, from subcommands made up for it, and the way bash takes them.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <sstream>

#include "cli/commands.hpp"
#include "cli/options/codec_option.hpp"
#include "cli/options/options.hpp"
#include "cli/terminal/process_terminal.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"

namespace nibble::cli::completion_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Words = std::vector<std::string>;

// What a program with two subcommands prints, whose texts have all that shells would take for something else.
std::string script(const std::string& shell) {
  CLI::App app("Does things.", "nibble");
  CLI::App* const pack = app.add_subcommand("pack", "Packs what's [there]: all");
  static std::string level;
  static bool quiet;
  pack->add_option("--level", level, "1: small, [9]: it's up to \"$HOME\" `id`");
  set_choices(pack->add_option("--kind", level, "What kind"), {"flat", "round"});
  pack->add_option("--list", level, "A file")->type_name(file_type);
  pack->add_option("--as", level, "A format")->type_name(codec_type);
  pack->add_flag("-q,--quiet,--silent", quiet, "Say nothing");
  CLI::App* const list = app.add_subcommand("list", "Lists");
  list->add_option("FILE", level, "What to list");
  ProcessTerminal terminal;
  add_completion(app, terminal);
  testing::internal::CaptureStdout();
  app.parse("completion " + shell);
  return testing::internal::GetCapturedStdout();
}

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// What bash offers for the last word of a line.
Words offered(const std::string& script, const std::string& words) {
  const test::TempDir directory;
  directory.write("script", script);
  directory.write("ask", "source ./script\nCOMP_WORDS=(" + words +
                             ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_nibble\n"
                             "[ ${#COMPREPLY[@]} -eq 0 ] || printf '%s\\n' \"${COMPREPLY[@]}\"\n");
  const test::Outcome outcome = test::run_command(directory.path(), "env -u BASH_ENV LC_ALL=C bash ask");
  EXPECT_EQ(outcome.err, "");
  return lines_of(outcome.out);
}

TEST(Completion, BashOffersSubcommandsFirst) {
  const std::string bash = script("bash");
  EXPECT_THAT(offered(bash, "nibble ''"), ElementsAre("pack", "list", "completion"));
  EXPECT_THAT(offered(bash, "nibble pa"), ElementsAre("pack"));
  EXPECT_THAT(offered(bash, "nibble x"), IsEmpty());
}

TEST(Completion, BashOffersTheLongOptionsOfTheSubcommand) {
  const std::string bash = script("bash");
  EXPECT_THAT(offered(bash, "nibble pack --"),
              ElementsAre("--help", "--level", "--kind", "--list", "--as", "--quiet", "--silent"));
  EXPECT_THAT(offered(bash, "nibble pack --level 3 file --q"), ElementsAre("--quiet"));
  EXPECT_THAT(offered(bash, "nibble list -"), ElementsAre("--help"));
}

// No offer is what lets bash complete the names of files.
TEST(Completion, BashLeavesFilesToItself) {
  const std::string bash = script("bash");
  EXPECT_THAT(lines_of(bash).back(), "complete -o default -F _nibble nibble");
  EXPECT_THAT(offered(bash, "nibble pack ''"), IsEmpty());
  EXPECT_THAT(offered(bash, "nibble pack f"), IsEmpty());
  EXPECT_THAT(offered(bash, "nibble unknown --"), IsEmpty());
}

// However the word comes: bash cuts at "=" as a rule.
TEST(Completion, BashOffersTheValuesOfAnOption) {
  const std::string bash = script("bash");
  for (const char* const words : {"--kind ''", "--kind =", "file --kind = ''"})
    EXPECT_THAT(offered(bash, std::string("nibble pack ") + words), ElementsAre("flat", "round")) << words;
  EXPECT_THAT(offered(bash, "nibble pack --kind f"), ElementsAre("flat"));
  EXPECT_THAT(offered(bash, "nibble pack --kind = r"), ElementsAre("round"));
  EXPECT_THAT(offered(bash, "nibble pack '--kind=r'"), ElementsAre("--kind=round"));
  EXPECT_THAT(offered(bash, "nibble list --kind r"), IsEmpty());
  EXPECT_THAT(offered(bash, "nibble completion ''"), ElementsAre("bash", "zsh", "fish"));
}

// Names of files where a path is meant, nothing for numbers, sizes and patterns, codecs for formats.
TEST(Completion, BashOffersFilesForPathsOnly) {
  const std::string refuses_files = "compopt() { echo \"no files: $*\"; }\n";
  const std::string bash = refuses_files + script("bash");
  for (const char* const words : {"--level ''", "--level 3", "--level =", "--level = 3", "'--level='", "x --level ''"})
    EXPECT_THAT(offered(bash, std::string("nibble pack ") + words), ElementsAre("no files: +o default")) << words;
  for (const char* const words : {"--list ''", "--list =", "''", "--level 3 ''", "--quiet ''"})
    EXPECT_THAT(offered(bash, std::string("nibble pack ") + words), IsEmpty()) << words;
  for (const char* const words : {"--as b", "--as = b"})
    EXPECT_THAT(offered(bash, std::string("nibble pack ") + words), ElementsAre("bf16")) << words;
  EXPECT_THAT(offered(bash, "nibble pack '--as=b'"), ElementsAre("--as=bf16"));
}

// Bash replaces what follows the last ":" or "=", unless these were taken from COMP_WORDBREAKS.
TEST(Completion, BashOffersTheOptionsOfACodec) {
  const std::string bash = script("bash");
  for (const char* const words : {"--as nf4 : d", "--as = nf4 : d"})
    EXPECT_THAT(offered(bash, std::string("nibble pack ") + words), ElementsAre("double-quant=no")) << words;
  EXPECT_THAT(offered(bash, "nibble pack --as nf4 : block-size = 3"), ElementsAre("32"));
  EXPECT_THAT(offered(bash, "nibble pack --as fp4 : double-quant ="), ElementsAre("no"));
  EXPECT_THAT(offered(bash, "nibble pack --as nf4 :").size(), 10U);
  EXPECT_THAT(offered(bash, "nibble pack --as nf4:d"), ElementsAre("nf4:double-quant=no"));
  EXPECT_THAT(offered(bash, "nibble pack --as=nf4:d"), ElementsAre("--as=nf4:double-quant=no"));
}

TEST(Completion, ZshOffersTheValuesOfAnOption) {
  const std::string zsh = script("zsh");
  EXPECT_THAT(zsh, HasSubstr("'--kind=[What kind]:value:(flat round)'"));
  EXPECT_THAT(zsh, HasSubstr("'--quiet[Say nothing]'"));
  EXPECT_THAT(zsh, HasSubstr("'--list=[A file]:value:_files'"));
  EXPECT_THAT(zsh, HasSubstr("'--as=[A format]:value:(fp32 fp16 bf16 int8 int8\\:absmax=search "));
  EXPECT_THAT(zsh, HasSubstr(" nf4 nf4\\:block-size=32 "));
  EXPECT_THAT(zsh, HasSubstr("'*:argument:(bash zsh fish)'"));
  EXPECT_THAT(zsh, HasSubstr("'*:argument:_files'"));
}

TEST(Completion, ZshTextsEndWhereTheyEnd) {
  const std::string zsh = script("zsh");
  EXPECT_THAT(lines_of(zsh).front(), "#compdef nibble");
  EXPECT_THAT(zsh, HasSubstr("\n      'pack:Packs what'\\''s [there]: all'\n"));
  EXPECT_THAT(zsh, HasSubstr(R"('--level=[1\: small, \[9\]\: it'\''s up to "$HOME" `id`]:value: ')"));
  EXPECT_THAT(zsh, HasSubstr("\n    list) _arguments \\\n"));
  EXPECT_THAT(lines_of(zsh).back(), "compdef _nibble nibble");
}

TEST(Completion, FishHasALineForEveryOffer) {
  const Words fish = lines_of(script("fish"));
  EXPECT_THAT(fish, testing::IsSupersetOf(
                        {R"(complete -c nibble -n __fish_use_subcommand -f -a pack -d 'Packs what'\''s [there]: all')",
                         "complete -c nibble -n __fish_use_subcommand -f -a list -d 'Lists'",
                         R"(complete -c nibble -n '__fish_seen_subcommand_from pack' -l level -r -f -d )"
                         R"('1: small, [9]: it'\''s up to "$HOME" `id`')",
                         "complete -c nibble -n '__fish_seen_subcommand_from pack' -l quiet -d 'Say nothing'",
                         "complete -c nibble -n '__fish_seen_subcommand_from pack' -l silent -d 'Say nothing'"}));
  EXPECT_THAT(fish, testing::IsSupersetOf(
                        {"complete -c nibble -n '__fish_seen_subcommand_from pack' -l kind -r -f -a 'flat round' -d "
                         "'What kind'",
                         "complete -c nibble -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'"}));
  EXPECT_THAT(fish,
              testing::Contains("complete -c nibble -n '__fish_seen_subcommand_from pack' -l list -r -d 'A file'"));
  EXPECT_THAT(fish, testing::Contains("complete -c nibble -n '__fish_seen_subcommand_from pack' -l as -r -f -a '" +
                                      fmt::format("{}", fmt::join(codec_words(), " ")) + "' -d 'A format'"));
  // The subcommands, --help of each, the other options, and the shells.
  EXPECT_EQ(fish.size(), 3U + 3U + 6U + 1U);
}

// The very program.
TEST(Completion, KnowsTheSubcommandsAndOptionsOfTheProgram) {
  const test::TempDir directory;
  const auto print = [&](const std::string& shell) {
    const test::Outcome outcome = test::run_program(directory.path(), "completion " + shell);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  for (const char* const shell : {"zsh", "fish"}) EXPECT_THAT(print(shell), HasSubstr("no-double-quant")) << shell;
  const std::string bash = print("bash");
  EXPECT_THAT(offered(bash, "nibble ''"),
              ElementsAre("convert", "dequantize", "merge", "inspect", "measure", "formats", "completion"));
  EXPECT_THAT(offered(bash, "nibble convert --to nf4:d"), ElementsAre("nf4:double-quant=no"));
  EXPECT_THAT(offered(bash, "nibble convert --to = nf4 : d"), ElementsAre("double-quant=no"));
  EXPECT_THAT(offered(bash, "nibble convert --on-overflow ''"), ElementsAre("error", "clamp", "keep"));
  EXPECT_THAT(offered(bash, "nibble measure --progress b"), ElementsAre("bar"));
  EXPECT_THAT(offered(bash, "nibble measure --to nf4 : d"), ElementsAre("double-quant=no"));
  EXPECT_THAT(bash, HasSubstr("    convert--threads) compopt +o default"));
  EXPECT_THAT(bash, HasSubstr("    measure--html) return ;;"));
  EXPECT_THAT(offered(bash, "nibble convert --no-d"), ElementsAre("--no-double-quant", "--no-default-skips"));
  EXPECT_THAT(offered(bash, "nibble inspect --"), Not(testing::Contains("--to")));
}

TEST(Completion, OtherShellsAreRefused) {
  const test::TempDir directory;
  for (const char* const arguments : {"completion", "completion tcsh", "completion bash zsh"}) {
    const test::Outcome outcome = test::run_program(directory.path(), arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
  }
}

}  // namespace
}  // namespace nibble::cli::completion_test
