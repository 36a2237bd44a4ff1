// The tests of every build, debug and sanitizers included, end where the standard library is misused
// (cmake/warnings.cmake).

#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <span>

namespace nibble::assertions_test {
namespace {

TEST(AssertionsDeathTest, AnEmptyOptionalIsNotRead) {
  const std::optional<int> empty;
  EXPECT_DEATH(
      {
        const volatile int value = *empty;
        (void)value;
      },
      "_M_is_engaged");
}

TEST(AssertionsDeathTest, NothingBeyondASpanIsRead) {
  const int number = 1;
  const std::span<const int> numbers(&number, 1);
  volatile std::size_t beyond = 1;
  EXPECT_DEATH(
      {
        const volatile int value = numbers[beyond];
        (void)value;
      },
      "size");
}

}  // namespace
}  // namespace nibble::assertions_test
