#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/result.h"
#include "base/topology.h"
#include "bench/rounds.h"
#include "cli.h"

// What the bench commands share: lists of values as options, conditions, JSON.

namespace megalith::apps {

using Json = nlohmann::ordered_json;  // keeps the order of the text

/// Worker counts and instruction sets to compare, in place of AddCommand's single ones.
struct CompareOptions {
  std::vector<int> workers;       ///< empty: one for each physical core
  std::vector<std::string> isas;  ///< empty: MEGALITH_FORCE_ISA, else the best
};
void AddCompareOptions(CLI::App& command, CompareOptions& options);
/// The counts to run; at least one.
std::vector<int> ChooseWorkers(const CompareOptions& options, const Topology& topology);
/// The same for engines, which find their part of the cores themselves: then 0.
std::vector<int> ChooseEngineWorkers(const CompareOptions& options);
/// kUsage if one does not exist or cannot run here.
Result<std::vector<kernels::Isa>> ChooseIsas(const CompareOptions& options);

/// Adds --json to print one JSON object instead of a table.
void AddJsonFlag(CLI::App& command, bool& json);

/// Adds --rounds with the value in `rounds` as default. `name`: for commands in which a round is
/// something else.
void AddRoundsOption(CLI::App& command, int& rounds, const std::string& name = "--rounds");

/// Adds --probe-mib: size of the memory that the yardstick reads. 0 in `mib`: the default.
void AddProbeOption(CLI::App& command, std::int64_t& mib);

/// Version, commit, processor, caches: what a number is worth nothing without.
Json ConditionsJson();
/// One line of the same for people.
std::string ConditionsLine();

/// {"median": .., "min": .., "max": ..}, each multiplied by `unit`; null if nothing was measured.
Json SummaryJson(const bench::Series& series, const bench::Summary& summary, double unit = 1.0);
/// Rounds kept and dropped, rates, yardstick, ratio, and every sample. `unit`: what rates are
/// given in, e.g. 1e-9 for GB/s; `rate_name`: e.g. "gb_per_s".
Json SeriesJson(const bench::Series& series, const std::string& rate_name);

/// "12.3 (11.9-12.8)"; "-" if nothing was measured.
std::string FormatSummary(const bench::Series& series, const bench::Summary& summary, double unit,
                          int decimals);

/// Most memory this process has had resident, mapped files and yardsticks included; 0 if not known.
std::uint64_t PeakMemory();

/// Share of the resident bytes on huge pages, 0 to 1.
double HugeShare(const PageReport& pages);

/// Columns with aligned widths; the first row is the heading.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace megalith::apps
