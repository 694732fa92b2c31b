#pragma once

// A planned checkpoint onto the disk.

#include <cstdint>
#include <string>

#include "base/cancel.h"
#include "base/progress.h"
#include "base/result.h"
#include "synth/plan.h"

namespace megalith::synth {

struct WriteOptions {
  int num_threads = 1;
  /// Replace the checkpoint (config, index and shards) that the folder may hold, and the drafter's
  /// in its folder `dspark`. Other files stay.
  bool replace = false;
  ProgressCallback progress;
  const CancelFlag* cancel = nullptr;
};

/// Writes the plan's files into `directory` (created if absent; its parent must exist), and those
/// of `drafter`, if not null, into `directory`/dspark. Shards have other names until all are
/// complete, then come the index and last config.json, so that no reader takes an interrupted run's
/// folder for a checkpoint. After a failure nothing of this run is left.
/// kUsage: the folder holds files and `replace` is false, or is no folder; kIo: no space (looked at
/// before writing) or the system's reason, with the path; kCancelled.
Status WriteCheckpoint(const CheckpointPlan& plan, const std::string& directory,
                       const WriteOptions& options, const CheckpointPlan* drafter = nullptr);

}  // namespace megalith::synth
