#include "bench/programs/memory.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/programs/memory.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nibble::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

std::uint64_t sum_words(const std::uint64_t* HWY_RESTRICT words, std::size_t count) {
  const hn::ScalableTag<std::uint64_t> d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;  // additions of one do not wait for those of another
  for (std::size_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Add(a, hn::LoadU(d, words + i));
    b = hn::Add(b, hn::LoadU(d, words + i + lanes));
    c = hn::Add(c, hn::LoadU(d, words + i + 2 * lanes));
    e = hn::Add(e, hn::LoadU(d, words + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

const char* target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace nibble::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::bench {
namespace {
HWY_EXPORT(sum_words);
HWY_EXPORT(target);
}  // namespace

std::uint64_t sum(std::span<const std::byte> bytes) {
  return HWY_DYNAMIC_DISPATCH(sum_words)(reinterpret_cast<const std::uint64_t*>(bytes.data()), bytes.size() / 8);
}

std::string simd_target() { return HWY_DYNAMIC_DISPATCH(target)(); }

}  // namespace nibble::bench
#endif
