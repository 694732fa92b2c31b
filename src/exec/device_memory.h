#pragma once

// Everything a Program reads and writes besides weights: the activation arena, the state of every
// sequence, the cache pages, and the step's rows. One DeviceMemory serves all row buckets of a
// model: they run one at a time, so they share the arena.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/result.h"
#include "exec/executor.h"
#include "exec/sequences.h"
#include "exec/snapshot.h"
#include "program/program.h"
#include "program/verifier.h"

namespace megalith::exec {

/// The rows of one step, written by the host before the workers start and constant while they run.
struct StepRows {
  std::int32_t num_rows = 0;
  std::int32_t num_logit_rows = 0;
  std::vector<Run> runs;
  std::vector<std::int32_t> first_row;   // of each run
  std::vector<std::int32_t> token;       // [num_rows]
  std::vector<std::int32_t> slot;        // [num_rows]
  std::vector<std::int32_t> position;    // [num_rows]
  std::vector<std::int32_t> logit_rows;  // [num_logit_rows]
  std::vector<std::int32_t> logit_run;   // [num_logit_rows]: run whose token it chooses; -1: none
  std::vector<std::int32_t> first_logit_row;  // of each run, among logit_rows; -1: wants no token
  std::int32_t num_draft_runs = 0;
  std::vector<std::int32_t> draft_run;  // [num_draft_runs]: index into runs
};

/// How a run that chose tokens goes on: the drafts that agree, and what comes after them.
struct Acceptance {
  std::int32_t num_accepted = 0;
  std::int32_t token = 0;     ///< the first one chosen that was no draft; -1: no distribution
  std::int32_t position = 0;  ///< of that token
};

/// Rows of a buffer, beginning at an operand's first column.
template <typename T>
struct RowView {
  T* data = nullptr;
  std::int64_t stride = 0;  ///< elements
  T* Row(std::int64_t row) const { return data + row * stride; }
};

/// Bytes of each kind, for reports.
struct MemorySizes {
  std::int64_t activations = 0;
  std::int64_t kda_state = 0;
  std::int64_t conv_state = 0;
  std::int64_t mla_cache = 0;
  std::int64_t draft_cache = 0;
  std::int64_t Total() const {
    return activations + kda_state + conv_state + mla_cache + draft_cache;
  }
};

class DeviceMemory;

/// The buffers of one Program inside a DeviceMemory. T below must be the buffer's element type;
/// that operands have the types their opcodes need is part of what the verifier proves.
class ProgramMemory {
 public:
  const program::Program& program() const { return **program_; }

  bool IsPresent(const program::Operand& operand) const { return operand.buffer != program::kNone; }

  template <typename T>
  RowView<T> Rows(const program::Operand& operand) const {
    const Buffer& buffer = buffers_[operand.buffer];
    return {reinterpret_cast<T*>(buffer.base) + operand.begin, buffer.row_stride};
  }
  /// Row 0 of the operand's columns, whatever their type.
  std::byte* Data(const program::Operand& operand) const {
    return buffers_[operand.buffer].base +
           operand.begin * DTypeBytes(program().buffers[operand.buffer].dtype);
  }
  /// One of the recurrent states of `slot` in the KDA layer `layer`, at the operand's first
  /// element.
  template <typename T>
  T* SlotState(const program::Operand& operand, std::int64_t slot, std::int64_t layer,
               std::int64_t state) const {
    const Buffer& buffer = buffers_[operand.buffer];
    return reinterpret_cast<T*>(buffer.base) + slot * buffer.slot_stride +
           layer * buffer.layer_stride + state * buffer.state_stride + operand.begin;
  }
  /// The draft cache of `slot`: [draft positions][columns].
  template <typename T>
  T* DraftCache(const program::Operand& operand, std::int64_t slot) const {
    const Buffer& buffer = buffers_[operand.buffer];
    return reinterpret_cast<T*>(buffer.base) + slot * buffer.slot_stride;
  }
  /// The page pool of MLA layer `state_index`: [pages][page_tokens][columns].
  template <typename T>
  T* CachePool(const program::Operand& operand, std::int64_t state_index) const {
    const Buffer& buffer = buffers_[operand.buffer];
    return reinterpret_cast<T*>(buffer.base) + state_index * buffer.layer_stride;
  }
  /// Elements between cache positions.
  std::int64_t RowStride(const program::Operand& operand) const {
    return buffers_[operand.buffer].row_stride;
  }
  std::span<const std::byte> Bytes(std::uint32_t buffer) const;
  /// Index of the buffer of that name, or kNone.
  std::uint32_t FindBuffer(std::string_view name) const;

 private:
  friend class DeviceMemory;
  struct Buffer {
    std::byte* base = nullptr;      // state: of slot 0, layer 0
    std::int64_t row_stride = 0;    // elements
    std::int64_t slot_stride = 0;   // elements; state only
    std::int64_t layer_stride = 0;  // elements; state only
    std::int64_t state_stride = 0;  // elements; recurrent state only
  };
  explicit ProgramMemory(const program::VerifiedProgram& program) : program_(&program) {}

  const program::VerifiedProgram* program_;
  std::vector<Buffer> buffers_;
  std::uint32_t logits_buffer_ = program::kNone;
  std::uint32_t tokens_buffer_ = program::kNone;
  std::uint32_t drafts_buffer_ = program::kNone;      // kNone: nobody drafts
  std::uint32_t confidence_buffer_ = program::kNone;  // kNone: no confidence head
};

/// Not thread-safe by itself: the executor calls BeginStep and FinishStep between steps.
class DeviceMemory {
 public:
  /// `programs`: row buckets of one model with the same state, ascending or not. Errors: kUsage if
  /// they disagree about state, vocabulary, workers or activation type; kBadProgram if one has no
  /// buffer of logits; kOutOfMemory before anything is allocated.
  static Result<std::unique_ptr<DeviceMemory>> Create(
      std::vector<program::VerifiedProgram> programs, HugePages huge_pages);

  const ExecutorLimits& limits() const { return limits_; }
  const MemorySizes& sizes() const { return sizes_; }
  /// Of one cache page, all layers together.
  std::int64_t page_bytes() const;
  std::size_t num_programs() const { return programs_.size(); }
  const program::VerifiedProgram& program(std::size_t index) const { return programs_[index]; }
  std::span<const program::VerifiedProgram> programs() const { return programs_; }
  const ProgramMemory& program_memory(std::size_t index) const { return program_memory_[index]; }
  const Sequences& sequences() const { return sequences_; }
  const StepRows& rows() const { return rows_; }
  /// Trip counts. kActiveExperts is written by kRoutePlan while the step runs; the Program's
  /// counters order that with its readers.
  std::int64_t reg(program::Register value) const {
    return registers_[static_cast<std::size_t>(value)];
  }
  void SetActiveExperts(std::int64_t value) {
    registers_[static_cast<std::size_t>(program::Register::kActiveExperts)] = value;
    step_active_experts_ += value;
  }
  /// Distinct experts that the last step's rows chose, summed over its MoE layers: what the step
  /// read of the experts' weights. For reports.
  std::int64_t step_active_experts() const { return step_active_experts_; }

  /// Checks a step (errors of Executor::Step), takes cache pages and writes rows(). Returns the
  /// index of the smallest Program that holds it.
  Result<std::size_t> BeginStep(const StepInput& input);
  /// What the tokens chosen so far mean for a run that wants one. `tokens`: [logit rows], stride in
  /// elements.
  Acceptance Accept(std::size_t run, RowView<const std::int32_t> tokens) const;
  /// Ends what BeginStep began: the sequences have grown, or are lost.
  void FinishStep(std::size_t program_index, bool succeeded);
  /// What a finished step gave.
  StepOutput Output(std::size_t program_index) const;
  Status Truncate(std::int32_t slot, std::int32_t length) {
    return sequences_.Truncate(slot, length);
  }
  Status ReleaseSlot(std::int32_t slot) { return sequences_.Release(slot); }

  // As of Executor.
  Result<std::unique_ptr<Snapshot>> Save(std::int32_t slot);
  Status Restore(const Snapshot& snapshot, std::int32_t slot);
  Result<std::unique_ptr<Snapshot>> NewSnapshot(std::int32_t length);
  // For Snapshot.
  void ReleasePages(std::span<const std::int32_t> pages) { sequences_.ReleasePages(pages); }
  /// What the pages hold of the first `length` positions, per layer and page.
  std::vector<std::span<std::byte>> PageContents(std::int32_t length,
                                                 std::span<const std::int32_t> pages);

  // What a sequence has become, for tests and reports. `state_index` counts layers of the kind; of
  // a slot's recurrent states it is the one of its length.
  std::span<const float> KdaState(std::int32_t slot, std::int32_t state_index) const;
  std::span<const std::byte> ConvState(std::int32_t slot, std::int32_t state_index) const;
  /// One cache row. position < the slot's length.
  std::span<const std::byte> CacheRow(std::int32_t slot, std::int32_t state_index,
                                      std::int32_t position) const;

 private:
  /// One of the four kinds of state: the same in every Program.
  struct StateArena {
    Arena arena;
    std::int64_t columns = 0;  // of one slot and layer, or of one cache position; 0: none
    DType dtype = DType::kF32;
    std::int64_t state_stride = 0;  // elements; 0: one state per slot
    std::int64_t slot_stride = 0;   // elements
    std::int64_t layer_stride = 0;  // elements
    std::int64_t elements = 0;
    std::int64_t bytes() const { return elements * DTypeBytes(dtype); }
  };

  explicit DeviceMemory(std::vector<program::VerifiedProgram> programs);
  Status DescribeState();
  Status Allocate(HugePages huge_pages);
  Status ResolveBuffers();
  Status CheckStep(const StepInput& input, std::size_t* program_index) const;
  Status CheckRunsTokens(const StepInput& input) const;
  void ReserveOutput();
  void CollectOutput(std::size_t program_index);
  StateArena* StateFor(program::BufferKind kind);
  std::span<std::byte> Elements(StateArena& state, std::int64_t first, std::int64_t count);
  std::vector<std::span<std::byte>> CopiedParts(std::int32_t slot, std::int32_t length);
  Result<std::unique_ptr<Snapshot>> MakeSnapshot(std::int32_t length,
                                                 std::vector<std::int32_t> pages);
  void CopyPage(Sequences::PageCopy copy);

  std::vector<program::VerifiedProgram> programs_;  // by max_rows, ascending
  std::vector<ProgramMemory> program_memory_;
  ExecutorLimits limits_;
  MemorySizes sizes_;
  Arena activations_;
  StateArena kda_;
  StateArena conv_;
  StateArena cache_;
  StateArena draft_;  // its layers are those of the drafter
  Sequences sequences_;
  StepRows rows_;
  // Of the last step, copied out of its buffers.
  std::vector<std::int32_t> tokens_;    // [logit rows]
  std::vector<std::int32_t> drafts_;    // [drafting runs][max_next_drafts]
  std::vector<float> confidence_;       // the same
  std::vector<std::int32_t> accepted_;  // [runs]
  std::vector<RunOutput> run_outputs_;  // [runs]
  std::array<std::int64_t, program::kNumRegisters> registers_{};
  std::int64_t step_active_experts_ = 0;
};

}  // namespace megalith::exec
