#pragma once

#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
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

/// What a benchmark measured: every case on every set of weights.
template <typename Measured>
struct SetsRun {
  std::string model;
  std::vector<Measured> results;
  std::vector<std::string> dense;  ///< of each result
  WeightSetsReport sets;
};

/// WithWeightSets for benchmarks whose `measure` takes a vector of Set: an engine, the name of its
/// weights, and `cases`.
template <typename Set, typename Measured, typename Case>
Result<SetsRun<Measured>> MeasureSets(
    const std::string& directory, const WeightSetsOptions& options, const LoadOptions& load,
    const Cli& cli, const std::vector<Case>& cases,
    const std::function<Result<std::vector<Measured>>(const std::vector<Set>&)>& measure) {
  SetsRun<Measured> run;
  run.model = ModelName(directory);
  MEGALITH_ASSIGN_OR_RETURN(
      run.sets,
      WithWeightSets(
          directory, options, load, cli, [&](const std::vector<WeightSet>& weights) -> Status {
            std::vector<Set> sets;
            for (const WeightSet& set : weights) {
              sets.push_back({set.engine.get(), WeightsName(directory, set), cases});
              run.dense.insert(run.dense.end(), cases.size(), set.dense);
            }
            MEGALITH_ASSIGN_OR_RETURN(std::vector<Measured> results, measure(sets));
            run.results.insert(run.results.end(), std::make_move_iterator(results.begin()),
                               std::make_move_iterator(results.end()));
            return {};
          }));
  return run;
}

/// The fields that every report of such a run begins with; the command adds its own and "results".
template <typename Measured>
Json SetsRunJson(std::string_view command, const SetsRun<Measured>& run) {
  return {{"command", command},
          {"conditions", ConditionsJson()},
          {"model", run.model},
          {"weights", run.sets.json},
          {"all_interleaved", run.sets.interleaved},
          {"peak_memory_bytes", PeakMemory()}};
}

}  // namespace megalith::apps
