#pragma once

// How many ranks share a model, and how. docs/cluster.md explains the choice.

#include <cstdint>

#include "base/result.h"
#include "model/drafter.h"
#include "model/model.h"

namespace megalith::program {

/// tensor_parallel x expert_parallel ranks. Every matrix is split by its outputs over all of them;
/// only the routed experts are dealt out to expert_parallel groups and split over the
/// tensor_parallel ranks of each.
struct RankLayout {
  std::int32_t tensor_parallel = 1;
  std::int32_t expert_parallel = 1;
  std::int32_t NumRanks() const { return tensor_parallel * expert_parallel; }
};

/// Fine if every rank gets a part of what has to be shared out. kUsage otherwise, naming what is
/// too small, with the numbers of ranks that are possible. Needs the config alone.
Status CheckRankLayout(const model::Model& model, const RankLayout& layout);

/// The largest number of ranks that CheckRankLayout accepts with some layout.
std::int32_t MostRanks(const model::Model& model);

}  // namespace megalith::program
