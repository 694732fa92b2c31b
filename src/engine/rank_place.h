#pragma once

#include "base/rank_cores.h"
#include "base/result.h"
#include "fabric/fabric.h"

namespace megalith::engine {

/// One rank's part of its job and of its host.
struct RankPlace {
  fabric::Fabric* fabric = nullptr;
  RankCores cores;
};

/// Collective, before anything else of the job. `build`: what program this is. Errors: kUsage if
/// ranks are different builds; kIo.
Result<RankPlace> FindRankPlace(fabric::Fabric& fabric, const std::string& build);

/// Collective where there is a place; fine if `mine` is fine on every rank (Fabric::AllOrNone).
/// Without one there is one rank.
Status AllOrNone(const RankPlace* place, const Status& mine);

}  // namespace megalith::engine
