#include "bench_engines.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "base/system_memory.h"
#include "base/units.h"

namespace megalith::apps {
namespace {

Result<WeightSet> LoadSet(const std::string& directory, int ranks, int workers,
                          const std::string& dense, LoadOptions load, const Cli& cli) {
  Cli one = cli;
  one.common.workers = workers;
  load.ranks = ranks;
  load.dense = dense;
  engine::EngineOptions options;
  options.max_positions = 1;
  options.rows_per_step = 1;
  WeightSet set;
  set.dense = dense;
  MEGALITH_ASSIGN_OR_RETURN(set.engine, LoadEngine(directory, one, load, options));
  return set;
}

}  // namespace

void DescribeWeights(const engine::Engine& engine, const std::string& dense,
                     const std::string& huge_pages, WeightSetsReport* report) {
  PageReport pages{};
  if (const auto found = engine.weights().Pages()) pages = *found;
  const std::int64_t bytes = engine.weights().arena_bytes();
  report->json.push_back({{"ranks", engine.num_ranks()},
                          {"workers", engine.num_workers()},
                          {"dense", dense},
                          {"arena_bytes", bytes},
                          {"huge_pages", huge_pages},
                          {"huge_page_share", HugeShare(pages)},
                          {"load_seconds", engine.timings().load_seconds}});
  report->lines.push_back(fmt::format(
      "weights for {}{} worker{}, dense {}: {}, {:.0f} % on huge pages",
      engine.num_ranks() == 1
          ? ""
          : fmt::format("rank 0 of {} ({} x {}), ", engine.num_ranks(),
                        engine.layout().tensor_parallel, engine.layout().expert_parallel),
      engine.num_workers(), engine.num_workers() == 1 ? "" : "s", dense,
      FormatBytes(static_cast<std::uint64_t>(bytes)), HugeShare(pages) * 100));
}

void AddDenseList(CLI::App& command, std::vector<std::string>& dense) {
  const std::string description = command.get_option("--dense")->get_description();
  command.remove_option(command.get_option("--dense"));
  command.add_option("--dense", dense, description + "; may be given several times to compare")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
}

void AddRanksList(CLI::App& command, std::vector<int>& ranks) {
  CLI::Option* single = command.get_option("--ranks");
  const std::string description = single->get_description();
  command.remove_option(single);
  command.add_option("--ranks", ranks, description + "; several to compare")
      ->delimiter(',')
      ->type_name("N,..")
      ->check(CLI::Range(1, kMaxRanks));
}

Result<WeightSetsReport> WithWeightSets(
    const std::string& directory, const WeightSetsOptions& options, const LoadOptions& load,
    const Cli& cli, const std::function<Status(const std::vector<WeightSet>&)>& measure) {
  WeightSetsReport report;
  std::vector<WeightSet> sets;
  std::uint64_t largest = 0;
  const auto add = [&](const std::string& dense, int ranks, int workers) -> Status {
    // A quarter more than the weights: state, activations and the system's own needs.
    if (!sets.empty() && ReadMemoryStatus().available_bytes < largest + largest / 4) {
      MEGALITH_RETURN_IF_ERROR(measure(sets));
      sets.clear();
      report.interleaved = false;
    }
    MEGALITH_ASSIGN_OR_RETURN(WeightSet set, LoadSet(directory, ranks, workers, dense, load, cli));
    DescribeWeights(*set.engine, set.dense, load.huge_pages, &report);
    // Ranks of this process have about as much each.
    const auto rank_bytes = static_cast<std::uint64_t>(set.engine->weights().arena_bytes());
    largest = std::max(largest, rank_bytes * static_cast<std::uint64_t>(std::max(ranks, 1)));
    sets.push_back(std::move(set));
    return {};
  };
  for (const std::string& dense : options.dense) {
    for (const int ranks : options.ranks) {
      for (const int workers : options.workers) {
        MEGALITH_RETURN_IF_ERROR(add(dense, ranks, workers));
      }
    }
  }
  MEGALITH_RETURN_IF_ERROR(measure(sets));
  return report;
}

std::string WeightsName(const std::string& directory, const WeightSet& set) {
  return ModelName(directory) + " " + set.dense;
}

std::string ModelName(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

}  // namespace megalith::apps
