#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace megalith::bench {

/// The middle of several measurements of one thing. All 0 if there are none.
struct Summary {
  double median = 0.0;  ///< of an even number: the mean of the middle two
  double min = 0.0;
  double max = 0.0;
};
Summary Summarize(std::vector<double> values);

/// A round does not count if its probes before and after differ by more than this part of the
/// smaller: the machine was not the same machine throughout.
inline constexpr double kMaxProbeDifference = 0.15;
bool IsSteady(double probe_before, double probe_after);

/// 64-bit FNV-1a of the tokens as little-endian 32-bit numbers, 16 hexadecimal digits. A fast wrong
/// run shows in it.
std::string TokenHash(std::span<const std::int32_t> tokens);

}  // namespace megalith::bench
