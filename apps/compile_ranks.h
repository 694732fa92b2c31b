#pragma once

// megalith compile for a job of several ranks.

#include <cstdint>

#include "base/result.h"
#include "model/model.h"
#include "program/compile/layout_choice.h"

namespace megalith::apps {

struct RankOptions {
  program::LayoutRequest request;
  program::RankMachine machine;
  bool AreGiven() const {
    return request.num_ranks > 0 || request.tensor_parallel > 0 || request.expert_parallel > 0;
  }
};

/// Compiles and proves every rank's Program and all of them together, and prints what a step of the
/// job costs. `compile`: of one rank. With neither tensor nor expert parallel given, the fastest
/// layout by estimate. Errors: kUsage for numbers that do not fit together, and those of Compile
/// and Verify.
Status CompileRanks(const model::Model& model, const program::CompileOptions& compile,
                    const RankOptions& ranks, bool json);

}  // namespace megalith::apps
