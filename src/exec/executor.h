#pragma once

// What runs a Program, whichever way: the reference interpreter (reference/) and the CPU engine
// (cpu/) implement this one interface and give the same bits on the same instruction-set path.

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "program/trace.h"

namespace megalith::exec {

class DeviceMemory;

/// Consecutive tokens of the sequence that lives in `slot`, at positions first_position and up.
struct Run {
  std::int32_t slot = 0;
  std::int32_t first_position = 0;
  std::int32_t count = 0;
};

/// One step: the runs' tokens one after the other, one row per token. Read only during the call.
struct StepInput {
  std::span<const Run> runs;
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t>
      logit_rows;  ///< rows whose logits are wanted, any order; may be empty
};

/// Logits of the requested rows, in the order of StepInput::logit_rows. Valid until the next step.
class Logits {
 public:
  Logits() = default;
  Logits(const float* data, std::int64_t row_stride, std::int64_t rows, std::int64_t vocab_size)
      : data_(data), row_stride_(row_stride), rows_(rows), vocab_size_(vocab_size) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t vocab_size() const { return vocab_size_; }
  /// [vocab_size] f32. May hold NaN or infinity: the caller decides what that means.
  std::span<const float> Row(std::int64_t row) const {
    return {data_ + row * row_stride_, static_cast<std::size_t>(vocab_size_)};
  }

 private:
  const float* data_ = nullptr;
  std::int64_t row_stride_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t vocab_size_ = 0;
};

struct ExecutorLimits {
  std::int32_t max_rows = 0;        ///< of the largest row bucket
  std::int32_t max_logit_rows = 0;  ///< of the largest row bucket
  std::int32_t num_slots = 0;
  std::int32_t max_positions = 0;
  std::int32_t vocab_size = 0;
};

/// One step at a time: calls must not overlap.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Runs one step. Everything is checked before anything runs: kOutOfRange names the value (token,
  /// row, slot, position), kOutOfMemory says how many cache pages are missing; the sequences are
  /// then as before. After any other error the sequences of this step are lost and have to restart
  /// at position 0.
  virtual Result<Logits> Step(const StepInput& input) = 0;

  /// Ends the sequence in `slot` and returns its pages. Releasing an empty slot is allowed.
  virtual Status ReleaseSlot(std::int32_t slot) = 0;

  virtual const ExecutorLimits& limits() const = 0;

  /// State and buffers, for reports and for tests that compare them between executors.
  virtual const DeviceMemory& memory() const = 0;

  /// The latest steps that were traced: of short steps only so many that it costs next to nothing.
  /// Programs are those of memory(). Empty if the executor keeps no trace. Allocates.
  virtual program::Trace ReadTrace() const { return {}; }
  /// From now on every step is traced, which may slow down very short steps by a few per cent.
  virtual void TraceEveryStep() {}

  /// One line: which engine, instruction set, workers, how they are placed.
  virtual std::string Describe() const = 0;
};

}  // namespace megalith::exec
