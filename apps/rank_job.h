#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/result.h"
#include "base/topology.h"
#include "engine/rank_group.h"
#include "engine/rank_leader.h"
#include "fabric/fabric.h"

namespace megalith::apps {

/// The ranks that a command's engines run on: those that a launcher has started, or threads of this
/// process. For rank 0.
class RankJob {
 public:
  /// `fabric`: of the launcher's job; null: there is none. `cancel` ends a load on every rank.
  RankJob(fabric::Fabric* fabric, const CancelFlag* cancel) : fabric_(fabric), cancel_(cancel) {}
  /// Engines must be gone. The other ranks end.
  ~RankJob() = default;

  /// Collective with engine::FollowLeader on the launcher's other ranks, if there are any.
  Status Start(const std::string& build);

  /// Whether a launcher says how many ranks there are.
  bool IsLaunched() const { return fabric_ != nullptr; }

  /// For engines on so many ranks; 0: as many as the launcher has started, else one. Null: one
  /// rank. kUsage for another number than the launcher's.
  Result<engine::RankLeader*> Lead(int num_ranks);

  /// What rank 0 has of this machine.
  Result<Topology> FindTopology(int num_ranks);

 private:
  fabric::Fabric* fabric_;
  const CancelFlag* cancel_;
  std::unique_ptr<engine::RankLeader> launched_;               // null unless started with others
  std::map<int, std::unique_ptr<engine::RankGroup>> threads_;  // by number of ranks
};

/// Collective: rank 0's command line replaces those of the others.
Status ShareArguments(fabric::Fabric& fabric, std::vector<std::string>* arguments);

}  // namespace megalith::apps
