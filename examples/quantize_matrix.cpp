// Quantizes a matrix in memory and prints the error: the arithmetic of nibble, without files.

#include <cmath>
#include <iostream>
#include <nibble/nibble.hpp>
#include <random>
#include <vector>

int main() {
  constexpr std::size_t weights = 1 << 20;
  constexpr std::size_t blocksize = 64;
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> original(weights);
  for (float& weight : original) weight = normal(generator);

  std::vector<std::uint8_t> packed(weights / 2);
  std::vector<float> absmax(weights / blocksize);
  nibble::nf4::encode(original, blocksize, packed, absmax);

  std::vector<float> decoded(weights);
  nibble::nf4::decode(packed, absmax, blocksize, decoded);

  double error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < weights; ++i) {
    error += std::pow(double{original[i]} - double{decoded[i]}, 2);
    energy += std::pow(double{original[i]}, 2);
  }
  std::cout << "NF4, block size 64, of normal weights: SQNR " << 10 * std::log10(energy / error)
            << " dB (expected: 20.73)\n";
}
