#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/read_probe.h"
#include "base/result.h"
#include "bench/rounds.h"

namespace megalith::bench {

/// The ways of reading that are tried; which is best differs from machine to machine (one stream
/// with huge pages on some, four or eight with a prefetch on others).
inline constexpr ReadMethod kYardstickMethods[] = {{1, 0},   {4, 0},   {8, 0},    {1, 1024},
                                                   {4, 512}, {8, 512}, {4, 1024}, {8, 1024}};
/// Several times the last-level cache of the machines we know, and little beside a model.
inline constexpr std::size_t kYardstickBytes = std::size_t{256} << 20;

struct MemoryYardstick {
  std::unique_ptr<ReadProbe> probe;
  ReadMethod method;
  Yardstick measure;  ///< bytes per second; uses `probe`
};

/// The read rate of `num_threads` threads on these CPUs (empty: not pinned), the median of 3 passes
/// over `total_bytes` with the method that was fastest at the start. Before each measurement it
/// waits until idle workers of an engine sleep.
/// Errors: those of ReadProbe::Start.
Result<MemoryYardstick> StartMemoryYardstick(int num_threads, const std::vector<int>& cpus,
                                             HugePages huge_pages,
                                             std::size_t total_bytes = kYardstickBytes);

/// "1 stream", "4 streams, prefetch 1024 ahead".
std::string Describe(const ReadMethod& method);

}  // namespace megalith::bench
