#pragma once

#include <string>

#include "base/cancel.h"
#include "base/result.h"
#include "fabric/fabric.h"

namespace megalith::engine {

/// Every rank but 0, until rank 0's RankLeader ends: loads the engines that it loads and repeats
/// the calls made on them. Collective with RankLeader::Start. Binds the calling thread to the CPUs
/// of the rank. `cancel` ends a load, and with it the job. Fine if the leader has ended in order;
/// else why the job has failed, on all ranks.
Status FollowLeader(fabric::Fabric& fabric, const std::string& build,
                    const CancelFlag* cancel = nullptr);

}  // namespace megalith::engine
