#include "synth/random_bits.h"

#include <array>
#include <cmath>
#include <cstddef>

namespace megalith::synth {

std::uint64_t StreamKey(std::uint64_t seed, std::string_view tensor_name) {
  std::uint64_t key = RandomBits(seed, 0);
  for (const char c : tensor_name) {
    key = RandomBits(key ^ static_cast<unsigned char>(c), 0);
  }
  return key;
}

double NormalQuantile(double p) {
  // Bisection on the distribution function: short, exact, and only a few thousand are ever needed.
  double low = -10.0;
  double high = 10.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(-middle * M_SQRT1_2) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

const float* NormalQuantiles() {
  static const auto table = [] {
    std::array<float, kNormalCount> values = {};
    for (std::size_t i = 0; i < kNormalCount / 2; ++i) {
      const double z = NormalQuantile((static_cast<double>(i) + 0.5) / kNormalCount);
      values[i] = static_cast<float>(z);
      values[kNormalCount - 1 - i] = static_cast<float>(-z);
    }
    return values;
  }();
  return table.data();
}

}  // namespace megalith::synth
