#pragma once

// A loaded model: checkpoint -> Programs (one per row bucket), proved -> packed weights ->
// executor. Sequences (sequence.h) run on it, one step at a time.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/cancel.h"
#include "base/progress.h"
#include "base/result.h"
#include "base/topology.h"
#include "engine/draft_experience.h"
#include "exec/executor.h"
#include "exec/packed_weights.h"
#include "fabric/mailboxes.h"
#include "kernels/kernel_table.h"
#include "program/compile/compile.h"
#include "program/program.h"
#include "program/verifier.h"
#include "weights/checkpoint.h"

namespace megalith::fabric {
class Fabric;
}

namespace megalith::engine {

class RankLeader;
struct RankPlace;

enum class ExecutorKind { kCpu, kReference };

/// Longest sequence to plan for when nobody says otherwise.
inline constexpr std::int64_t kDefaultPositions = 4096;

/// How this machine's Programs are compiled: num_workers (0: one per physical core this process may
/// use), store from the L2 cache, pages. Rows are left at 1.
program::CompileOptions CompileOptionsFor(const Topology& topology, std::int32_t num_workers,
                                          std::int32_t max_positions);

struct EngineOptions {
  ExecutorKind executor = ExecutorKind::kCpu;
  std::int32_t num_workers = 0;  ///< 0: one per physical core this process may use
  /// Empty: the best the CPU has, or MEGALITH_FORCE_ISA. The interpreter takes its order of sums.
  std::optional<kernels::Isa> isa;
  program::DenseFormats dense;            ///< which dense matrices are packed as int8
  DType activation_dtype = DType::kBf16;  ///< kF32: no activation rounding (portable path only)
  std::int32_t num_sequences = 1;         ///< that may be alive at once
  std::int32_t max_positions = 0;         ///< longest sequence; 0: what the model allows
  std::int64_t cache_positions = 0;     ///< of all sequences together; 0: of num_sequences longest
  std::int64_t prefix_cache_bytes = 0;  ///< cache pages for so much are added, for snapshots
  std::int32_t rows_per_step = 256;     ///< largest step; prompts are cut into such steps
  /// CompileOptions::fast_prefill: needs rows_per_step of at least kFastRunRows. How a prompt is
  /// cut into steps then matters to the bits, and so does what of it came from a prefix.
  bool fast_prefill = false;
  std::int32_t logit_rows_per_step = 1;  ///< most rows of a step whose logits are wanted
  std::string drafter;                   ///< folder of a drafter; empty: none
  std::int32_t max_drafts = 0;           ///< of a sequence, verified in one step
  HugePages huge_pages = HugePages::kMadvise;
  std::string packed_cache;  ///< folder of packed-cache files; empty: none (exec::PackOptions)
  exec::CacheUse packed_cache_use = exec::CacheUse::kMap;
  bool lora_norm_uses_rms_eps = false;  ///< eps of q_a/kv_a norms: rms_norm_eps instead of 1e-6
  /// Rank 0 of a job whose ranks all load the engine, each with num_workers (0: its part of its
  /// host's cores); null: one rank.
  RankLeader* leader = nullptr;
  std::int32_t tensor_parallel = 0;  ///< ranks that share each matrix; 0: chosen by cost
  std::int32_t expert_parallel = 0;  ///< groups of ranks that share the experts; 0: chosen by cost
  ProgressCallback progress;
  const CancelFlag* cancel = nullptr;
};

struct LoadTimings {
  double compile_seconds = 0.0;      ///< Programs and their proofs
  double load_seconds = 0.0;         ///< headers, packing, first step
  double open_seconds = 0.0;         ///< part of it: headers and census
  double fill_seconds = 0.0;         ///< part of it: packing, or checking the packed cache
  double cache_write_seconds = 0.0;  ///< part of it: writing the packed cache
};

/// How a further executor on an engine's weights differs from the engine's own; see
/// Engine::MakeVariant.
struct VariantOptions {
  std::vector<std::int32_t> row_buckets = {1};  ///< as from program::RowBucket
  std::int32_t logit_rows = 1;                  ///< per step, cut to the bucket
  std::int32_t num_sequences = 1;
  std::int32_t max_positions = 1;
  std::optional<kernels::Isa> isa;     ///< empty: that of the engine
  bool barrier_after_each_op = false;  ///< CompileOptions
  bool fast_prefill = false;           ///< CompileOptions
  bool prefetch = true;                ///< CpuEngineOptions
};

struct Variant {
  std::vector<program::VerifiedProgram> programs;  ///< one per row bucket
  std::unique_ptr<fabric::Mailboxes> mailboxes;    ///< of a job of several ranks
  std::unique_ptr<exec::Executor> executor;
};

class Engine {
 public:
  /// Errors: those of Checkpoint::Open, program::Compile, Verify, PackedWeights::Pack and the
  /// executors; kNumeric if a first step gives logits that are not finite or all equal (a
  /// checkpoint that cannot be right). With a leader also kUsage for files that differ between
  /// ranks, and the errors of other ranks, each with its number; kIo if the job fails.
  static Result<std::unique_ptr<Engine>> Load(const std::string& directory,
                                              const EngineOptions& options);

  /// What Load does on each rank of a job; null: there is none. Collective, with equal options.
  static Result<std::unique_ptr<Engine>> LoadOnRank(const std::string& directory,
                                                    const EngineOptions& options,
                                                    const RankPlace* place);

  const model::Model& model() const { return checkpoint_.model(); }
  const weights::Checkpoint& checkpoint() const { return checkpoint_; }
  exec::Executor& executor() { return *executor_; }
  const exec::Executor& executor() const { return *executor_; }
  /// What drafts have brought: shared by the sequences, kept up by those that run.
  DraftExperience& draft_experience() { return draft_experience_; }
  /// A CPU executor with workers, state and Programs of its own on the same packed weights, which
  /// the engine must outlive: to compare forms of one model in one process. Its workers sleep while
  /// another executor runs. Errors: those of Load.
  Result<Variant> MakeVariant(const VariantOptions& options) const;
  /// What MakeVariant does on each rank of a job. Collective.
  Result<Variant> MakeVariantOnRank(const VariantOptions& options) const;
  /// Null if there is one rank.
  fabric::Fabric* fabric() const;
  std::int32_t num_ranks() const;
  /// Fine, or why the job of several ranks has failed: no step will ever run again. Thread-safe.
  Status JobStatus() const;
  const exec::PackedWeights& weights() const { return *weights_; }
  /// How the ranks of the job share the model.
  const program::RankLayout& layout() const { return layout_; }
  const LoadTimings& timings() const { return timings_; }
  /// Name of the instruction-set path that runs, e.g. "avx512"; "reference" for the interpreter.
  const std::string& isa_name() const { return isa_name_; }
  std::int32_t num_workers() const { return num_workers_; }
  std::int32_t max_positions() const { return max_positions_; }
  std::int32_t rows_per_step() const { return rows_per_step_; }
  std::int32_t num_sequences() const { return options_.num_sequences; }
  /// What the bits of a sequence's state depend on: the checkpoint's files, the numbers computed
  /// with, the drafter. Letters and digits. Errors: kIo, kNotFound for a file that is gone.
  Result<std::string> StateIdentity() const;
  /// Content hash of the one-row Program.
  const std::string& program_hash() const { return program_hash_; }
  /// Weight bytes that a step of one token without drafts reads, without padding.
  std::int64_t plain_step_bytes() const { return plain_step_bytes_; }
  /// The executor, and the form of long prompts.
  std::string Describe() const;

 private:
  explicit Engine(weights::Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  /// What Programs of one engine may differ in.
  struct ProgramShape {
    std::int32_t rows = 1;
    std::int32_t draft_runs = 0;
    std::int32_t num_drafts = 0;
  };

  Result<Topology> FindTopology() const;
  WorkerPlacement FindPlacement(const Topology& topology) const;
  Status CheckSameFiles() const;
  Status ReportRanks() const;
  Status Compile(const EngineOptions& options);
  Result<std::int32_t> NumPages(const EngineOptions& options, std::int32_t page_tokens) const;
  std::vector<ProgramShape> Shapes(const EngineOptions& options) const;
  Result<std::vector<program::VerifiedProgram>> CompileShapes(
      program::CompileOptions compile, const std::vector<ProgramShape>& shapes,
      std::int32_t logit_rows) const;
  std::int32_t rank() const;
  Result<std::vector<program::VerifiedProgram>> CompileVariant(const VariantOptions& options) const;
  Result<std::unique_ptr<exec::Executor>> StartVariant(const VariantOptions& options,
                                                       const Variant& variant) const;
  Status PackWeights(const EngineOptions& options);
  Status ChooseLayout(const EngineOptions& options, program::CompileOptions* compile);
  Result<std::unique_ptr<fabric::Mailboxes>> MakeMailboxes(
      const std::vector<program::VerifiedProgram>& programs) const;
  Status MakeExecutor(const EngineOptions& options);
  Status CheckFirstStep();

  const RankPlace* place_ = nullptr;  // null: one rank
  std::uint32_t rank_target_ = 0;     // what the leader calls this engine
  weights::Checkpoint checkpoint_;
  std::vector<program::VerifiedProgram> programs_;
  std::optional<exec::PackedWeights> weights_;
  std::unique_ptr<fabric::Mailboxes> mailboxes_;  // null: one rank
  std::unique_ptr<exec::Executor> executor_;  // uses weights_, mailboxes_: destroyed before them
  EngineOptions options_;                     // as given to Load, without callbacks
  LoadTimings timings_;
  DraftExperience draft_experience_{program::kMaxDrafts};
  std::string isa_name_;
  std::string program_hash_;
  program::RankLayout layout_;
  std::int32_t num_workers_ = 0;
  std::int32_t max_positions_ = 0;
  std::int32_t rows_per_step_ = 0;
  std::int64_t plain_step_bytes_ = 0;
};

}  // namespace megalith::engine
