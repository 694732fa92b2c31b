#pragma once

#include <cstdint>
#include <vector>

namespace megalith::program {

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

/// [0, total) in so many contiguous ranges whose sizes differ by at most one.
std::vector<Range> SplitEvenly(std::int64_t total, std::int32_t parts);
/// The same of any range.
std::vector<Range> SplitEvenly(Range range, std::int32_t parts);

/// Splits several matrices that run between the same two joins so that every worker's sum of bytes
/// is level, while each single matrix is still spread over as many workers as possible: small
/// matrices that others wait for finish early, the large ones fill up the difference.
class LoadLeveler {
 public:
  explicit LoadLeveler(std::int32_t num_workers)
      : load_(static_cast<std::size_t>(num_workers), 0.0) {}

  /// Ranges of [0, units); a unit (a panel, a gate-up pair, a head) costs unit_bytes.
  std::vector<Range> Split(std::int64_t units, std::int64_t unit_bytes);

 private:
  std::vector<double> load_;  // bytes so far, per worker
};

}  // namespace megalith::program
