// How the C functions end, and what their checks say.
#include "kernels/host/interface.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "nibble/kernels.hpp"
#include "nibble/nested.hpp"
#include "tests/simulator/failure.hpp"

namespace nibble::kernels {
namespace {

using testing::ElementsAreArray;
using testing::StrEq;

constexpr u64 u32_max = 0xffffffff;

// What a check says; empty if it accepts.
template <class Check> std::string refusal(Check&& check) {
  return result_of(check) == NIBBLE_OK ? "" : nibble_last_error();
}

alignas(16) char memory[64];
template <class T> T* at(std::size_t byte = 0) { return reinterpret_cast<T*>(memory + byte); }

nibble_four_bit plain() {
  return {.struct_bytes = sizeof(nibble_four_bit),
          .codebook = NIBBLE_NF4,
          .blocksize = 64,
          .rows = 2,
          .columns = 3,
          .packed = at<std::uint8_t>(),
          .absmax = at<float>(),
          .absmax_codes = nullptr,
          .nested_absmax = nullptr,
          .nested_codebook = nullptr,
          .nested_offset = nullptr,
          .first = 0,
          .stride = 0};
}
nibble_four_bit nested() {
  nibble_four_bit weight = plain();
  weight.absmax = nullptr;
  weight.absmax_codes = at<std::uint8_t>();
  weight.nested_absmax = weight.nested_codebook = weight.nested_offset = at<float>();
  return weight;
}
// Any number into an enumeration, as C allows it.
template <class Enum> void put(Enum& value, int number) { std::memcpy(&value, &number, sizeof number); }

template <class Change> std::string refusal_of(nibble_four_bit weight, Change&& change) {
  change(weight);
  return refusal([&] { checked_four_bit("weight", &weight); });
}

TEST(Interface, WhatABodyThrowsBecomesTheResult) {
  EXPECT_EQ(result_of([] {}), NIBBLE_OK);
  EXPECT_EQ(result_of([] { refuse("m is 0, at least 1"); }), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("m is 0, at least 1"));
  EXPECT_EQ(result_of([] { throw device::LaunchError(98, "kernel launch: invalid device function"); }),
            NIBBLE_INTERNAL);
  EXPECT_THAT(nibble_last_error(), StrEq("kernel launch: invalid device function"));
  EXPECT_EQ(result_of([] { throw std::bad_alloc(); }), NIBBLE_INTERNAL);
  EXPECT_THAT(nibble_last_error(), StrEq("no memory on the host"));
  EXPECT_EQ(result_of([] {}), NIBBLE_OK);
  EXPECT_THAT(nibble_last_error(), StrEq("no memory on the host")) << "the last that failed";
}

TEST(Interface, FailuresOfTheSimulatorPassThrough) {
  using device::simulator::Failure, device::simulator::Fault, device::simulator::Site;
  EXPECT_THROW(result_of([] { throw Failure(Fault::race, Site::current(), "race"); }), Failure);
}

TEST(Interface, EachThreadHasItsLastError) {
  result_of([] { refuse("of the first"); });
  std::string other = "not run";
  std::thread([&] { other = nibble_last_error(); }).join();
  EXPECT_EQ(other, "");
  EXPECT_THAT(nibble_last_error(), StrEq("of the first"));
}

TEST(Interface, TheCppInterfaceThrows) {
  try {
    cuda::check(result_of([] { refuse("m is 0, at least 1"); }));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::usage);
    EXPECT_THAT(error.what(), StrEq("m is 0, at least 1"));
  }
}

TEST(Interface, FourBitWeights) {
  EXPECT_EQ(refusal_of(plain(), [](auto&) {}), "");
  EXPECT_EQ(refusal_of(nested(), [](auto&) {}), "");
  EXPECT_EQ(refusal([] { checked_four_bit("weight", nullptr); }), "weight is null");
  for (const std::uint32_t blocksize : {32u, 64u, 128u, 256u, 512u, 1024u, 2048u, 4096u})
    EXPECT_EQ(refusal_of(plain(), [&](auto& weight) { weight.blocksize = blocksize; }), "");
  for (const std::uint32_t blocksize : {0u, 1u, 16u, 48u, 8192u})
    EXPECT_EQ(refusal_of(plain(), [&](auto& weight) { weight.blocksize = blocksize; }),
              "weight.blocksize is " + std::to_string(blocksize) + ", not a power of two from 32 to 4096");
  EXPECT_EQ(refusal_of(plain(), [](auto& weight) { put(weight.codebook, 2); }),
            "weight.codebook is 2, not a nibble_codebook");
  EXPECT_EQ(refusal_of(plain(), [](auto& weight) { weight.packed = nullptr; }), "weight.packed is null");
  EXPECT_EQ(refusal_of(plain(), [](auto& weight) { weight.absmax = nullptr; }),
            "weight has neither absmax nor absmax_codes");
  EXPECT_EQ(refusal_of(plain(), [](auto& weight) { weight.absmax = at<float>(2); }),
            "weight.absmax is 2 bytes past a multiple of 4, its alignment");
  EXPECT_EQ(refusal_of(plain(), [](auto& weight) { weight.nested_offset = at<float>(); }),
            "weight.nested_offset is given, must be null without absmax_codes");
  EXPECT_EQ(refusal_of(nested(), [](auto& weight) { weight.absmax = at<float>(); }),
            "weight.absmax is given, must be null with absmax_codes");
  EXPECT_EQ(refusal_of(nested(), [](auto& weight) { weight.nested_absmax = nullptr; }), "weight.nested_absmax is null");
  EXPECT_EQ(refusal_of(nested(), [](auto& weight) { weight.nested_codebook = at<float>(1); }),
            "weight.nested_codebook is 1 bytes past a multiple of 4, its alignment");
  EXPECT_EQ(refusal_of(nested(), [](auto& weight) { weight.nested_offset = nullptr; }), "weight.nested_offset is null");
}

TEST(Interface, SlicesOfFourBitWeights) {
  EXPECT_EQ(checked_four_bit("weight", std::vector{plain()}.data()).stride, 3U);
  EXPECT_EQ(refusal_of(plain(), [](auto& weight) { weight.stride = 5; }), "");
  EXPECT_EQ(refusal_of(plain(), [](auto& weight) { weight.stride = 2; }),
            "weight.stride is 2, less than its 3 columns");
  EXPECT_EQ(refusal_of(plain(), [](auto& weight) { weight.first = max_elements - 6; }), "");
  EXPECT_EQ(refusal_of(plain(), [](auto& weight) { weight.first = max_elements - 5; }),
            "weight.first is 281474976710651, beyond the 2^48 elements that are possible");
}

// A caller who was compiled with fewer members, and one with more.
TEST(Interface, StructsMayGrow) {
  struct Grown {
    std::size_t struct_bytes;
    u64 known, added;
  };
  const Grown old{16, 7, 8};
  EXPECT_EQ(whole("grown", &old, 16).known, 7U);
  EXPECT_EQ(whole("grown", &old, 16).added, 0U);
  for (const std::size_t bytes : {std::size_t{15}, std::size_t{4097}}) {
    const Grown other{bytes, 7, 8};
    EXPECT_EQ(refusal([&] { whole("grown", &other, 16); }),
              "grown.struct_bytes is " + std::to_string(bytes) + ", not from 16 to 4096");
  }
  const Grown odd{20, 7, 0};
  EXPECT_EQ(refusal([&] { whole("grown", &odd, 16); }), "grown.struct_bytes is 20, not a multiple of 8, its alignment");
  EXPECT_EQ(refusal([] { whole<Grown>("grown", nullptr); }), "grown is null");
  u64 later[4096 / sizeof(u64)] = {4096, 7, 8};
  const auto read_later = [&] { return whole("grown", reinterpret_cast<const Grown*>(later), 16); };
  EXPECT_EQ(read_later().added, 8U);
  for (const std::size_t byte : {24, 25, 4095}) {
    auto* const bytes = reinterpret_cast<unsigned char*>(later);
    bytes[byte] = 1;
    EXPECT_EQ(refusal(read_later), "grown.struct_bytes is 4096; byte " + std::to_string(byte) +
                                       " is not 0, and this library knows the first 24");
    bytes[byte] = 0;
  }
}

// An array of a caller who was compiled with fewer members: its elements are as far apart as there.
TEST(Interface, ArraysOfStructsMayGrow) {
  struct Grown {
    std::size_t struct_bytes;
    u64 known, added;
  };
  const u64 old[] = {16, 7, 16, 8};
  const auto* const array = reinterpret_cast<const Grown*>(old);
  EXPECT_EQ(whole_element("grown", array, 0, 16).known, 7U);
  EXPECT_EQ(whole_element("grown", array, 1, 16).known, 8U);
  EXPECT_EQ(whole_element("grown", array, 1, 16).added, 0U);
  const u64 mixed[] = {16, 7, 24, 8, 9};
  EXPECT_EQ(refusal([&] { whole_element("grown", reinterpret_cast<const Grown*>(mixed), 1, 16); }),
            "grown[1].struct_bytes is 24, grown[0].struct_bytes is 16");
  const u64 misaligned[] = {20, 7, 0, 0, 0};  // the second element would be 20 bytes after the first
  EXPECT_EQ(refusal([&] { whole_element("grown", reinterpret_cast<const Grown*>(misaligned), 1, 16); }),
            "grown[0].struct_bytes is 20, not a multiple of 8, its alignment");
  const u64 later[] = {32, 7, 8, 0, 32, 9, 10, 0, 32, 11, 12, 1};
  const auto read_later = [&](std::size_t i) {
    return whole_element("grown", reinterpret_cast<const Grown*>(later), i);
  };
  EXPECT_EQ(read_later(1).added, 10U);
  EXPECT_EQ(refusal([&] { read_later(2); }),
            "grown[2].struct_bytes is 32; byte 24 is not 0, and this library knows the first 24");
  EXPECT_EQ(refusal([] { whole_element<Grown>("grown", nullptr, 0); }), "grown is null");
}

TEST(Interface, TheVersionIsThatOfTheHeader) { EXPECT_EQ(nibble_kernels_version(), NIBBLE_KERNELS_VERSION); }

TEST(Interface, SizesDoNotOverflow) {
  EXPECT_EQ(checked_size("weight", u64{1} << 24, u64{1} << 24), max_elements);
  EXPECT_EQ(checked_size("weight", 0, ~u64{0}), 0u);
  EXPECT_EQ(refusal_of(plain(),
                       [](auto& weight) {
                         weight.rows = u32_max;
                         weight.columns = u32_max;
                       }),
            "weight has 4294967295 x 4294967295 elements, at most 2^48 are possible");
  EXPECT_EQ(refusal_of(plain(),
                       [](auto& weight) {
                         weight.rows = u64{1} << 63;
                         weight.columns = 2;
                       }),
            "weight has 9223372036854775808 x 2 elements, at most 2^48 are possible");
}

TEST(Interface, EmptyWeightsNeedNoPointers) {
  EXPECT_EQ(refusal_of(plain(),
                       [](auto& weight) {
                         weight.columns = 0;
                         weight.packed = nullptr;
                         weight.absmax = nullptr;
                       }),
            "");
  const nibble_int8 empty{
      .struct_bytes = sizeof(nibble_int8), .rows = 0, .columns = 5, .codes = nullptr, .absmax = nullptr};
  EXPECT_EQ(refusal([&] { checked_int8("weight", &empty); }), "");
}

TEST(Interface, Int8Weights) {
  const nibble_int8 good{
      .struct_bytes = sizeof(nibble_int8), .rows = 2, .columns = 3, .codes = at<std::int8_t>(1), .absmax = at<float>()};
  EXPECT_EQ(refusal([&] { checked_int8("weight", &good); }), "");
  nibble_int8 weight = good;
  weight.codes = nullptr;
  EXPECT_EQ(refusal([&] { checked_int8("weight", &weight); }), "weight.codes is null");
  weight = good;
  weight.absmax = at<float>(1);
  EXPECT_EQ(refusal([&] { checked_int8("weight", &weight); }),
            "weight.absmax is 1 bytes past a multiple of 4, its alignment");
  EXPECT_EQ(refusal([] { checked_int8("weight", nullptr); }), "weight is null");
}

TEST(Interface, Matrices) {
  const nibble_matrix good{.struct_bytes = sizeof(nibble_matrix),
                           .dtype = NIBBLE_BF16,
                           .rows = 2,
                           .columns = 3,
                           .stride = 3,
                           .data = at<void>(2)};
  const auto refusal_with = [&](auto&& change) {
    nibble_matrix matrix = good;
    change(matrix);
    return refusal([&] { checked_matrix("out", &matrix); });
  };
  EXPECT_EQ(refusal_with([](auto&) {}), "");
  EXPECT_EQ(refusal([] { checked_matrix("out", nullptr); }), "out is null");
  EXPECT_EQ(refusal_with([](auto& out) { put(out.dtype, 3); }), "out.dtype is 3, not a nibble_dtype");
  EXPECT_EQ(refusal_with([](auto& out) { out.stride = 2; }), "out.stride is 2, less than its 3 columns");
  EXPECT_EQ(refusal_with([](auto& out) { out.data = nullptr; }), "out.data is null");
  EXPECT_EQ(refusal_with([](auto& out) { out.dtype = NIBBLE_F32; }),
            "out.data is 2 bytes past a multiple of 4, its alignment");
  EXPECT_EQ(refusal_with([](auto& out) { out.stride = max_elements; }),
            "out has 2 x 281474976710656 elements, at most 2^48 are possible");
}

TEST(Interface, Workspaces) {
  EXPECT_EQ(refusal([] { check_workspace(nullptr, 0, 0); }), "");
  EXPECT_EQ(refusal([] { check_workspace(memory, 64, 64); }), "");
  EXPECT_EQ(refusal([] { check_workspace(memory, 63, 64); }), "workspace_bytes is 63, at least 64 are needed");
  EXPECT_EQ(refusal([] { check_workspace(nullptr, 64, 64); }), "workspace is null");
  EXPECT_EQ(refusal([] { check_workspace(memory + 8, 56, 16); }),
            "workspace is 8 bytes past a multiple of 16, its alignment");
}

TEST(Interface, TheNestedCodebookIsTheCodecs) {
  EXPECT_THAT(std::vector<float>(nibble_nested_codebook(), nibble_nested_codebook() + 256),
              ElementsAreArray(nested::codebook));
}

}  // namespace
}  // namespace nibble::kernels
