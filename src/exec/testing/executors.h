#pragma once

// Executors of real checkpoints for tests: one call from a directory to something that runs steps.
// Checkpoints, Programs and packed weights are kept for the life of the process, because most tests
// want the same few.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "exec/cpu/engine.h"
#include "exec/executor.h"
#include "exec/packed_weights.h"
#include "exec/reference/interpreter.h"
#include "kernels/kernel_table.h"
#include "program/compile/dense_formats.h"
#include "program/compile/rank_layout.h"
#include "program/verifier.h"
#include "weights/checkpoint.h"

namespace megalith::exec::testing {

struct ExecutorSpec {
  std::string directory;  ///< of the checkpoint
  /// The interpreter with the numerics below, or the CPU engine with the path below.
  bool reference = false;
  kernels::DotNumerics numerics;
  kernels::Isa isa = kernels::Isa::kPortable;
  DType activation_dtype = DType::kBf16;
  program::DenseFormats dense;
  std::int32_t num_workers = 1;
  std::vector<std::int32_t> row_buckets = {8};  ///< logits of every row may be asked for
  std::int32_t num_slots = 2;
  std::int32_t page_tokens = 16;
  std::int32_t max_positions = 256;
  std::int32_t num_pages = 0;           ///< of the pool; 0: enough for all slots at full length
  std::int64_t max_active_experts = 0;  ///< bound of that register; 0: as compiled
  std::int32_t max_drafts = 0;          ///< that a run may bring
  std::string drafter;                  ///< folder of a drafter; empty: none
  std::int32_t draft_runs = 0;          ///< that may draft in one step
  std::int32_t num_drafts = 0;          ///< tokens that the drafter proposes
  bool fast_prefill = false;            ///< CompileOptions

  program::RankLayout ranks;
  std::int32_t rank = 0;
  fabric::Mailboxes* mailboxes = nullptr;  ///< of the rank; see OnRanks

  std::uint64_t interleaving_seed = 0;               ///< interpreter only
  InstructionObserver observer;                      ///< interpreter only
  std::int64_t step_timeout_ms = 0;                  ///< engine only
  bool prefetch = true;                              ///< engine only
  std::size_t trace_records = kDefaultTraceRecords;  ///< engine only
  std::function<void(std::int32_t, std::int64_t, std::int64_t)>
      before_instruction;             ///< engine only
  std::int32_t instructed_rank = -1;  ///< of OnRanks: before_instruction is for it; -1: for all
};

/// "avx512 f32 workers 3": for test names and messages.
std::string Describe(const ExecutorSpec& spec);

/// With a drafter, if its folder is given.
Result<const weights::Checkpoint*> OpenCheckpoint(const std::string& directory,
                                                  const std::string& drafter = {});
/// Compiled and verified.
Result<std::vector<program::VerifiedProgram>> MakePrograms(const ExecutorSpec& spec);
Result<const PackedWeights*> Pack(const ExecutorSpec& spec);
Result<std::unique_ptr<Executor>> MakeExecutor(const ExecutorSpec& spec);

/// Calls body(executor, rank) for every rank of `spec.ranks` at once, each in a thread with an
/// executor of its own, joined in one job. Returns the first error, also of making them.
Status OnRanks(const ExecutorSpec& spec,
               const std::function<Status(Executor& executor, std::int32_t rank)>& body);

using LogitRows = std::vector<std::vector<float>>;

/// Feeds `tokens` to the sequence in `slot`, at most `rows_per_step` a step, starting at
/// `first_position`; returns the logits of every token.
Result<LogitRows> Feed(Executor& executor, std::int32_t slot, std::span<const std::int32_t> tokens,
                       std::int32_t rows_per_step, std::int32_t first_position = 0);

/// Everything a sequence has become: equal for equal histories.
struct SequenceState {
  std::vector<float> kda;
  std::vector<std::byte> conv;
  std::vector<std::byte> cache;
  friend bool operator==(const SequenceState&, const SequenceState&) = default;
};
SequenceState ReadState(const Executor& executor, std::int32_t slot);

/// Empty if equal bit by bit, else names the first differing row and element.
std::string FirstDifference(const LogitRows& want, const LogitRows& have);

/// Index of the largest logit, the lowest among equals.
std::int32_t ArgMax(std::span<const float> logits);

/// `count` tokens below `vocab_size`, the same for the same seed on every machine.
std::vector<std::int32_t> RandomTokens(std::size_t count, std::int32_t vocab_size,
                                       std::uint64_t seed);

}  // namespace megalith::exec::testing
