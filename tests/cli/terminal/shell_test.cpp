#include "cli/terminal/shell.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <memory>

namespace nibble::cli::shell_test {
namespace {

// What a shell makes of a word that is quoted.
std::string through_shell(const std::string& quoted) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(("printf %s. " + quoted).c_str(), "r"), pclose);
  std::string out;
  for (int c = 0; (c = std::fgetc(pipe.get())) != EOF;) out += static_cast<char>(c);
  return out;
}

TEST(Shell, PlainWordsStayAsTheyAre) {
  for (const char* const word : {"model", "--to=nf4", "a/b-c_d.e:f,g+h@i%"}) EXPECT_EQ(shell_quoted(word), word);
}

TEST(Shell, ReadsBackWhatWasQuoted) {
  for (const char* const word :
       {"", "a b", "it's", "'", "$HOME", "`id`", "\\", "\"", "a\nb", "*", "~", "up[proj", "!x", "#"})
    EXPECT_EQ(through_shell(shell_quoted(word)), std::string(word) + ".") << word;
}

TEST(Shell, PathsAreNoOptions) {
  EXPECT_EQ(quoted_path("-rf"), "./-rf");
  EXPECT_EQ(quoted_path("- f"), "'./- f'");
  EXPECT_EQ(quoted_path("a-b"), "a-b");
}

}  // namespace
}  // namespace nibble::cli::shell_test
