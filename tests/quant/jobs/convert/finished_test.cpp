// Records of the log of a conversion: what is read is what was written, and nothing else is taken for a record.
#include "quant/jobs/convert/finished.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <variant>

namespace nibble::finished_test {
namespace {

constexpr Findings findings{1, 2, 3, 4, 5, 6, 7};

FinishedTensor finished(std::vector<std::vector<Xxh3>> hashes = {{{1, 2}, {3, 4}}, {}, {{5, 6}}}) {
  return {.tensor = 8,
          .findings = findings,
          .error = {.count = 9, .square = 0.1, .product = -0.2, .reference = 0.3, .test = 0.4},
          .sqnr_db = 20.5,
          .entry = std::string("{\"name\": \"a\0\n\xff\"}", 17),
          .hashes = std::move(hashes)};
}

// A record whose number `at` (of 8 bytes each) has another value.
std::string with_number(std::string record, std::size_t at, std::uint64_t value) {
  std::memcpy(record.data() + at * sizeof value, &value, sizeof value);
  return record;
}

constexpr std::size_t numbers_before_parts = 2 + 7 + 5 + 1;  // kind and tensor, findings, sums, sqnr_db

TEST(Finished, TensorIsReadAsItWasWritten) {
  for (const auto& hashes : std::vector<std::vector<std::vector<Xxh3>>>{{}, {{}}, finished().hashes}) {
    const FinishedTensor written = finished(hashes);
    const auto read = finished_of(record_of(written));
    ASSERT_TRUE(read && std::holds_alternative<FinishedTensor>(*read));
    const auto& found = std::get<FinishedTensor>(*read);
    EXPECT_EQ(found.tensor, written.tensor);
    EXPECT_EQ(found.findings, written.findings);
    EXPECT_EQ(found.error, written.error);
    EXPECT_EQ(found.sqnr_db, written.sqnr_db);
    EXPECT_EQ(found.entry, written.entry);
    EXPECT_EQ(found.hashes, written.hashes);
  }
}

TEST(Finished, KeptTensorIsReadAsItWasWritten) {
  const auto read = finished_of(record_of(KeptTensor{8, findings}));
  ASSERT_TRUE(read && std::holds_alternative<KeptTensor>(*read));
  EXPECT_EQ(std::get<KeptTensor>(*read).tensor, 8U);
  EXPECT_EQ(std::get<KeptTensor>(*read).findings, findings);
}

// Of a finished tensor, what follows the hashes is the entry, of whatever length.
TEST(Finished, RecordThatIsTooShortIsNone) {
  FinishedTensor without_entry = finished();
  without_entry.entry.clear();
  for (const std::string& record : {record_of(without_entry), record_of(KeptTensor{8, findings})}) {
    EXPECT_TRUE(finished_of(record));
    for (std::size_t n = 0; n < record.size(); ++n) EXPECT_FALSE(finished_of(record.substr(0, n))) << n;
  }
}

TEST(Finished, KeptTensorHasNothingAfterIt) { EXPECT_FALSE(finished_of(record_of(KeptTensor{8, findings}) + '\0')); }

TEST(Finished, RecordOfAnotherKindIsNone) {
  for (const std::uint64_t kind : {std::uint64_t{2}, std::uint64_t{1} << 32, UINT64_MAX}) {
    EXPECT_FALSE(finished_of(with_number(record_of(finished()), 0, kind))) << kind;
    EXPECT_FALSE(finished_of(with_number(record_of(KeptTensor{8, findings}), 0, kind))) << kind;
  }
}

// Numbers that no record can hold take no memory.
TEST(Finished, RecordWithTooManyHashesIsNone) {
  const std::string record = record_of(finished());
  for (const std::uint64_t many :
       {std::uint64_t{1000}, std::uint64_t{1} << 40, UINT64_MAX / sizeof(Xxh3) + 1, UINT64_MAX})
    for (const std::size_t at : {numbers_before_parts, numbers_before_parts + 1})
      EXPECT_FALSE(finished_of(with_number(record, at, many))) << many << " at " << at;
}

}  // namespace
}  // namespace nibble::finished_test
