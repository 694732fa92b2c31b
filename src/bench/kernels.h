#pragma once

// Every kernel of the kernel table alone, on one thread: matmul tiles on cold weights beside what
// one thread can read (few rows) or multiply (many rows), the others as time per call.

#include <cstdint>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/progress.h"
#include "base/result.h"
#include "bench/rounds.h"
#include "kernels/kernel_table.h"

namespace megalith::bench {

struct KernelOptions {
  std::vector<kernels::Isa> isas;
  std::vector<std::int64_t> inputs = {7168, 3584};
  std::vector<std::int64_t> rows = {1, 2, 4, 8, 16, 64};
  std::string only;  ///< kernels whose name contains it; empty: all
  int rounds = 5;
  double turn_seconds = 0.03;
  std::size_t cold_bytes = std::size_t{256} << 20;  ///< of weights, read in turns so that none is
                                                    ///< in a cache when it comes round again
  std::size_t probe_bytes = 0;                      ///< 0: kYardstickBytes
  ProgressCallback progress;
  const CancelFlag* cancel = nullptr;
};

/// From this many rows on, a matmul is held against the multiply rate instead of the read rate.
inline constexpr std::int64_t kMultiplyBoundRows = 16;

struct KernelResult {
  std::string kernel;  ///< "matmul_mxfp4", "kda_head", ...
  std::string shape;   ///< for people: "K 7168, rows 8"
  kernels::Isa isa = kernels::Isa::kPortable;
  std::int64_t inputs = 0;  ///< 0: not a matmul
  std::int64_t rows = 0;
  double bytes_per_call = 0.0;  ///< cold ones
  double flops_per_call = 0.0;  ///< multiplications and additions; 0: not counted
  /// "read, 1 stream" or the name of an instruction; empty: no yardstick, only times count.
  std::string yardstick;
  Series series;  ///< amount: bytes or operations, as the yardstick; items: calls
};

/// Runs on the calling thread, pinned meanwhile to the first worker's CPU. Errors: kUsage for a
/// path that this CPU cannot run or an empty choice; those of ReadProbe::Start.
Result<std::vector<KernelResult>> MeasureKernels(const KernelOptions& options);

}  // namespace megalith::bench
