#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "fabric/fabric.h"

namespace megalith::fabric {

/// Names and values that ranks compare or pass on: {"build", "0.1.0 c5382b3"},
/// {"hash of config.json", "..."}, {"--context", "4096"}.
using Items = std::vector<std::pair<std::string, std::string>>;

/// Collective: every rank's items must be those of rank 0, same names in the same order. Every rank
/// gets the same error, of the first rank and item that differ: kUsage, "rank 2: hash of
/// config.json: 'a1' expected as on rank 0, 'b2' found". kIo if the job fails.
Status CheckAgreement(Fabric& fabric, const Items& mine);

/// Collective: rank 0's items replace those of the others.
Status BroadcastItems(Fabric& fabric, Items* items);

}  // namespace megalith::fabric
