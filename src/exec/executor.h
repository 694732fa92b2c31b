#pragma once

// What runs a Program, whichever way: the reference interpreter (reference/) and the CPU engine
// (cpu/) implement this one interface and give the same bits on the same instruction-set path.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "kernels/sampling.h"
#include "program/trace.h"

namespace megalith::exec {

class CallMirror;
class DeviceMemory;
class Snapshot;
struct Call;

/// Consecutive tokens of the sequence that lives in `slot`, at positions first_position and up.
struct Run {
  std::int32_t slot = 0;
  std::int32_t first_position = 0;
  std::int32_t count = 0;
  /// The last so many tokens are drafts: each is kept only if the token chosen after the row before
  /// it is the same and all drafts before it are kept. The sequence grows by what is kept. Less
  /// than count; needs wants_token.
  std::int32_t num_drafts = 0;
  /// Choose the token after each of the last num_drafts + 1 rows.
  bool wants_token = false;
  /// Let the drafter propose so many tokens to follow the last one chosen.
  std::int32_t next_drafts = 0;
  kernels::SamplingOptions sampling{};
  /// [num_drafts + 1]: what changes the logits of the last rows before their tokens are chosen;
  /// empty: nothing does. Read during the call only. The drafter does not know of it.
  std::span<const kernels::LogitAdjustment> adjustments;
};

/// One step: the runs' tokens one after the other, one row per token. Read only during the call.
struct StepInput {
  std::span<const Run> runs;
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t>
      logit_rows;  ///< rows whose logits are wanted, any order; may be empty
};

/// What a step gave one run that wants tokens.
struct RunOutput {
  /// [num_drafts + 1]: the token chosen after each of the last rows, given the tokens before it;
  /// those after num_accepted follow drafts that were not kept. -1: the logits were no
  /// distribution.
  std::span<const std::int32_t> tokens;
  std::int32_t num_accepted = 0;         ///< drafts kept; tokens[num_accepted] comes after them
  std::span<const std::int32_t> drafts;  ///< [next_drafts] proposals after tokens[num_accepted]
  /// [next_drafts]: sigmoid of this is the chance that the draft is kept if those before it are;
  /// empty if the drafter has no confidence head.
  std::span<const float> confidence;
  std::int32_t first_logit_row = 0;  ///< logits of the last rows: first_logit_row + [0, num_drafts]
};

/// Valid until the next step.
class StepOutput {
 public:
  StepOutput() = default;
  StepOutput(const float* data, std::int64_t row_stride, std::int64_t rows, std::int64_t vocab_size,
             std::span<const RunOutput> runs)
      : data_(data), row_stride_(row_stride), rows_(rows), vocab_size_(vocab_size), runs_(runs) {}

  /// One per run of the step; empty for those that want no token.
  std::span<const RunOutput> runs() const { return runs_; }
  /// Rows of logits: those of StepInput::logit_rows in that order, then those of the runs.
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
  std::span<const RunOutput> runs_;
};

struct ExecutorLimits {
  std::int32_t max_rows = 0;        ///< of the largest row bucket
  std::int32_t max_logit_rows = 0;  ///< of the largest row bucket
  std::int32_t num_slots = 0;
  std::int32_t max_positions = 0;
  std::int32_t vocab_size = 0;
  std::int32_t max_drafts = 0;       ///< of a run
  std::int32_t max_next_drafts = 0;  ///< proposals of the drafter; 0: there is none
};

/// One step at a time: calls must not overlap. With a mirror (call_mirror.h) each call that changes
/// the executor is announced there before it is made.
class Executor {
 public:
  explicit Executor(std::unique_ptr<DeviceMemory> memory);
  virtual ~Executor();

  /// Runs one step. Everything is checked before anything runs: kOutOfRange names the value (token,
  /// row, slot, position), kOutOfMemory says how many cache pages are missing; the sequences are
  /// then as before. After any other error the sequences of this step are lost and have to restart
  /// at position 0.
  Result<StepOutput> Step(const StepInput& input);

  /// Takes back the last tokens of the sequence in `slot`, to `length`: only drafts that its last
  /// step kept. kOutOfRange otherwise, with both lengths.
  Status Truncate(std::int32_t slot, std::int32_t length);

  /// Ends the sequence in `slot` and returns its pages. Releasing an empty slot is allowed.
  Status ReleaseSlot(std::int32_t slot);

  /// The sequence in `slot` as it is, to be gone on from later (snapshot.h). Errors: kOutOfRange
  /// for a slot that does not exist, kUsage for an empty one, kOutOfMemory.
  Result<std::unique_ptr<Snapshot>> Save(std::int32_t slot);

  /// Makes the sequence in `slot` the one of the snapshot: what is run next gives the same bits as
  /// if its tokens had just been run here. Errors leave the slot as it was: kOutOfRange,
  /// kOutOfMemory (a cache page is needed).
  Status Restore(const Snapshot& snapshot, std::int32_t slot);

  /// A snapshot of `length` tokens whose contents are to be filled in. kOutOfRange, kOutOfMemory.
  Result<std::unique_ptr<Snapshot>> NewSnapshot(std::int32_t length);

  const ExecutorLimits& limits() const;

  /// From now on calls are repeated by `mirror`, which is destroyed after everything else of the
  /// executor. Once, before there are sequences or snapshots.
  void SetMirror(std::unique_ptr<CallMirror> mirror);

  /// State and buffers, for reports and for tests that compare them between executors.
  const DeviceMemory& memory() const { return *memory_; }

  /// The latest steps that were traced: of short steps only so many that it costs next to nothing.
  /// Programs are those of memory(). Empty if the executor keeps no trace. Allocates.
  virtual program::Trace ReadTrace() const { return {}; }
  /// From now on every step is traced, which may slow down very short steps by a few per cent.
  virtual void TraceEveryStep() {}

  /// One line: which engine, instruction set, workers, how they are placed.
  virtual std::string Describe() const = 0;

 protected:
  virtual Result<StepOutput> RunStep(const StepInput& input) = 0;

  DeviceMemory& device() { return *memory_; }
  const DeviceMemory& device() const { return *memory_; }

 private:
  template <typename Make>
  auto Mirrored(const Call& call, Make&& make) -> decltype(make());
  Result<std::unique_ptr<Snapshot>> Named(Call call,
                                          Result<std::unique_ptr<Snapshot>> (*make)(DeviceMemory&,
                                                                                    const Call&));

  std::unique_ptr<CallMirror> mirror_;  // null: nobody repeats anything
  std::uint64_t num_snapshots_ = 0;     // names given so far
  std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace megalith::exec
