#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/result.h"
#include "bench_report.h"
#include "cli.h"
#include "engine/engine.h"
#include "loading.h"

namespace megalith::apps {

/// A model packed one way. Packing depends on the numbers of ranks and workers and the dense
/// format.
struct WeightSet {
  std::unique_ptr<engine::Engine> engine;
  std::string dense;  ///< as given to --dense
};

/// How the sets of a run were held, for reports.
struct WeightSetsReport {
  bool interleaved = true;  ///< all sets were in memory together, so that all cases took turns
  std::vector<std::string> lines;  ///< one per set, for people
  Json json = Json::array();       ///< the same
};

/// Adds a line and an object about packed weights. `dense`, `huge_pages`: as given to the options.
void DescribeWeights(const engine::Engine& engine, const std::string& dense,
                     const std::string& huge_pages, WeightSetsReport* report);

/// Replaces --dense of AddLoadOptions by one that may be given several times.
void AddDenseList(CLI::App& command, std::vector<std::string>& dense);

/// Replaces --ranks of AddLoadOptions by one that takes several numbers.
void AddRanksList(CLI::App& command, std::vector<int>& ranks);

/// Which sets of weights to compare: every combination.
struct WeightSetsOptions {
  std::vector<int> ranks;    ///< 0: as many as a launcher has started, else 1
  std::vector<int> workers;  ///< of a rank; 0: its part of the cores
  std::vector<std::string> dense;
};

/// Loads the model for every combination and calls `measure` with
/// all sets, or, where memory does not hold them together, with one group after the other. The
/// engines' own executors are as small as can be: cases get theirs from MakeVariant. Errors: those
/// of LoadEngine and `measure`.
Result<WeightSetsReport> WithWeightSets(
    const std::string& directory, const WeightSetsOptions& sets, const LoadOptions& load,
    const Cli& cli, const std::function<Status(const std::vector<WeightSet>&)>& measure);

/// Sets of the same name hold the same weights: "k3-mini bf16".
std::string WeightsName(const std::string& directory, const WeightSet& set);

/// Last part of the folder's path.
std::string ModelName(const std::string& directory);

}  // namespace megalith::apps
