#pragma once

// Model + machine -> Program, in three steps: the layer kinds' operations as a sharded graph
// (graph.h), their partition over workers (emit_*.cc), and the waits and signals that order them
// (synchronize.h).

#include <cstdint>
#include <functional>
#include <string_view>

#include "base/result.h"
#include "model/drafter.h"
#include "model/model.h"
#include "program/compile/dense_formats.h"
#include "program/compile/rank_layout.h"
#include "program/program.h"

namespace megalith::program {

struct CompileOptions {
  std::int32_t num_workers = 1;  ///< of each rank
  RankLayout ranks;
  std::int32_t rank = 0;            ///< whose Program this is
  std::int32_t max_rows = 1;        ///< row bucket
  std::int32_t max_logit_rows = 1;  ///< <= max_rows
  DType activation_dtype = DType::kBf16;
  std::int32_t num_slots = 1;  ///< sequences that may be alive at once
  std::int32_t page_tokens = 64;
  /// Longest sequence. Beyond kUndividedPositions small steps divide attention over the context.
  std::int32_t max_positions = 4096;
  std::int32_t num_pages = 0;  ///< in the pool; 0: for num_slots of the longest sequences
  /// Most drafted tokens that a run may bring, to be taken back if the model disagrees: a slot
  /// keeps so many recurrent states more.
  std::int32_t max_drafts = 0;
  /// The drafter whose context every step keeps up; null: none. Must outlive the call.
  const model::Drafter* drafter = nullptr;
  std::int32_t draft_runs = 0;  ///< most runs after which it proposes tokens, in one step
  std::int32_t num_drafts = 0;  ///< tokens it proposes per run; 0 exactly if draft_runs is
  /// Weight tiles fetched ahead per worker: at most half of a core's L2.
  std::int32_t store_slots = 4;
  std::int64_t store_slot_bytes = 128 << 10;
  /// Storage of a matrix (name without `.weight`, `{layer}`/`{expert}` not filled in) in the
  /// checkpoint. Empty: routed experts MXFP4, all else bf16, as Kimi K3 is published.
  std::function<WeightFormat(std::string_view name)> weight_format;
  /// What matrices stored as bf16 are packed as.
  DenseFormats dense;
  /// In Programs of at least kFastRunRows rows, runs of at least as many use the chunk form of KDA
  /// and the expanded form of MLA: much less work on a long prompt, other bits. Activations must
  /// be bf16.
  bool fast_prefill = false;
  /// The form to compare with: all workers meet after every operation, and a weight tile is fetched
  /// only right before its use. Same operations, tiles and weight arenas, so the same bits.
  bool barrier_after_each_op = false;
};

/// The Program of one rank for rows <= max_rows. Weight arenas (tiles, offsets, bases) depend on
/// the model and num_workers only, so Programs of several row buckets share one set of packed
/// weights. A Program with draft_runs begins like the one without them, whose weights are therefore
/// among its own. Errors: kUnsupported names a config value with no implementation; kUsage for
/// impossible options, of ranks those of CheckRankLayout.
Result<Program> Compile(const model::Model& model, const CompileOptions& options);

/// The smallest row bucket >= rows: 1, 2, 4, 8, 16, 64, 256, 1024, 4096. The large ones are for
/// prompts on models with many experts: a step reads nearly all experts, however few rows share
/// one.
std::int32_t RowBucket(std::int32_t rows);
inline constexpr std::int32_t kMaxRowBucket = 4096;

}  // namespace megalith::program
