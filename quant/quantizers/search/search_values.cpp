#include "quant/quantizers/search/search_values.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace nibble {

SearchValues::SearchValues(const FourBitTables& tables) {
  std::size_t count = 0;
  float last = 0;
  for (const std::uint8_t code : tables.code) {
    const float codebook_value = tables.codebook[code];
    if (count > 0 && codebook_value == last) continue;
    const auto rounded = static_cast<std::int16_t>(std::rint(codebook_value * unit));
    value[2 * count] = value[2 * count + 1] = rounded;
    lower[count] = static_cast<std::uint8_t>(rounded & 0xFF);
    upper[count] = static_cast<std::uint8_t>(rounded >> 8 & 0xFF);
    last = codebook_value;
    ++count;
  }

  constexpr int size = 1 << 8, numbers = 2 * size;
  for (int first = -end; first < end; first += size) {
    const auto before = static_cast<int>(number(tables, first));
    int step = first;  // the first y of the bucket that has another number
    while (step < first + size && static_cast<int>(number(tables, step)) == before) ++step;
    // Without such a y, the sums are in the middle of what `before` may have.
    assert(static_cast<int>(number(tables, first + size - 1)) <= before + 1);
    const int turn = step < first + size ? numbers * (before + 1) - step : numbers * before + size / 2 - first;
    bucket[static_cast<std::size_t>(first / size & 31)] = static_cast<std::int16_t>(turn);
  }
}

std::size_t SearchValues::number(const FourBitTables& tables, int y) {
  const int x = std::clamp(8 * y, -32767, 32767), guess = tables.guess(x);
  const int number = x > tables.position(guess) ? guess + 1 : guess;
  return static_cast<std::size_t>(number);
}

}  // namespace nibble
