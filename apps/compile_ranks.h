#pragma once

// megalith compile for a job of several ranks.

#include <cstdint>

#include "base/result.h"
#include "model/model.h"
#include "program/compile/layout_choice.h"

namespace megalith::apps {

struct RankOptions {
  std::int32_t num_ranks = 0;  ///< 0: tensor_parallel * expert_parallel
  std::int32_t tensor_parallel = 0;
  std::int32_t expert_parallel = 0;
  program::RankMachine machine;
  bool AreGiven() const { return num_ranks > 0 || tensor_parallel > 0 || expert_parallel > 0; }
};

/// Compiles and proves every rank's Program and all of them together, and prints what a step of the
/// job costs. `compile`: of one rank. With neither tensor nor expert parallel given, the fastest
/// layout by estimate. Errors: kUsage for numbers that do not fit together, and those of Compile
/// and Verify.
Status CompileRanks(const model::Model& model, const program::CompileOptions& compile,
                    const RankOptions& ranks, bool json);

}  // namespace megalith::apps
