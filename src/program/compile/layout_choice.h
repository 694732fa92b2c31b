#pragma once

// Which layout a given number of ranks should have: what a step of each would take.

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "program/compile/compile.h"

namespace megalith::program {

/// What ranks can do. The defaults are those of a server socket with shared memory or a fast
/// network between ranks; only the ratios matter to the choice.
struct RankMachine {
  double read_bytes_per_second = 200e9;     ///< a rank's weights, by all workers together
  double worker_bytes_per_second = 20e9;    ///< the most that one worker reads
  double exchange_seconds = 5e-6;           ///< of an empty exchange
  double exchange_bytes_per_second = 10e9;  ///< what a rank receives
};

/// The largest expected number of distinct experts that `rows` rows choose in one of `groups`
/// groups of experts, each row `top_k` of `num_experts`, all choices equally likely. Exact for one
/// row; for more, experts count as independent.
double ExpectedFullestGroup(std::int64_t num_experts, std::int32_t groups, std::int64_t top_k,
                            std::int64_t rows);

/// Distinct experts that `rows` independent rows are expected to choose.
double ExpectedExperts(std::int64_t num_experts, std::int64_t top_k, std::int64_t rows);

/// A step of one layout.
struct LayoutEstimate {
  RankLayout layout;
  std::int64_t exchanges = 0;
  std::int64_t received_bytes = 0;  ///< of a rank
  double weight_bytes = 0.0;        ///< of the fullest rank, if it has the fullest group of experts
  double expert_imbalance = 1.0;    ///< experts of the fullest group, in those of the mean
  double weight_seconds = 0.0;
  double exchange_seconds = 0.0;
  double Seconds() const { return weight_seconds + exchange_seconds; }
};

/// What somebody asks for; 0: to be chosen.
struct LayoutRequest {
  std::int32_t num_ranks = 0;
  std::int32_t tensor_parallel = 0;
  std::int32_t expert_parallel = 0;
};

/// Estimates of all layouts that are possible: first the one to take, which is the one asked for or
/// else the fastest, then the others, fastest first. kUsage if the numbers do not fit together, and
/// the errors of EstimateLayouts.
Result<std::vector<LayoutEstimate>> ChooseLayout(const model::Model& model,
                                                 const CompileOptions& options,
                                                 const LayoutRequest& request,
                                                 const RankMachine& machine = {});

/// Every layout of `num_ranks` ranks that divides the model, fastest first. `options`: its rows and
/// drafting are those of the step; rank and ranks do not count. kUsage if no layout divides it, as
/// of CheckRankLayout; errors of Compile.
Result<std::vector<LayoutEstimate>> EstimateLayouts(const model::Model& model,
                                                    const CompileOptions& options,
                                                    std::int32_t num_ranks,
                                                    const RankMachine& machine = {});

}  // namespace megalith::program
