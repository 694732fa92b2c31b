#pragma once

// Random bits by position: any part of a stream can be made without what precedes it, so a file has
// the same bytes whatever the threads that filled it.

#include <cstdint>
#include <string_view>

namespace megalith::synth {

/// The 64 bits of stream `key` at `index`: a bijective mix of a Weyl sequence (the construction of
/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
inline std::uint64_t RandomBits(std::uint64_t key, std::uint64_t index) {
  std::uint64_t bits = key + (index + 1) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

/// The stream of one tensor: other seeds and other names give unrelated streams.
std::uint64_t StreamKey(std::uint64_t seed, std::string_view tensor_name);

inline constexpr int kNormalBits = 12;
inline constexpr int kNormalCount = 1 << kNormalBits;

/// [kNormalCount] the quantiles (i + 0.5) / kNormalCount of the standard normal distribution,
/// ascending: an index of kNormalBits random bits gives a normal value. Their mean is 0, their
/// variance within 0.1 % of 1.
const float* NormalQuantiles();

/// The quantile `p` in (0, 1) of the standard normal distribution.
double NormalQuantile(double p);

}  // namespace megalith::synth
