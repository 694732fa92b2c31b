#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/result.h"
#include "bench/kernels.h"
#include "kernels/kernel_table.h"

namespace megalith::bench {

/// One kernel with its arguments.
struct KernelCase {
  KernelResult result;         ///< all but yardstick and series
  std::function<void()> call;  ///< once, on the next cold piece if it has any
};

/// Memory that kernels read cold, handed out piece after piece and again from the start.
class ColdMemory {
 public:
  explicit ColdMemory(Arena arena) : arena_(std::move(arena)) {}
  /// `bytes` <= size. 64-byte aligned for multiples of 64.
  std::byte* Next(std::size_t bytes) {
    if (position_ + bytes > arena_.size_bytes()) position_ = 0;
    std::byte* piece = arena_.data() + position_;
    position_ += bytes;
    return piece;
  }
  std::byte* data() const { return arena_.data(); }
  std::size_t size_bytes() const { return arena_.size_bytes(); }

 private:
  Arena arena_;
  std::size_t position_ = 0;
};

/// Weights of one format and width: one packed panel repeated to the end of the memory.
Result<ColdMemory> MakeColdPanels(int format, std::int64_t inputs, std::size_t bytes);

/// Products of every row count with the panels. `panels` must outlive the cases.
std::vector<KernelCase> MatmulCases(int format, std::int64_t inputs, ColdMemory& panels,
                                    const KernelOptions& options);

/// All kernels that are no matmul. `states`: memory that was written, must outlive the cases.
std::vector<KernelCase> OtherCases(ColdMemory& states, const KernelOptions& options);

std::string FormatName(int format);

}  // namespace megalith::bench
