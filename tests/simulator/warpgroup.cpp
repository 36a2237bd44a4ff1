// wgmma, as one warp sees it: 16 of the 64 rows. Operands are read when the result is waited for; until then a write to
// them is a race.
#include "tests/simulator/warpgroup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/simulator/backend/device.hpp"

namespace nibble::device::simulator {
namespace {

constexpr u32 poison = 0x7fc0dead;    // a NaN in accumulators that belong to the hardware
constexpr u32 rows = 16, depth = 16;  // of A, per warp; along k

bool is_poison(float value) { return std::bit_cast<u32>(value) == poison; }

// Where 8 elements from (row, k) on of an operand lie: rows of 128 bytes along k, eight to a group, swizzled.
u32 operand_offset(const Block& block, u64 descriptor, u32 row, u32 k, const Site& site) {
  if (descriptor >> 62 != static_cast<u64>(Swizzle::bytes128))
    fail(Fault::wgmma, site, "a descriptor without the 128-byte swizzle is not simulated");
  if ((descriptor >> 49 & 7) != 0) fail(Fault::wgmma, site, "a descriptor with a base offset is not simulated");
  const u32 start = static_cast<u32>(descriptor & 0x3fff) << 4;
  const u32 stride = static_cast<u32>(descriptor >> 32 & 0x3fff) << 4;
  const u32 plain = start + row / 8 * stride + row % 8 * 128 + 2 * k, offset = plain ^ (plain >> 3 & 0x70);
  if (offset + 16 > block.shared.used())
    fail(Fault::shared_bounds, site, fmt::format("wgmma reads shared byte {} of {}", offset, block.shared.used()));
  return offset;
}

float element(const char* from, bool is_f16) {
  u16 bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return is_f16 ? to_float(f16{bits}) : to_float(bf16{bits});
}

Accumulators* find(Warpgroup& warpgroup, const float* d) {
  const auto found = std::find_if(warpgroup.accumulators.begin(), warpgroup.accumulators.end(),
                                  [&](const Accumulators& one) { return one.d == d; });
  return found == warpgroup.accumulators.end() ? nullptr : &*found;
}

void meet(Thread& thread, const Site& site) {
  thread.block->together(
      thread, ~0u, Together::multiply, true, &thread, [](Block&, u32, void**, const Site&) {}, site);
}

// The accumulators of one lane as the multiplication finds them.
void take_accumulators(Thread& thread, const WarpgroupMultiply& multiply) {
  Accumulators* own = find(thread.warpgroup, multiply.d);
  if (own == nullptr || (own->in_flight == 0 && !own->fenced))
    fail(Fault::wgmma, multiply.site, "no wgmma_fence of these accumulators");
  float* const end = multiply.d + multiply.n / 2;
  if (own->in_flight > 0 ? !std::all_of(multiply.d, end, is_poison)
                         : std::memcmp(own->value.data(), multiply.d, own->value.size() * sizeof(float)) != 0)
    fail(Fault::wgmma, multiply.site,
         "accumulators were touched since their wgmma_fence or while a wgmma is in flight");
  std::fill(multiply.d, end, std::bit_cast<float>(poison));
  own->in_flight += 1;
}

// Reads of shared memory must be ordered after the writes for every lane, and visible to the asynchronous proxy.
void check_operands(Block& block, u32, void** operands, const Site& site) {
  if (!block.options().detect_races) return;
  const Thread& first = *static_cast<Thread*>(operands[0]);
  const WarpgroupMultiply& multiply = first.warpgroup.open.back();
  std::vector<Clock> clock(block.clock_size(), 0xffff), proxy(block.clock_size(), 0xffff);
  for (u32 lane = 0; lane < warp_size; ++lane) {
    const Thread& thread = *static_cast<Thread*>(operands[lane]);
    const WarpgroupMultiply& own = thread.warpgroup.open.back();
    if (own.a != multiply.a || own.b != multiply.b) fail(Fault::wgmma, site, "the lanes' descriptors differ");
    for (u32 i = 0; i < block.clock_size(); ++i) {
      clock[i] = std::min(clock[i], thread.clock[i]);
      proxy[i] = std::min(proxy[i], thread.proxy_clock[i]);
    }
  }
  const u32 agent = block.threads + mbarrier_agents + first.warp();
  const auto step = static_cast<Clock>(first.clock[agent] + 1 + first.warpgroup.groups.size());  // they end in order
  const auto read = [&](u64 descriptor, u32 row) {
    for (u32 k = 0; k < depth; k += 8)
      block.shared.read_by_proxy(agent, step, clock.data(), proxy.data(),
                                 operand_offset(block, descriptor, row, k, site), 16, site);
  };
  for (u32 row = 0; row < rows; ++row) read(multiply.a, first.warp() % 4 * rows + row);
  for (u32 row = 0; row < multiply.n; ++row) read(multiply.b, row);
}

// Adds the product of one multiplication to the accumulators of all lanes.
void multiply_now(Block& block, void** operands, std::size_t i) {
  const Thread& first = *static_cast<Thread*>(operands[0]);
  const WarpgroupMultiply& multiply = first.warpgroup.groups.front()[i];
  float a[rows][depth];
  static thread_local float b[256][depth];
  const auto load = [&](float* to, u64 descriptor, u32 row) {
    for (u32 k = 0; k < depth; k += 8) {
      const char* from = block.shared.data() + operand_offset(block, descriptor, row, k, multiply.site);
      for (u32 j = 0; j < 8; ++j) to[k + j] = element(from + 2 * j, multiply.is_f16);
    }
  };
  for (u32 row = 0; row < rows; ++row) load(a[row], multiply.a, first.warp() % 4 * rows + row);
  for (u32 row = 0; row < multiply.n; ++row) load(b[row], multiply.b, row);
  for (u32 lane = 0; lane < warp_size; ++lane) {
    Thread& thread = *static_cast<Thread*>(operands[lane]);
    Accumulators& own = *find(thread.warpgroup, thread.warpgroup.groups.front()[i].d);
    for (u32 j = 0; j < multiply.n / 2; ++j) {
      const u32 row = lane / 4 + 8 * (j >> 1 & 1), column = 8 * (j >> 2) + 2 * (lane % 4) + (j & 1);
      float sum = 0;
      for (u32 k = 0; k < depth; ++k) sum += a[row][k] * b[column][k];
      own.value[j] += sum;
    }
    own.in_flight -= 1;
  }
}

// Accumulators with nothing in flight go back to the kernel.
void give_back(Thread& thread, const Site& site) {
  for (Accumulators& own : thread.warpgroup.accumulators) {
    if (own.in_flight > 0 || !own.fenced) continue;
    const std::size_t n = own.value.size();
    if (std::all_of(own.d, own.d + n, is_poison))
      std::copy_n(own.value.begin(), n, own.d);
    else if (std::memcmp(own.value.data(), own.d, n * sizeof(float)) != 0)
      fail(Fault::wgmma, site, "accumulators were touched while a wgmma was in flight");
    own.fenced = false;
  }
}

}  // namespace

void Block::fence_accumulators(Thread& thread, float* d, u32 n, const Site& site) {
  if (skipped(site)) return;
  meet(thread, site);
  Accumulators* own = find(thread.warpgroup, d);
  if (own == nullptr) own = &thread.warpgroup.accumulators.emplace_back();
  if (own->in_flight > 0) return;
  own->d = d;
  own->value.assign(d, d + n);
  own->fenced = true;
}

void Block::multiply_tiles(Thread& thread, const WarpgroupMultiply& multiply) {
  if (options_.capability < 90) fail(Fault::misuse, multiply.site, "wgmma needs sm_90a");
  take_accumulators(thread, multiply);
  thread.warpgroup.open.push_back(multiply);
  together(thread, ~0u, Together::multiply, true, &thread, check_operands, multiply.site);
}

void Block::commit_multiplies(Thread& thread, const Site& site) {
  meet(thread, site);
  thread.warpgroup.groups.push_back(std::move(thread.warpgroup.open));
  thread.warpgroup.open.clear();
}

void Block::wait_for_multiplies(Thread& thread, u32 groups_left, const Site& site) {
  if (skipped(site)) return;
  thread.groups_left = groups_left;
  const Complete complete = [](Block& block, u32, void** operands, const Site& place) {
    const Thread& first = *static_cast<Thread*>(operands[0]);
    Clock retired = 0;
    for (; first.warpgroup.groups.size() > first.groups_left; ++retired) {
      const std::size_t count = first.warpgroup.groups.front().size();
      for (std::size_t i = 0; i < count; ++i) multiply_now(block, operands, i);
      for (u32 lane = 0; lane < warp_size; ++lane) static_cast<Thread*>(operands[lane])->warpgroup.groups.pop_front();
    }
    const u32 agent = block.threads + mbarrier_agents + first.warp();
    for (u32 lane = 0; lane < warp_size; ++lane) {
      Thread& own = *static_cast<Thread*>(operands[lane]);
      own.clock[agent] = static_cast<Clock>(own.clock[agent] + retired);
      give_back(own, place);
    }
  };
  together(thread, ~0u, Together::multiply, true, &thread, complete, site);
}

}  // namespace nibble::device::simulator
