#pragma once

// How fast threads can read memory: the yardstick that every measurement is held against.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/result.h"

namespace megalith {

/// How a thread reads its part: as 1, 2, 4 or 8 streams side by side (the hardware prefetchers
/// follow each, and more lines are under way at once), with or without a software prefetch
/// `prefetch_bytes` ahead in every stream.
struct ReadMethod {
  int num_streams = 4;
  std::int64_t prefetch_bytes = 0;

  friend bool operator==(const ReadMethod&, const ReadMethod&) = default;
};

struct ReadProbeOptions {
  int num_threads = 1;
  std::vector<int> cpus;  ///< one for each thread to pin it to; empty: not pinned
  /// Over all threads, rounded up. Should be several times the last-level cache.
  std::size_t total_bytes = std::size_t{256} << 20;
  HugePages huge_pages = HugePages::kOff;
};

/// Threads that have touched their part of a buffer first and sleep until they are asked to read
/// it. Calls must not overlap.
class ReadProbe {
 public:
  /// Starts the threads and fills the buffer. Errors: kUsage, kOutOfMemory.
  static Result<std::unique_ptr<ReadProbe>> Start(const ReadProbeOptions& options);
  virtual ~ReadProbe() = default;

  /// Reads everything `num_passes` (>= 1) times, after one more pass of up to 16 MiB a thread that
  /// wakes clocks and translations up and is not counted. Returns bytes per second of each pass,
  /// from the common start to the end of the last thread. kUsage for a number of streams that there
  /// is no loop for.
  virtual Result<std::vector<double>> Read(const ReadMethod& method, int num_passes) = 0;

  virtual std::size_t total_bytes() const = 0;  ///< really read in each pass
  /// What the buffer's pages are. kIo.
  virtual Result<PageReport> Pages() const = 0;
};

}  // namespace megalith
