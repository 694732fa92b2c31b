// megalith bench load: how long a model takes to be ready, and what memory it takes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/units.h"
#include "bench/load.h"
#include "bench_engines.h"
#include "bench_report.h"
#include "commands_bench.h"
#include "console.h"
#include "default_model.h"
#include "loading.h"
#include "progress_bar.h"

namespace megalith::apps {
namespace {

struct Options {
  std::string model;
  LoadOptions load;
  int rounds = 3;
  int context = 4096;
  bool drop_cache = false;
  std::int64_t probe_mib = 0;
  bool json = false;
};

double PeakOverPlan(const bench::LoadResult& result) {
  return static_cast<double>(result.memory.peak_bytes) /
         static_cast<double>(result.arena_bytes + result.state_bytes);
}

void PrintJson(const std::string& model, const Options& options, const bench::LoadResult& result) {
  const bench::Series& series = result.series;
  Json json = {{"workers", result.workers},
               {"isa", result.isa},
               {"dense", options.load.dense},
               {"program_hash", result.program_hash},
               {"yardstick", result.yardstick},
               {"seconds", SummaryJson(series, series.SecondsPerItem())},
               {"compile_seconds", result.compile_seconds.median},
               {"packed_bytes", result.packed_bytes},
               {"arena_bytes", result.arena_bytes},
               {"state_bytes", result.state_bytes},
               {"huge_pages", options.load.huge_pages},
               {"huge_page_share", HugeShare(result.pages)},
               {"peak_bytes", result.memory.peak_bytes},
               {"anonymous_bytes", result.memory.anonymous_bytes},
               {"peak_over_plan", PeakOverPlan(result)}};
  json.update(SeriesJson(series, "gb_per_s"));
  const Json all = {{"command", "load"},
                    {"conditions", ConditionsJson()},
                    {"model", model},
                    {"context", options.context},
                    {"dropped_page_cache", options.drop_cache},
                    {"results", Json::array({json})}};
  Put("{}\n", all.dump(2, ' ', false, Json::error_handler_t::replace));
}

void PrintText(const std::string& model, const Options& options, const bench::LoadResult& result) {
  const bench::Series& series = result.series;
  const auto bytes = [](auto value) { return FormatBytes(static_cast<std::uint64_t>(value)); };
  Put("{}\n{}: {} workers, {}, dense {}, checkpoint {}\n", ConditionsLine(), model, result.workers,
      result.isa, options.load.dense,
      options.drop_cache ? "dropped from the page cache before each load"
                         : "as the page cache has it");
  Put("  ready after   {} s, of which {:.3f} s compile and prove (program {})\n",
      FormatSummary(series, series.SecondsPerItem(), 1.0, 2), result.compile_seconds.median,
      result.program_hash.substr(0, 8));
  Put("  packed        {} at {} GB/s; memory read beside it {} GB/s ({}), ratio {}\n",
      bytes(result.packed_bytes), FormatSummary(series, series.Rate(), 1e-9, 2),
      FormatSummary(series, series.Probe(), 1e-9, 1), result.yardstick,
      FormatSummary(series, series.Ratio(), 1.0, 3));
  Put("  memory        weights {} ({:.0f} % on huge pages), state {}; peak {}, {:.3f} of that "
      "plan; anonymous {}\n",
      bytes(result.arena_bytes), HugeShare(result.pages) * 100, bytes(result.state_bytes),
      bytes(result.memory.peak_bytes), PeakOverPlan(result), bytes(result.memory.anonymous_bytes));
  Put("  rounds        {} kept, {} dropped\n", series.kept.size(), series.num_dropped);
}

Status Load(const Options& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
  ProgressBar bar(cli.common.quiet);
  engine::EngineOptions engine;
  engine.num_workers = cli.common.workers;
  engine.max_positions = options.context;
  MEGALITH_RETURN_IF_ERROR(ApplyLoadOptions(options.load, cli, &engine));
  MEGALITH_ASSIGN_OR_RETURN(engine.isa, ChooseIsa(cli.common));
  engine.progress = bar.Callback();
  engine.cancel = cli.cancel;
  MEGALITH_ASSIGN_OR_RETURN(
      const bench::LoadResult result,
      bench::MeasureLoad(directory, engine, options.rounds, options.drop_cache,
                         static_cast<std::size_t>(options.probe_mib) << 20));
  bar.Clear();
  if (options.json) {
    PrintJson(ModelName(directory), options, result);
  } else {
    PrintText(ModelName(directory), options, result);
  }
  return {};
}

}  // namespace

void RegisterBenchLoad(CLI::App& group, Cli& cli) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(group, cli, "load",
                 "Load a model several times: seconds, bytes packed per second, peak memory",
                 "megalith bench load\n"
                 "megalith bench load MODEL --huge-pages off --rounds 5\n"
                 "megalith bench load MODEL --drop-cache --json",
                 [options, &cli] { return Load(*options, cli); });
  AddModelArgument(*command, options->model);
  command->add_option("--context", options->context, "Longest sequence to plan for")
      ->check(CLI::Range(1, 1 << 24))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--drop-cache", options->drop_cache,
                    "Ask the system to drop the checkpoint from its page cache before each load");
  AddRoundsOption(*command, options->rounds);
  AddProbeOption(*command, options->probe_mib);
  AddLoadOptions(*command, options->load);
  AddJsonFlag(*command, options->json);
}

}  // namespace megalith::apps
