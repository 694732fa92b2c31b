#include "bench/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace megalith::bench {

Summary Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back()};
}

bool IsSteady(double probe_before, double probe_after) {
  return std::fabs(probe_before - probe_after) <=
         kMaxProbeDifference * std::min(probe_before, probe_after);
}

std::string TokenHash(std::span<const std::int32_t> tokens) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::int32_t token : tokens) {
    const auto bits = static_cast<std::uint32_t>(token);
    for (int byte = 0; byte < 4; ++byte) {
      hash ^= (bits >> (8 * byte)) & 0xffu;
      hash *= 0x100000001b3u;
    }
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace megalith::bench
