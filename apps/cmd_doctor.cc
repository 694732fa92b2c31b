// megalith doctor: what this machine offers and what of it this build can use.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/bandwidth.h"
#include "base/cpu_info.h"
#include "base/system_memory.h"
#include "base/topology.h"
#include "base/units.h"
#include "cli.h"
#include "commands.h"
#include "console.h"
#include "kernels/kernel_table.h"

namespace megalith::apps {
namespace {

using Json = nlohmann::ordered_json;  // keeps the order of the text

struct DoctorOptions {
  bool json = false;
  bool no_bandwidth = false;
};

struct Bandwidth {
  int num_threads;
  BandwidthResult result;
};

struct Report {
  CpuInfo cpu;
  Topology topology;
  MemoryStatus memory;
  kernels::Isa isa;
  int num_workers;
  WorkerPlacement placement;
  std::vector<Bandwidth> bandwidth;  // empty if not measured
  std::vector<std::string> notes;
};

constexpr kernels::Isa kAllIsas[] = {kernels::Isa::kPortable, kernels::Isa::kAvx2,
                                     kernels::Isa::kAvx512,   kernels::Isa::kAvx512Bf16,
                                     kernels::Isa::kAmx,      kernels::Isa::kAmxEmulated};

/// {0, 1, 2, 5} -> "0-2,5".
std::string FormatCpus(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t first = 0; first < cpus.size();) {
    std::size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == first ? fmt::format("{}", cpus[first])
                          : fmt::format("{}-{}", cpus[first], cpus[last]);
    first = last + 1;
  }
  return text.empty() ? "none" : text;
}

std::string Count(int number, const char* what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

/// Several times what all last-level caches hold, as far as memory allows.
std::size_t BandwidthBytes(const Topology& topology, const MemoryStatus& memory) {
  std::uint64_t cache_bytes = 0;
  for (const Cache& cache : topology.caches) {
    cache_bytes =
        std::max(cache_bytes, cache.bytes * static_cast<std::uint64_t>(cache.num_instances));
  }
  constexpr std::uint64_t kMin = std::uint64_t{256} << 20;
  constexpr std::uint64_t kMax = std::uint64_t{4} << 30;
  const std::uint64_t wanted = std::clamp(4 * cache_bytes, kMin, kMax);
  return std::min(wanted, std::max(memory.available_bytes / 4, std::uint64_t{1} << 20));
}

Status Measure(Report* report, const CancelFlag* cancel) {
  std::vector<int> counts = {1};
  if (report->num_workers > 1) counts.push_back(report->num_workers);
  for (const int num_threads : counts) {
    BandwidthOptions options;
    options.num_threads = num_threads;
    options.cpus = PlaceWorkers(report->topology, num_threads).cpus;
    options.total_bytes = BandwidthBytes(report->topology, report->memory);
    options.cancel = cancel;
    MEGALITH_ASSIGN_OR_RETURN(const BandwidthResult result, MeasureReadBandwidth(options));
    report->bandwidth.push_back({num_threads, result});
  }
  return {};
}

std::vector<std::string> Notes(const Report& report) {
  std::vector<std::string> notes;
  const Topology& topology = report.topology;
  if (report.placement.oversubscribed) {
    notes.push_back(
        "more workers than this process has CPU time for: expect them to slow each "
        "other down");
  }
  if (topology.allowed_cpus.size() < static_cast<std::size_t>(topology.num_machine_cpus)) {
    notes.push_back(fmt::format("the affinity mask or cpuset leaves {} of {} CPUs",
                                topology.allowed_cpus.size(), topology.num_machine_cpus));
  }
  if (topology.cpu_quota > 0 && topology.cpu_quota < static_cast<double>(topology.cores.size())) {
    notes.push_back(fmt::format("the control group limits CPU time to {:.2f} of {} cores",
                                topology.cpu_quota, topology.cores.size()));
  }
  if (report.memory.transparent_huge_pages == TransparentHugePages::kNever) {
    notes.push_back(
        "transparent huge pages are switched off; 'madvise' in "
        "/sys/kernel/mm/transparent_hugepage/enabled makes reading weights faster");
  }
  if (report.isa == kernels::Isa::kPortable) {
    notes.push_back("the portable path is for checking results, not for speed");
  }
  if (!report.bandwidth.empty() && !report.bandwidth.back().result.huge_pages) {
    notes.push_back("the bandwidth was measured on ordinary pages");
  }
  return notes;
}

Result<Report> Examine(const DoctorOptions& options, const Cli& cli) {
  Report report{};
  MEGALITH_ASSIGN_OR_RETURN(report.isa, ChooseIsa(cli.common));
  report.cpu = DetectCpu();
  MEGALITH_ASSIGN_OR_RETURN(report.topology, DetectTopology());
  report.memory = ReadMemoryStatus();
  report.num_workers =
      cli.common.workers > 0 ? cli.common.workers : DefaultWorkers(report.topology);
  report.placement = PlaceWorkers(report.topology, report.num_workers);
  if (!options.no_bandwidth) MEGALITH_RETURN_IF_ERROR(Measure(&report, cli.cancel));
  report.notes = Notes(report);
  return report;
}

void PrintProcessor(const Report& report) {
  const Topology& topology = report.topology;
  Put("processor\n  {} ({}, family {} model {} stepping {})\n",
      report.cpu.brand.empty() ? "unknown" : report.cpu.brand,
      report.cpu.vendor.empty() ? "not an x86" : report.cpu.vendor, report.cpu.family,
      report.cpu.model, report.cpu.stepping);
  Put("  machine       {}, {}\n", Count(topology.num_machine_cores, "core"),
      Count(topology.num_machine_cpus, "CPU"));
  Put("  this process  {}, {} ({}) on {}\n", Count(static_cast<int>(topology.cores.size()), "core"),
      Count(static_cast<int>(topology.allowed_cpus.size()), "CPU"),
      FormatCpus(topology.allowed_cpus), Count(topology.num_packages, "socket"));
  Put("  CPU quota     {}\n",
      topology.cpu_quota > 0 ? fmt::format("{:.2f} CPUs", topology.cpu_quota) : "none");
  Put("  workers       {}\n", report.placement.description);

  Put("caches\n");
  for (const Cache& cache : topology.caches) {
    Put("  L{} {:<12} {} x{}, {}-byte lines, shared by {}\n", cache.level,
        cache.instructions_only ? "instructions" : "", FormatBytes(cache.bytes),
        cache.num_instances, cache.line_bytes, Count(cache.num_sharing_cpus, "CPU"));
  }
  std::string usable;
  std::string absent;
  for (const CpuFeature& feature : report.cpu.features) {
    std::string& list = feature.usable ? usable : absent;
    list += fmt::format(" {}{}", feature.name,
                        feature.present && !feature.usable ? "(not enabled by the system)" : "");
  }
  Put("instruction sets\n  usable  {}\n  not     {}\n", usable, absent);
  Put("kernel paths\n");
  for (const kernels::Isa isa : kAllIsas) {
    Put("  {:<12} {}{}\n", kernels::IsaName(isa),
        kernels::IsaSupported(isa) ? "usable" : "not on this machine",
        isa == report.isa ? ", selected" : "");
  }
}

void PrintMemory(const Report& report) {
  const MemoryStatus& memory = report.memory;
  Put("memory\n  machine       {}, {} available\n", FormatBytes(memory.total_bytes),
      FormatBytes(memory.free_bytes));
  if (memory.cgroup.memory_bytes) {
    Put("  control group {} allowed, {} left\n", FormatBytes(*memory.cgroup.memory_bytes),
        FormatBytes(*memory.cgroup.memory_left_bytes));
  } else {
    Put("  control group no limit\n");
  }
  Put("  pages         {}; transparent huge pages: {}", FormatBytes(memory.page_bytes),
      TransparentHugePagesName(memory.transparent_huge_pages));
  if (memory.transparent_page_bytes > 0) {
    Put(" ({})", FormatBytes(memory.transparent_page_bytes));
  }
  Put("\n");
  for (const HugePagePool& pool : memory.pools) {
    Put("  reserved      {} of {} pages of {} free\n", pool.num_free, pool.num_pages,
        FormatBytes(pool.page_bytes));
  }
  Put("NUMA\n");
  for (const NumaNode& node : report.topology.numa_nodes) {
    Put("  node {:<8} {}, CPUs {}\n", node.os_index, FormatBytes(node.memory_bytes),
        FormatCpus(node.cpus));
  }
}

void PrintText(const Report& report) {
  Put("megalith {}\n", MEGALITH_VERSION);
  PrintProcessor(report);
  PrintMemory(report);
  if (!report.bandwidth.empty()) Put("read bandwidth\n");
  for (const auto& [num_threads, result] : report.bandwidth) {
    Put("  {:<13} {:.1f} GB/s, median {:.1f} ({} per thread, {} read)\n",
        Count(num_threads, "thread"), result.best_gb_per_s, result.median_gb_per_s,
        Count(result.num_streams, "stream"), FormatBytes(result.total_bytes));
  }
  if (!report.notes.empty()) Put("notes\n");
  for (const std::string& note : report.notes) Put("  {}\n", note);
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json ProcessorJson(const Report& report) {
  const CpuInfo& cpu = report.cpu;
  Json features = Json::array();
  for (const CpuFeature& feature : cpu.features) {
    features.push_back({{"name", std::string(feature.name)},
                        {"present", feature.present},
                        {"usable", feature.usable}});
  }
  Json caches = Json::array();
  for (const Cache& cache : report.topology.caches) {
    caches.push_back({{"level", cache.level},
                      {"kind", cache.instructions_only ? "instructions" : "data"},
                      {"bytes", cache.bytes},
                      {"line_bytes", cache.line_bytes},
                      {"num_sharing_cpus", cache.num_sharing_cpus},
                      {"num_instances", cache.num_instances}});
  }
  Json paths = Json::array();
  for (const kernels::Isa isa : kAllIsas) {
    paths.push_back({{"name", std::string(kernels::IsaName(isa))},
                     {"usable", kernels::IsaSupported(isa)},
                     {"selected", isa == report.isa}});
  }
  return {{"vendor", cpu.vendor},  {"brand", cpu.brand},       {"family", cpu.family},
          {"model", cpu.model},    {"stepping", cpu.stepping}, {"instruction_sets", features},
          {"kernel_paths", paths}, {"caches", caches}};
}

Json TopologyJson(const Report& report) {
  const Topology& topology = report.topology;
  Json cores = Json::array();
  for (const Core& core : topology.cores) {
    cores.push_back(
        {{"cpus", core.cpus}, {"numa_node", core.numa_node}, {"package", core.package}});
  }
  Json nodes = Json::array();
  for (const NumaNode& node : topology.numa_nodes) {
    nodes.push_back(
        {{"node", node.os_index}, {"memory_bytes", node.memory_bytes}, {"cpus", node.cpus}});
  }
  return {{"num_machine_cores", topology.num_machine_cores},
          {"num_machine_cpus", topology.num_machine_cpus},
          {"num_packages", topology.num_packages},
          {"allowed_cpus", topology.allowed_cpus},
          {"cpu_quota", topology.cpu_quota > 0 ? Json(topology.cpu_quota) : Json(nullptr)},
          {"cores", cores},
          {"numa_nodes", nodes}};
}

Json MemoryJson(const MemoryStatus& memory) {
  Json pools = nlohmann::json::array();
  for (const HugePagePool& pool : memory.pools) {
    pools.push_back({{"page_bytes", pool.page_bytes},
                     {"num_pages", pool.num_pages},
                     {"num_free", pool.num_free}});
  }
  return {{"total_bytes", memory.total_bytes},
          {"free_bytes", memory.free_bytes},
          {"available_bytes", memory.available_bytes},
          {"cgroup_version", memory.cgroup.version},
          {"cgroup_limit_bytes", OrNull(memory.cgroup.memory_bytes)},
          {"cgroup_left_bytes", OrNull(memory.cgroup.memory_left_bytes)},
          {"page_bytes", memory.page_bytes},
          {"transparent_huge_pages",
           std::string(TransparentHugePagesName(memory.transparent_huge_pages))},
          {"transparent_page_bytes", memory.transparent_page_bytes},
          {"reserved_huge_pages", pools}};
}

void PrintJson(const Report& report) {
  Json bandwidth = Json::array();
  for (const auto& [num_threads, result] : report.bandwidth) {
    bandwidth.push_back({{"num_threads", num_threads},
                         {"best_gb_per_s", result.best_gb_per_s},
                         {"median_gb_per_s", result.median_gb_per_s},
                         {"num_streams", result.num_streams},
                         {"total_bytes", result.total_bytes},
                         {"huge_pages", result.huge_pages}});
  }
  const Json json = {{"version", MEGALITH_VERSION},
                     {"processor", ProcessorJson(report)},
                     {"topology", TopologyJson(report)},
                     {"memory", MemoryJson(report.memory)},
                     {"workers",
                      {{"count", report.num_workers},
                       {"cpus", report.placement.cpus},
                       {"shares_cores", report.placement.shares_cores},
                       {"oversubscribed", report.placement.oversubscribed}}},
                     {"read_bandwidth", bandwidth},
                     {"notes", report.notes}};
  // Names from firmware need not be UTF-8.
  Put("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

Status RunDoctor(const DoctorOptions& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const Report report, Examine(options, cli));
  if (options.json) {
    PrintJson(report);
  } else {
    PrintText(report);
  }
  return {};
}

}  // namespace

void RegisterDoctor(CLI::App& app, Cli& cli) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App* command =
      AddCommand(app, cli, "doctor",
                 "Show this machine: caches, instruction sets, NUMA, huge pages, limits, bandwidth",
                 "megalith doctor\n"
                 "megalith doctor --json --no-bandwidth\n"
                 "megalith doctor --workers 8 --isa avx2",
                 [options, &cli] { return RunDoctor(*options, cli); });
  command->add_flag("--json", options->json, "One JSON object instead of text");
  command->add_flag("--no-bandwidth", options->no_bandwidth,
                    "Do not measure the read bandwidth (takes a second or two)");
}

}  // namespace megalith::apps
