#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/result.h"
#include "kernels/sampling.h"
#include "program/verifier.h"

namespace megalith::exec::cpu {

/// Private memory of one worker, sized once for the largest instruction of its streams in any
/// Program, so that a step allocates nothing. Touched first by its worker.
class Scratch {
 public:
  /// Accumulators of one group of panels stay in the L2: 256 KiB. Kernels prepare the rows once for
  /// a group and walk many rows in parts of the inputs, so its weights need not fit.
  static constexpr std::int64_t kAccFloats = std::int64_t{64} << 10;
  /// The same for few rows, whose outputs should be near when the epilogue reads them: 128 KiB.
  static constexpr std::int64_t kFewRowsAccFloats = std::int64_t{32} << 10;

  /// `programs`: all row buckets. kOutOfMemory.
  static Result<Scratch> Allocate(const std::vector<program::VerifiedProgram>& programs,
                                  std::int32_t worker);

  float* acc() const { return acc_; }        // [rows of a slab][panels of a group * 16]
  float* sum() const { return sum_; }        // the same for all rows, for sums over experts
  float* kernel() const { return kernel_; }  // what the kernel needs
  /// For instructions that choose tokens; null if the worker has none.
  kernels::SamplingScratch* sampling() const { return sampling_.get(); }
  const void** sources() const { return reinterpret_cast<const void**>(sources_); }

  /// Rows that are multiplied with a group of panels before the next: the x of all of them is read
  /// again for every group and should come from the L3 at worst.
  static constexpr std::int64_t kSlabRows = 256;

  /// Panels (a multiple of `unit`) to multiply `rows` rows with before the epilogue.
  static std::int64_t GroupPanels(std::int64_t rows, std::int64_t unit);

 private:
  Arena arena_;
  float* acc_ = nullptr;
  float* sum_ = nullptr;
  float* kernel_ = nullptr;
  std::byte* sources_ = nullptr;
  std::unique_ptr<kernels::SamplingScratch> sampling_;
};

}  // namespace megalith::exec::cpu
