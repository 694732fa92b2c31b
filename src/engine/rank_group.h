#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/cancel.h"
#include "base/result.h"
#include "engine/rank_leader.h"
#include "fabric/fabric.h"

namespace megalith::engine {

/// A job of ranks inside this process: the caller is rank 0, the others are threads that follow,
/// each with engines of its own.
class RankGroup {
 public:
  /// `cancel`: ends a load on every rank. Errors: those of MakeInprocJob and RankLeader::Start.
  static Result<std::unique_ptr<RankGroup>> Start(std::uint32_t num_ranks,
                                                  const CancelFlag* cancel = nullptr);
  /// Engines that the leader has loaded must be gone. Waits for the threads.
  ~RankGroup();

  RankLeader& leader() { return *leader_; }
  fabric::Fabric& fabric(std::uint32_t rank) { return *fabrics_[rank]; }

 private:
  RankGroup() = default;

  std::vector<std::unique_ptr<fabric::Fabric>> fabrics_;  // by rank
  std::unique_ptr<RankLeader> leader_;
  std::vector<std::thread> threads_;
};

}  // namespace megalith::engine
