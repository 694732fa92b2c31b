#pragma once

// Fills the arenas of a WeightLayout from a checkpoint, by as many threads as have a core.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "base/progress.h"
#include "base/result.h"
#include "base/topology.h"
#include "exec/weight_layout.h"
#include "weights/checkpoint.h"

namespace megalith::exec {

/// A thread that fills arenas.
struct LoadThread {
  int cpu = -1;  ///< logical CPU it is bound to; -1: none
  /// Whose arenas it fills, the first first. All have their memory on the same NUMA node: pages are
  /// placed where the thread that touches them first runs.
  std::vector<std::int32_t> workers;
};

/// One thread on each worker's CPU, which helps the other workers of its NUMA node when its own
/// arena is full, and one on each core that has no worker but a node with some. `topology` null:
/// one on each worker's CPU for that worker. `worker_cpus` empty: as many threads as there are
/// workers, but not more than CPUs, none bound.
std::vector<LoadThread> PlanLoadThreads(const Topology* topology, std::span<const int> worker_cpus,
                                        std::int32_t num_workers);

struct PackJob {
  const WeightLayout* layout = nullptr;
  const weights::Checkpoint* checkpoint = nullptr;
  std::vector<std::byte*> worker_arenas;  ///< [workers], zeroed, layout->worker_bytes each
  std::byte* vector_arena = nullptr;
};

/// Packs every tile and vector of the layout, and looks for NaN and infinity in the tables,
/// which are read in place later. The checkpoint's pages are let go behind the reader, so
/// that the process needs the arenas and little else. Each byte comes from one tile, so the result
/// does not depend on the threads. Errors: weights::PackPanels, weights::PackVector; kBadTensor for
/// a table, with row and column; kCancelled. `progress` is called from the calling thread.
Status PackArenas(const PackJob& job, std::span<const LoadThread> threads,
                  const ProgressCallback& progress, const CancelFlag* cancel);

}  // namespace megalith::exec
