// megalith bench bandwidth: how fast this machine reads memory, which every other result is held
// against.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "base/read_probe.h"
#include "base/topology.h"
#include "base/units.h"
#include "bench/statistics.h"
#include "bench/yardstick.h"
#include "bench_report.h"
#include "commands_bench.h"
#include "console.h"
#include "progress_bar.h"

namespace megalith::apps {
namespace {

struct Options {
  CompareOptions compare;
  std::int64_t mib = 0;
  int rounds = 7;
  bool json = false;
};

struct Case {
  int threads;
  HugePages huge_pages;
  ReadMethod method;
  ReadProbe* probe;
  std::vector<double> rates;  // bytes per second, one per round
};

constexpr std::int64_t kPrefetchDistances[] = {0, 512, 1024, 4096};

/// 1 thread and all of them, unless the user names the numbers.
std::vector<int> ThreadCounts(const Options& options, const Topology& topology) {
  std::vector<int> counts = ChooseWorkers(options.compare, topology);
  if (options.compare.workers.empty() && counts.front() > 1) counts.insert(counts.begin(), 1);
  return counts;
}

Status Bandwidth(const Options& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const Topology topology, DetectTopology());
  const std::vector<int> counts = ThreadCounts(options, topology);
  std::vector<HugePages> modes = {HugePages::kOff};
  if (PreferredHugePages() != HugePages::kOff) modes.push_back(PreferredHugePages());
  ProgressBar bar(cli.common.quiet);
  std::vector<std::unique_ptr<ReadProbe>> probes;
  std::vector<Case> cases;
  std::vector<double> huge_shares;
  for (const int threads : counts) {
    for (const HugePages mode : modes) {
      ReadProbeOptions probe;
      probe.num_threads = threads;
      probe.cpus = PlaceWorkers(topology, threads).cpus;
      probe.huge_pages = mode;
      probe.total_bytes =
          options.mib > 0 ? static_cast<std::size_t>(options.mib) << 20 : bench::kYardstickBytes;
      MEGALITH_ASSIGN_OR_RETURN(std::unique_ptr<ReadProbe> started, ReadProbe::Start(probe));
      probes.push_back(std::move(started));
      for (const int streams : {1, 4, 8}) {
        for (const std::int64_t prefetch : kPrefetchDistances) {
          cases.push_back({threads, mode, {streams, prefetch}, probes.back().get(), {}});
        }
      }
    }
  }
  for (int round = 0; round < options.rounds; ++round) {
    bar.Update({"bandwidth", static_cast<std::uint64_t>(round),
                static_cast<std::uint64_t>(options.rounds), false});
    for (Case& item : cases) {
      MEGALITH_RETURN_IF_ERROR(CheckCancelled(cli.cancel, "bench bandwidth"));
      MEGALITH_ASSIGN_OR_RETURN(const std::vector<double> rates, item.probe->Read(item.method, 1));
      item.rates.push_back(rates.front());
    }
  }
  bar.Clear();

  Json results = Json::array();
  std::vector<std::vector<std::string>> table = {
      {"threads", "pages", "streams", "prefetch", "GB/s", "min", "max"}};
  for (const Case& item : cases) {
    const bench::Summary rate = bench::Summarize(item.rates);
    double huge_share = 0.0;
    if (const auto pages = item.probe->Pages()) huge_share = HugeShare(*pages);
    results.push_back(
        {{"threads", item.threads},
         {"huge_pages", std::string(HugePagesName(item.huge_pages))},
         {"huge_page_share", huge_share},
         {"streams", item.method.num_streams},
         {"prefetch_bytes", item.method.prefetch_bytes},
         {"bytes_read", item.probe->total_bytes()},
         {"rounds", item.rates.size()},
         {"gb_per_s",
          {{"median", rate.median * 1e-9}, {"min", rate.min * 1e-9}, {"max", rate.max * 1e-9}}}});
    table.push_back(
        {fmt::format("{}", item.threads),
         fmt::format("{} {:.0f} %", HugePagesName(item.huge_pages), huge_share * 100),
         fmt::format("{}", item.method.num_streams),
         item.method.prefetch_bytes > 0 ? fmt::format("{} ahead", item.method.prefetch_bytes) : "-",
         fmt::format("{:.1f}", rate.median * 1e-9), fmt::format("{:.1f}", rate.min * 1e-9),
         fmt::format("{:.1f}", rate.max * 1e-9)});
  }
  if (options.json) {
    const Json json = {
        {"command", "bandwidth"}, {"conditions", ConditionsJson()}, {"results", results}};
    Put("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
    return {};
  }
  Put("{}\nread bandwidth, median of {} rounds, {} a pass\n{}", ConditionsLine(), options.rounds,
      FormatBytes(probes.front()->total_bytes()), FormatTable(table));
  return {};
}

}  // namespace

void RegisterBenchBandwidth(CLI::App& group, Cli& cli) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(group, cli, "bandwidth",
                 "Read memory with 1, 4 and 8 streams, with and without huge pages and prefetch",
                 "megalith bench bandwidth\n"
                 "megalith bench bandwidth --workers 1,2,4 --rounds 15 --json",
                 [options, &cli] { return Bandwidth(*options, cli); });
  AddCompareOptions(*command, options->compare);
  AddProbeOption(*command, options->mib);
  AddRoundsOption(*command, options->rounds);
  AddJsonFlag(*command, options->json);
}

}  // namespace megalith::apps
