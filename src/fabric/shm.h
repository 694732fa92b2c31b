#pragma once

#include <memory>
#include <string>

#include "fabric/fabric.h"

namespace megalith::fabric {

/// Joins a job of processes of this host, each one rank, over shared memory. All name the same job
/// id, which no other job of the user has at the same time: 1 to 64 letters, digits, '-', '_' or
/// '.'. Returns when all are there.
///
/// A rank that is killed is noticed by the others at once, one that is stopped after the stall
/// timeout (and then killed, since the job is over). Nothing is left behind in any case: the memory
/// has no name. Errors: kUsage; kIo, naming who has not come or has gone.
Result<std::unique_ptr<Fabric>> JoinShmJob(const std::string& job_id, std::uint32_t rank,
                                           std::uint32_t num_ranks,
                                           const FabricOptions& options = {});

}  // namespace megalith::fabric
