#include "bench_report.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/cpu_info.h"
#include "base/topology.h"
#include "base/units.h"
#include "bench/process_memory.h"
#include "build_commit.h"

namespace megalith::apps {

void AddCompareOptions(CLI::App& command, CompareOptions& options) {
  command.remove_option(command.get_option("--workers"));
  command.remove_option(command.get_option("--isa"));
  command
      .add_option("--workers", options.workers,
                  "Worker threads, several to compare; default: one for each physical core")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxWorkers))
      ->type_name("N,..");
  command
      .add_option("--isa", options.isas,
                  "Instruction-set paths, several to compare, or all; default: the best")
      ->delimiter(',')
      ->type_name("NAME,..");
}

std::vector<int> ChooseWorkers(const CompareOptions& options, const Topology& topology) {
  if (!options.workers.empty()) return options.workers;
  return {DefaultWorkers(topology)};
}

std::vector<int> ChooseEngineWorkers(const CompareOptions& options) {
  return options.workers.empty() ? std::vector<int>{0} : options.workers;
}

Result<std::vector<kernels::Isa>> ChooseIsas(const CompareOptions& options) {
  if (options.isas.size() == 1 && options.isas.front() == "all") return kernels::SupportedIsas();
  std::vector<kernels::Isa> isas;
  for (const std::string& name : options.isas) {
    CommonOptions one;
    one.isa = name;
    MEGALITH_ASSIGN_OR_RETURN(const kernels::Isa isa, ChooseIsa(one));
    isas.push_back(isa);
  }
  if (isas.empty()) {
    MEGALITH_ASSIGN_OR_RETURN(const kernels::Isa isa, ChooseIsa(CommonOptions{}));
    isas.push_back(isa);
  }
  return isas;
}

void AddJsonFlag(CLI::App& command, bool& json) {
  command.add_flag("--json", json, "One JSON object instead of a table");
}

void AddRoundsOption(CLI::App& command, int& rounds, const std::string& name) {
  command
      .add_option(
          name, rounds,
          "Measurements to keep of each line; those with an unsteady yardstick are repeated")
      ->check(CLI::Range(1, 1000))
      ->type_name("N")
      ->capture_default_str();
}

void AddProbeOption(CLI::App& command, std::int64_t& mib) {
  command
      .add_option("--probe-mib", mib,
                  "Memory that the yardstick reads; default 256. Less than a few times the caches "
                  "measures the caches")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 16))
      ->type_name("MIB");
}

Json ConditionsJson() {
  Json json = {{"version", MEGALITH_VERSION}, {"commit", BuildCommit()}};
  json["cpu"] = DetectCpu().brand;
  if (const auto topology = DetectTopology()) {
    json["cores"] = topology->cores.size();
    json["cpus"] = topology->allowed_cpus.size();
    json["l2_bytes"] = topology->CacheBytes(2);
    json["l3_bytes"] = topology->CacheBytes(3);
  }
  return json;
}

std::string ConditionsLine() {
  const auto topology = DetectTopology();
  return fmt::format("megalith {} ({}), {}, {} cores, L2 {}, L3 {}", MEGALITH_VERSION,
                     BuildCommit(), DetectCpu().brand, topology ? topology->cores.size() : 0,
                     FormatBytes(topology ? topology->CacheBytes(2) : 0),
                     FormatBytes(topology ? topology->CacheBytes(3) : 0));
}

Json SummaryJson(const bench::Series& series, const bench::Summary& summary, double unit) {
  if (series.kept.empty()) return nullptr;
  return {
      {"median", summary.median * unit}, {"min", summary.min * unit}, {"max", summary.max * unit}};
}

Json SeriesJson(const bench::Series& series, const std::string& rate_name) {
  Json samples = Json::array();
  for (const bench::Sample& sample : series.kept) {
    samples.push_back({{"seconds", sample.work.seconds},
                       {"items", sample.work.items},
                       {"amount", sample.work.amount},
                       {"probe_before", sample.probe_before * 1e-9},
                       {"probe_after", sample.probe_after * 1e-9},
                       {"ratio", sample.Ratio()}});
  }
  return {{"rounds", series.kept.size()},
          {"dropped", series.num_dropped},
          {rate_name, SummaryJson(series, series.Rate(), 1e-9)},
          {"probe_" + rate_name, SummaryJson(series, series.Probe(), 1e-9)},
          {"ratio", SummaryJson(series, series.Ratio())},
          {"samples", samples}};
}

std::string FormatSummary(const bench::Series& series, const bench::Summary& summary, double unit,
                          int decimals) {
  if (series.kept.empty()) return "-";
  return fmt::format("{:.{}f} ({:.{}f}-{:.{}f})", summary.median * unit, decimals,
                     summary.min * unit, decimals, summary.max * unit, decimals);
}

std::uint64_t PeakMemory() {
  const auto memory = bench::ReadProcessMemory();
  return memory ? memory->peak_bytes : 0;
}

double HugeShare(const PageReport& pages) {
  if (pages.resident_bytes == 0) return 0.0;
  return static_cast<double>(pages.huge_bytes) / static_cast<double>(pages.resident_bytes);
}

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", row[i], widths[i]);
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace megalith::apps
