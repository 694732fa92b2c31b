#pragma once

#include <cstddef>
#include <vector>

#include "base/cancel.h"
#include "base/result.h"

namespace megalith {

struct BandwidthOptions {
  int num_threads = 1;
  std::vector<int> cpus;  ///< one for each thread to pin it to; empty: not pinned
  std::size_t total_bytes = std::size_t{1} << 30;  ///< read in each pass, over all threads; should
                                                   ///< be several times the last-level cache
  int num_passes = 3;                              ///< measured passes for each number of streams
  const CancelFlag* cancel = nullptr;
};

struct BandwidthResult {
  double best_gb_per_s;     ///< 10^9 bytes per second, fastest pass
  double median_gb_per_s;   ///< of the passes with the best number of streams
  int num_streams;          ///< per thread, in the fastest pass
  std::size_t total_bytes;  ///< really read in each pass
  bool huge_pages;          ///< most of the buffer was on huge pages
};

/// How fast these threads together can read memory they touched first: each sums its own part in
/// plain vector code, as 1, 4 and 8 streams side by side. Takes about
/// 3 * (num_passes + 1) * total_bytes / bandwidth. Errors: kUsage, kOutOfMemory, kCancelled.
Result<BandwidthResult> MeasureReadBandwidth(const BandwidthOptions& options);

}  // namespace megalith
