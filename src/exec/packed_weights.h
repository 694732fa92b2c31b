#pragma once

// The weights of a model as the workers of one Program stream them: one arena per worker, packed
// and so first touched by a thread on that worker's CPU, and one small shared arena of vectors.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/bf16.h"
#include "base/cancel.h"
#include "base/progress.h"
#include "base/result.h"
#include "exec/weight_layout.h"
#include "program/program.h"
#include "weights/checkpoint.h"

namespace megalith::exec {

struct PackOptions {
  HugePages huge_pages = HugePages::kOff;
  /// Logical CPU of each worker; empty: not pinned.
  std::vector<int> worker_cpus;
  /// Bytes packed so far and in all; called from the calling thread only.
  ProgressCallback progress;
  const CancelFlag* cancel = nullptr;
};

/// Const after Pack: every member may be called from any number of threads at once.
class PackedWeights {
 public:
  /// Packs everything `program` reads. `checkpoint` must outlive the result: embedding rows are
  /// read in place. Errors: those of MakeWeightLayout, weights::PackPanels and weights::PackVector;
  /// kOutOfMemory before anything is read; kCancelled.
  static Result<PackedWeights> Pack(const program::Program& program,
                                    const weights::Checkpoint& checkpoint,
                                    const PackOptions& options);

  /// kUsage naming the first difference if `program` expects other bytes at other places.
  Status CheckFits(const program::Program& program) const;

  std::int32_t num_workers() const { return static_cast<std::int32_t>(worker_arenas_.size()); }
  const std::byte* WorkerArena(std::int32_t worker) const {
    return worker_arenas_[static_cast<std::size_t>(worker)].data();
  }
  const std::byte* VectorArena() const { return vector_arena_.data(); }
  /// Row `token` of the embedding table: [hidden_size] bf16.
  const Bf16* EmbeddingRow(std::int64_t token) const {
    return embedding_ + token * layout_.hidden_size;
  }

  const WeightLayout& layout() const { return layout_; }
  /// All arenas, gaps included.
  std::int64_t arena_bytes() const;
  /// What the kernel gave, summed over the worker arenas. kIo if it cannot be asked.
  Result<PageReport> Pages() const;

 private:
  PackedWeights() = default;
  Status OpenEmbedding(const weights::Checkpoint& checkpoint);

  WeightLayout layout_;
  std::vector<Arena> worker_arenas_;
  Arena vector_arena_;
  const Bf16* embedding_ = nullptr;        // [vocab_size, hidden_size]
  std::vector<std::byte> embedding_copy_;  // only when the file does not align its elements
};

}  // namespace megalith::exec
