// megalith bench decode: tokens per second beside what reading the weights allows.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/system_memory.h"
#include "base/topology.h"
#include "base/units.h"
#include "bench/decode.h"
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
  CompareOptions compare;
  std::vector<int> rows = {1};
  std::vector<std::string> modes = {"program"};
  std::vector<std::string> prefetch = {"on"};
  bool no_prefetch = false;
  int context = 64;
  int steps = 0;
  int rounds = 5;
  std::int64_t probe_mib = 0;
  std::string tokens = "greedy";
  bool json = false;
};

struct Run {
  std::vector<bench::DecodeResult> results;
  PageReport pages{};  ///< of the weights
  std::int64_t weight_bytes = 0;
  bool workers_interleaved = true;
};

std::string ModeName(const bench::DecodeCase& what) { return what.per_op ? "per-op" : "program"; }

Result<std::vector<bench::DecodeCase>> Cases(const Options& options) {
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<kernels::Isa> isas, ChooseIsas(options.compare));
  std::vector<std::string> prefetch = options.prefetch;
  if (options.no_prefetch) prefetch = {"off"};
  std::vector<bench::DecodeCase> cases;
  for (const kernels::Isa isa : isas) {
    for (const int rows : options.rows) {
      for (const std::string& mode : options.modes) {
        // Without operations to run ahead of there is nothing to prefetch across.
        if (mode == "per-op") {
          cases.push_back({rows, isa, true, false});
          continue;
        }
        for (const std::string& setting : prefetch) {
          cases.push_back({rows, isa, false, setting == "on"});
        }
      }
    }
  }
  return cases;
}

Result<std::unique_ptr<engine::Engine>> Load(const std::string& directory, int workers,
                                             const Options& options, const Cli& cli) {
  Cli one = cli;
  one.common.workers = workers;
  engine::EngineOptions engine;
  // The engine's own executor only checks the weights; the cases get theirs.
  engine.max_positions = 1;
  engine.rows_per_step = 1;
  return LoadEngine(directory, one, options.load, engine);
}

Result<Run> Measure(const Options& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<int> workers, ChooseWorkers(options.compare));
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<bench::DecodeCase> cases, Cases(options));
  ProgressBar bar(cli.common.quiet);
  bench::DecodeOptions decode;
  decode.context = options.context;
  decode.steps = options.steps;
  decode.rounds = options.rounds;
  decode.probe_bytes = static_cast<std::size_t>(options.probe_mib) << 20;
  decode.tokens =
      options.tokens == "random" ? bench::TokenSource::kRandom : bench::TokenSource::kGreedy;
  decode.progress = bar.Callback();
  decode.cancel = cli.cancel;

  Run run;
  std::vector<std::unique_ptr<engine::Engine>> engines;
  std::vector<bench::DecodeSet> sets;
  const auto measure_loaded = [&]() -> Status {
    MEGALITH_ASSIGN_OR_RETURN(std::vector<bench::DecodeResult> results,
                              bench::MeasureDecode(sets, decode));
    for (bench::DecodeResult& result : results) run.results.push_back(std::move(result));
    sets.clear();
    engines.clear();
    return {};
  };
  for (const int count : workers) {
    // Packing depends on the number of workers. Where memory does not hold all sets of weights
    // together, they come one after the other.
    if (!engines.empty()) {
      const auto bytes = static_cast<std::uint64_t>(engines.front()->weights().arena_bytes());
      if (ReadMemoryStatus().available_bytes < bytes + bytes / 4) {
        MEGALITH_RETURN_IF_ERROR(measure_loaded());
        run.workers_interleaved = false;
      }
    }
    MEGALITH_ASSIGN_OR_RETURN(std::unique_ptr<engine::Engine> engine,
                              Load(directory, count, options, cli));
    run.weight_bytes = engine->weights().arena_bytes();
    if (const auto pages = engine->weights().Pages()) run.pages = *pages;
    sets.push_back({engine.get(), directory, cases});
    engines.push_back(std::move(engine));
  }
  MEGALITH_RETURN_IF_ERROR(measure_loaded());
  bar.Clear();
  return run;
}

Json ResultJson(const bench::DecodeResult& result) {
  const bench::Series& series = result.series;
  Json json = {
      {"rows", result.what.rows},
      {"workers", result.workers},
      {"isa", std::string(kernels::IsaName(result.what.isa))},
      {"mode", ModeName(result.what)},
      {"prefetch", result.what.prefetch},
      {"program_hash", result.program_hash},
      {"output_hash", result.first_row_hash},
      {"output_hash_all_rows", result.all_rows_hash},
      {"yardstick", result.yardstick},
      {"steps_per_round", result.steps_per_turn},
      {"tokens_per_s", SummaryJson(series, series.ItemsPerSecond())},
      {"ms_per_step", SummaryJson(series, series.SecondsPerItem(), 1e3 * result.what.rows)},
      {"weight_bytes_per_step", result.weight_bytes},
      {"state_bytes_per_step", result.state_bytes},
      {"experts_per_layer", result.experts_per_layer},
      {"mean_positions", result.mean_positions}};
  json.update(SeriesJson(series, "gb_per_s"));
  return json;
}

void PrintJson(const Options& options, const std::string& name, const Run& run) {
  Json results = Json::array();
  for (const bench::DecodeResult& result : run.results) results.push_back(ResultJson(result));
  const Json json = {{"command", "decode"},
                     {"conditions", ConditionsJson()},
                     {"model", name},
                     {"context", options.context},
                     {"tokens", options.tokens},
                     {"hashed_tokens", bench::kHashedTokens},
                     {"weight_arena_bytes", run.weight_bytes},
                     {"huge_pages", options.load.huge_pages},
                     {"huge_page_share", HugeShare(run.pages)},
                     {"workers_interleaved", run.workers_interleaved},
                     {"results", results}};
  Put("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

void PrintText(const Options& options, const std::string& name, const Run& run) {
  Put("{}\n{}: {} of weights, {:.0f} % on huge pages; context {}, {} tokens\n", ConditionsLine(),
      name, FormatBytes(static_cast<std::uint64_t>(run.weight_bytes)), HugeShare(run.pages) * 100,
      options.context, options.tokens);
  std::vector<std::vector<std::string>> table = {
      {"rows", "workers", "isa", "mode", "prefetch", "tok/s", "ms/step", "read/step", "experts",
       "GB/s", "probe", "ratio", "rounds", "dropped", "program", "output"}};
  for (const bench::DecodeResult& result : run.results) {
    const bench::Series& series = result.series;
    table.push_back({fmt::format("{}", result.what.rows), fmt::format("{}", result.workers),
                     std::string(kernels::IsaName(result.what.isa)), ModeName(result.what),
                     result.what.prefetch ? "on" : "off",
                     FormatSummary(series, series.ItemsPerSecond(), 1.0, 2),
                     FormatSummary(series, series.SecondsPerItem(), 1e3 * result.what.rows, 3),
                     FormatBytes(static_cast<std::uint64_t>(result.weight_bytes)),
                     fmt::format("{:.1f}", result.experts_per_layer),
                     FormatSummary(series, series.Rate(), 1e-9, 1),
                     FormatSummary(series, series.Probe(), 1e-9, 1),
                     FormatSummary(series, series.Ratio(), 1.0, 3),
                     fmt::format("{}", series.kept.size()), fmt::format("{}", series.num_dropped),
                     result.program_hash.substr(0, 8), result.first_row_hash});
  }
  Put("{}", FormatTable(table));
  if (!run.workers_interleaved) {
    Put("worker counts were measured one after the other: memory holds one set of weights\n");
  }
}

Status Decode(const Options& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
  MEGALITH_ASSIGN_OR_RETURN(const Run run, Measure(options, cli));
  const std::string name = std::filesystem::path(directory).lexically_normal().filename().string();
  if (options.json) {
    PrintJson(options, name, run);
  } else {
    PrintText(options, name, run);
  }
  return {};
}

}  // namespace

void RegisterBenchDecode(CLI::App& group, Cli& cli) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(
      group, cli, "decode",
      "Decode: one token a step of each of ROWS sequences; every combination of the lists takes "
      "turns with the others",
      "megalith bench decode\n"
      "megalith bench decode MODEL --rows 1,2,4,8\n"
      "megalith bench decode MODEL --mode program,per-op --workers 1,2\n"
      "megalith bench decode MODEL --prefetch on,off --context 1024 --json",
      [options, &cli] { return Decode(*options, cli); });
  AddModelArgument(*command, options->model);
  AddCompareOptions(*command, options->compare);
  command->add_option("--rows", options->rows, "Sequences decoded together")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->type_name("N,..")
      ->capture_default_str();
  command
      ->add_option("--mode", options->modes,
                   "program, or per-op: the same kernels with a barrier after every operation and "
                   "nothing fetched across operations")
      ->delimiter(',')
      ->check(CLI::IsMember({"program", "per-op"}))
      ->type_name("MODE,..")
      ->capture_default_str();
  command
      ->add_option("--prefetch", options->prefetch,
                   "Whether waiting workers ask for their next weights")
      ->delimiter(',')
      ->check(CLI::IsMember({"on", "off"}))
      ->type_name("on|off,..")
      ->capture_default_str();
  command->add_flag("--no-prefetch", options->no_prefetch, "The same as --prefetch off");
  command->add_option("--context", options->context, "Positions before the first measured token")
      ->check(CLI::Range(1, 1 << 24))
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--steps", options->steps,
                   "Steps of one measurement; default: about 0.2 s of them, at least 2")
      ->check(CLI::Range(1, 2000))
      ->type_name("N");
  command
      ->add_option("--tokens", options->tokens,
                   "greedy: feed each sequence its own output; random: any tokens, always the same "
                   "ones, which spread over the experts whatever the weights")
      ->check(CLI::IsMember({"greedy", "random"}))
      ->capture_default_str();
  AddRoundsOption(*command, options->rounds);
  AddProbeOption(*command, options->probe_mib);
  AddLoadOptions(*command, options->load);
  AddJsonFlag(*command, options->json);
}

}  // namespace megalith::apps
