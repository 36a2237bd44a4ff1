// wgmma, as one warp sees it: 16 of the 64 rows. Operands are read when the result is waited for; until then a write to
// them is a race.
#include "tests/simulator/warpgroup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "tests/simulator/backend/device.hpp"

namespace nibble::device::simulator {
namespace {

constexpr u32 poison = 0x7fc0dead;    // a NaN in accumulators that belong to the hardware
constexpr u32 rows = 16, depth = 16;  // of A, per warp; along k

bool is_poison(float value) { return std::bit_cast<u32>(value) == poison; }

struct Operand {
  u64 descriptor;
  Major major;
};

// Where 8 elements of an operand lie: from (row, k) on along k, or along the rows if that is how they lie. Either way
// they are 16 bytes of a line of 128, eight lines are a group, and lines are swizzled.
u32 operand_offset(const Block& block, const Operand& operand, u32 row, u32 k, const Site& site) {
  const u64 descriptor = operand.descriptor;
  if (descriptor >> 62 != static_cast<u64>(Swizzle::bytes128))
    fail(Fault::wgmma, site, "a descriptor without the 128-byte swizzle is not simulated");
  if ((descriptor >> 49 & 7) != 0) fail(Fault::wgmma, site, "a descriptor with a base offset is not simulated");
  const u32 start = static_cast<u32>(descriptor & 0x3fff) << 4;
  const u32 leading = static_cast<u32>(descriptor >> 16 & 0x3fff) << 4;
  const u32 stride = static_cast<u32>(descriptor >> 32 & 0x3fff) << 4;
  const u32 plain =
      start + (operand.major == Major::k ? row / 8 * stride + row % 8 * 128 + 2 * k
                                         : row / 64 * leading + row % 64 * 2 + k / 8 * stride + k % 8 * 128);
  const u32 offset = plain ^ (plain >> 3 & 0x70);
  if (offset + 16 > block.shared.used())
    fail(Fault::shared_bounds, site, fmt::format("wgmma reads shared byte {} of {}", offset, block.shared.used()));
  return offset;
}

// Calls piece(row, k) for each 8 elements that lie together.
template <class Piece> void for_pieces(Major major, u32 first_row, u32 count, Piece&& piece) {
  const u32 row_step = major == Major::k ? 1 : 8, k_step = major == Major::k ? 8 : 1;
  for (u32 row = first_row; row < first_row + count; row += row_step)
    for (u32 k = 0; k < depth; k += k_step) piece(row, k);
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

// The registers of A of one lane must be as a fence saw them, and stay so.
void take_registers(Thread& thread, WarpgroupMultiply& multiply) {
  if (multiply.a_registers == nullptr) return;
  std::copy_n(multiply.a_registers, 4, multiply.a_values);
  for (const FencedRegisters& fenced : thread.warpgroup.fenced_registers) {
    const std::less<> before;  // pointers into different arrays
    const u32* const end = fenced.begin + fenced.value.size();
    if (before(multiply.a_registers, fenced.begin) || !before(multiply.a_registers, end)) continue;
    if (std::equal(multiply.a_values, multiply.a_values + 4,
                   fenced.value.begin() + (multiply.a_registers - fenced.begin)))
      return;
  }
  fail(Fault::wgmma, multiply.site, "no wgmma_fence of these registers of A since they were written");
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
    if (own.adds != multiply.adds) fail(Fault::wgmma, site, "the lanes' scale_d differs");
    for (u32 i = 0; i < block.clock_size(); ++i) {
      clock[i] = std::min(clock[i], thread.clock[i]);
      proxy[i] = std::min(proxy[i], thread.proxy_clock[i]);
    }
  }
  const u32 agent = block.first_agent() + mbarrier_agents + first.warp();
  const auto step = static_cast<Clock>(first.clock[agent] + 1 + first.warpgroup.groups.size());  // they end in order
  const auto read = [&](const Operand& operand, u32 first_row, u32 count) {
    for_pieces(operand.major, first_row, count, [&](u32 row, u32 k) {
      block.shared.read_by_proxy(agent, step, clock.data(), proxy.data(), operand_offset(block, operand, row, k, site),
                                 16, site);
    });
  };
  if (multiply.a_registers == nullptr) read({multiply.a, multiply.major_a}, first.warp() % 4 * rows, rows);
  read({multiply.b, multiply.major_b}, 0, multiply.n);
}

// The 16 rows of A that the lanes' registers hold, as for mma.m16n8k16.
void load_registers(void** operands, std::size_t i, float (&a)[rows][depth]) {
  for (u32 lane = 0; lane < warp_size; ++lane) {
    const WarpgroupMultiply& own = static_cast<Thread*>(operands[lane])->warpgroup.groups.front()[i];
    for (u32 j = 0; j < 8; ++j) {
      const auto bits = static_cast<u16>(own.a_values[j / 2] >> 16 * (j % 2));
      a[lane / 4 + 8 * (j / 2 % 2)][2 * (lane % 4) + 8 * (j / 4) + j % 2] =
          own.is_f16 ? to_float(f16{bits}) : to_float(bf16{bits});
    }
  }
}

// Adds the product of one multiplication to the accumulators of all lanes.
void multiply_now(Block& block, void** operands, std::size_t i) {
  const Thread& first = *static_cast<Thread*>(operands[0]);
  const WarpgroupMultiply& multiply = first.warpgroup.groups.front()[i];
  float a[rows][depth];
  static thread_local float b[256][depth];
  const auto load = [&](float(*to)[depth], const Operand& operand, u32 first_row, u32 count) {
    for_pieces(operand.major, first_row, count, [&](u32 row, u32 k) {
      const char* from = block.shared.data() + operand_offset(block, operand, row, k, multiply.site);
      for (u32 j = 0; j < 8; ++j)
        (operand.major == Major::k ? to[row - first_row][k + j] : to[row - first_row + j][k]) =
            element(from + 2 * j, multiply.is_f16);
    });
  };
  if (multiply.a_registers != nullptr)
    load_registers(operands, i, a);
  else
    load(a, {multiply.a, multiply.major_a}, first.warp() % 4 * rows, rows);
  load(b, {multiply.b, multiply.major_b}, 0, multiply.n);
  for (u32 lane = 0; lane < warp_size; ++lane) {
    Thread& thread = *static_cast<Thread*>(operands[lane]);
    Accumulators& own = *find(thread.warpgroup, thread.warpgroup.groups.front()[i].d);
    for (u32 j = 0; j < multiply.n / 2; ++j) {
      const u32 row = lane / 4 + 8 * (j >> 1 & 1), column = 8 * (j >> 2) + 2 * (lane % 4) + (j & 1);
      float sum = 0;
      for (u32 k = 0; k < depth; ++k) sum += a[row][k] * b[column][k];
      own.value[j] = multiply.adds ? own.value[j] + sum : sum;
    }
    own.in_flight -= 1;
    const WarpgroupMultiply& of_lane = thread.warpgroup.groups.front()[i];
    if (of_lane.a_registers != nullptr && !std::equal(of_lane.a_values, of_lane.a_values + 4, of_lane.a_registers))
      fail(Fault::wgmma, of_lane.site, "registers of A were written while the wgmma was in flight");
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

void Block::fence_registers(Thread& thread, const u32* a, u32 n, const Site& site) {
  if (skipped(site)) return;
  auto& all = thread.warpgroup.fenced_registers;
  std::erase_if(all, [&](const FencedRegisters& one) { return one.begin == a; });
  all.push_back({a, {a, a + n}});
}

void Block::multiply_tiles(Thread& thread, WarpgroupMultiply multiply) {
  if (options_.loaded_target() != 90) fail(Fault::misuse, multiply.site, "wgmma needs sm_90a");
  take_accumulators(thread, multiply);
  take_registers(thread, multiply);
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
  const Complete complete = [](Block& block, u32, void** operands, const Site& at) {
    const Thread& first = *static_cast<Thread*>(operands[0]);
    Clock retired = 0;
    for (; first.warpgroup.groups.size() > first.groups_left; ++retired) {
      const std::size_t count = first.warpgroup.groups.front().size();
      for (std::size_t i = 0; i < count; ++i) multiply_now(block, operands, i);
      for (u32 lane = 0; lane < warp_size; ++lane) static_cast<Thread*>(operands[lane])->warpgroup.groups.pop_front();
    }
    const u32 agent = block.first_agent() + mbarrier_agents + first.warp();
    for (u32 lane = 0; lane < warp_size; ++lane) {
      Thread& own = *static_cast<Thread*>(operands[lane]);
      own.clock[agent] = static_cast<Clock>(own.clock[agent] + retired);
      give_back(own, at);
    }
  };
  together(thread, ~0u, Together::multiply, true, &thread, complete, site);
}

}  // namespace nibble::device::simulator
