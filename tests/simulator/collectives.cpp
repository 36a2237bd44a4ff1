// What the lanes of a warp compute together, done by the last lane that comes.
#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "tests/simulator/backend/device.hpp"

namespace nibble::device::simulator {
namespace {

// bf16 or fp16 operands of mma.m16n8k16. Lane 4 * g + q holds rows g and g + 8 of A and column g of B, and of each the
// elements 2q, 2q + 1, 2q + 8 and 2q + 9 along k; and D in rows g and g + 8, columns 2q and 2q + 1.
template <class Half> void multiply(void** operands) {
  constexpr u32 m = 16, n = 8, k = 16;
  float a[m][k], b[k][n], d[m][n];
  const auto value = [](u32 bits) { return to_float(Half{static_cast<u16>(bits)}); };
  for (u32 lane = 0; lane < warp_size; ++lane) {
    const Multiply& own = *static_cast<Multiply*>(operands[lane]);
    const u32 g = lane / 4, q = lane % 4;
    for (u32 j = 0; j < 4; ++j) {
      const u32 row = g + 8 * (j & 1), column = 2 * q + 8 * (j >> 1);
      a[row][column] = value(own.a[j]);
      a[row][column + 1] = value(own.a[j] >> 16);
      d[g + 8 * (j >> 1)][2 * q + (j & 1)] = own.d[j];
    }
    for (u32 j = 0; j < 2; ++j) {
      b[2 * q + 8 * j][g] = value(own.b[j]);
      b[2 * q + 8 * j + 1][g] = value(own.b[j] >> 16);
    }
  }
  // Products are exact. The device sums them in an order it does not tell: here they come first, the accumulator last.
  for (u32 row = 0; row < m; ++row) {
    float sum[n] = {};
    for (u32 i = 0; i < k; ++i)
      for (u32 column = 0; column < n; ++column) sum[column] += a[row][i] * b[i][column];
    for (u32 column = 0; column < n; ++column) d[row][column] += sum[column];
  }
  for (u32 lane = 0; lane < warp_size; ++lane) {
    const Multiply& own = *static_cast<Multiply*>(operands[lane]);
    for (u32 j = 0; j < 4; ++j) own.d[j] = d[lane / 4 + 8 * (j >> 1)][2 * (lane % 4) + (j & 1)];
  }
}

}  // namespace

void complete_shuffle(Block& /*block*/, u32 mask, void** operands, const Site& site) {
  for (u32 rest = mask; rest != 0; rest &= rest - 1) {
    Shuffle& own = *static_cast<Shuffle*>(operands[std::countr_zero(rest)]);
    if ((mask >> own.source & 1) == 0)
      fail(Fault::divergence, site,
           fmt::format("shfl reads lane {}, which is not in the mask {:08x}", own.source, mask));
    own.result = static_cast<Shuffle*>(operands[own.source])->value;
  }
}

void complete_vote(Block& /*block*/, u32 mask, void** operands, const Site& /*site*/) {
  u32 votes = 0;
  for (u32 rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = std::countr_zero(rest);
    if (static_cast<Vote*>(operands[lane])->predicate) votes |= 1u << lane;
  }
  for (u32 rest = mask; rest != 0; rest &= rest - 1)
    static_cast<Vote*>(operands[std::countr_zero(rest)])->result = votes;
}

template <int Matrices, bool Transposed>
void complete_load_matrix(Block& block, u32 /*mask*/, void** operands, const Site& site) {
  u16 matrix[Matrices][8][8];
  const u32 first = current->warp() * warp_size;
  for (u32 lane = 0; lane < 8 * Matrices; ++lane) {
    const Shared<u8> row = static_cast<MatrixRow*>(operands[lane])->row;
    const char* from = row.checked(16, 16, site);
    const Thread& reader = block.thread(first + lane);
    block.shared.read(reader.who, reader.clock, row.address(), 16, site);
    std::memcpy(matrix[lane / 8][lane % 8], from, 16);
  }
  for (u32 lane = 0; lane < warp_size; ++lane) {
    MatrixRow& own = *static_cast<MatrixRow*>(operands[lane]);
    const u32 g = lane / 4, q = lane % 4;
    for (u32 i = 0; i < Matrices; ++i) {
      const u32 low = Transposed ? matrix[i][2 * q][g] : matrix[i][g][2 * q];
      const u32 high = Transposed ? matrix[i][2 * q + 1][g] : matrix[i][g][2 * q + 1];
      own.result[i] = low | high << 16;
    }
  }
}
template void complete_load_matrix<4, false>(Block&, u32, void**, const Site&);
template void complete_load_matrix<4, true>(Block&, u32, void**, const Site&);
template void complete_load_matrix<2, false>(Block&, u32, void**, const Site&);
template void complete_load_matrix<2, true>(Block&, u32, void**, const Site&);

void complete_multiply_bf16(Block& /*block*/, u32 /*mask*/, void** operands, const Site& /*site*/) {
  multiply<bf16>(operands);
}
void complete_multiply_f16(Block& /*block*/, u32 /*mask*/, void** operands, const Site& /*site*/) {
  multiply<f16>(operands);
}

}  // namespace nibble::device::simulator
