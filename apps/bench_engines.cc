#include "bench_engines.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "base/system_memory.h"
#include "base/units.h"

namespace megalith::apps {
namespace {

Result<WeightSet> LoadSet(const std::string& directory, int workers, const std::string& dense,
                          LoadOptions load, const Cli& cli) {
  Cli one = cli;
  one.common.workers = workers;
  load.dense = dense;
  engine::EngineOptions options;
  options.max_positions = 1;
  options.rows_per_step = 1;
  WeightSet set;
  set.workers = workers;
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
  report->json.push_back({{"workers", engine.num_workers()},
                          {"dense", dense},
                          {"arena_bytes", bytes},
                          {"huge_pages", huge_pages},
                          {"huge_page_share", HugeShare(pages)},
                          {"load_seconds", engine.timings().load_seconds}});
  report->lines.push_back(
      fmt::format("weights for {} worker{}, dense {}: {}, {:.0f} % on huge pages",
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

Result<WeightSetsReport> WithWeightSets(
    const std::string& directory, const std::vector<int>& workers,
    const std::vector<std::string>& dense, const LoadOptions& load, const Cli& cli,
    const std::function<Status(const std::vector<WeightSet>&)>& measure) {
  WeightSetsReport report;
  std::vector<WeightSet> sets;
  std::uint64_t largest = 0;
  for (const std::string& format : dense) {
    for (const int count : workers) {
      // A quarter more than the weights: state, activations and the system's own needs.
      if (!sets.empty() && ReadMemoryStatus().available_bytes < largest + largest / 4) {
        MEGALITH_RETURN_IF_ERROR(measure(sets));
        sets.clear();
        report.interleaved = false;
      }
      MEGALITH_ASSIGN_OR_RETURN(WeightSet set, LoadSet(directory, count, format, load, cli));
      DescribeWeights(*set.engine, set.dense, load.huge_pages, &report);
      largest = std::max(largest, static_cast<std::uint64_t>(set.engine->weights().arena_bytes()));
      sets.push_back(std::move(set));
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
