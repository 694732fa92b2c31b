#pragma once

#include <memory>
#include <vector>

#include "fabric/fabric.h"

namespace megalith::fabric {

/// A job of ranks in this process, each a group of threads, e.g. one for each NUMA node. Element r
/// is for rank r; all must be used at the same time, by different threads. A thread that creates
/// mailboxes is the first to touch its rank's slots, so it should run on the rank's NUMA node.
///
/// With one rank this is the fabric of a job without others. kUsage, kOutOfMemory.
Result<std::vector<std::unique_ptr<Fabric>>> MakeInprocJob(std::uint32_t num_ranks,
                                                           const FabricOptions& options = {});

}  // namespace megalith::fabric
