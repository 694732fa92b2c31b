// megalith bench decode: tokens per second beside what reading the weights allows.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/units.h"
#include "bench/decode.h"
#include "bench_engines.h"
#include "bench_report.h"
#include "commands_bench.h"
#include "console.h"
#include "default_model.h"
#include "loading.h"
#include "progress_bar.h"
#include "rank_job.h"

namespace megalith::apps {
namespace {

struct Options {
  std::string model;
  LoadOptions load;
  CompareOptions compare;
  std::vector<std::string> dense = {"bf16"};
  std::vector<int> rows = {1};
  std::vector<int> ranks = {0};
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

using Run = SetsRun<bench::DecodeResult>;

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

Result<Run> Measure(const Options& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
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
  auto run = MeasureSets<bench::DecodeSet, bench::DecodeResult>(
      directory, {options.ranks, ChooseEngineWorkers(options.compare), options.dense}, options.load,
      cli, cases, [&](const std::vector<bench::DecodeSet>& sets) {
        return bench::MeasureDecode(sets, decode);
      });
  bar.Clear();
  return run;
}

Json ResultJson(const bench::DecodeResult& result, const std::string& dense) {
  const bench::Series& series = result.series;
  Json json = {
      {"rows", result.what.rows},
      {"ranks", result.ranks},
      {"workers", result.workers},
      {"dense", dense},
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

void PrintJson(const Options& options, const Run& run) {
  Json results = Json::array();
  for (std::size_t i = 0; i < run.results.size(); ++i) {
    results.push_back(ResultJson(run.results[i], run.dense[i]));
  }
  Json json = SetsRunJson("decode", run);
  json.update({{"context", options.context},
               {"tokens", options.tokens},
               {"hashed_tokens", bench::kHashedTokens},
               {"results", results}});
  Put("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

void PrintText(const Options& options, const Run& run) {
  Put("{}\n{}: context {}, {} tokens\n", ConditionsLine(), run.model, options.context,
      options.tokens);
  for (const std::string& line : run.sets.lines) Put("{}\n", line);
  std::vector<std::vector<std::string>> table = {
      {"rows", "ranks", "workers", "dense", "isa", "mode", "prefetch", "tok/s", "ms/step",
       "read/step", "experts", "GB/s", "probe", "ratio", "rounds", "dropped", "program", "output"}};
  for (std::size_t i = 0; i < run.results.size(); ++i) {
    const bench::DecodeResult& result = run.results[i];
    const bench::Series& series = result.series;
    table.push_back({fmt::format("{}", result.what.rows), fmt::format("{}", result.ranks),
                     fmt::format("{}", result.workers), run.dense[i],
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
  if (!run.sets.interleaved) {
    Put("sets of weights were measured one after the other: memory does not hold all\n");
  }
}

Status Decode(const Options& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const Run run, Measure(options, cli));
  if (options.json) {
    PrintJson(options, run);
  } else {
    PrintText(options, run);
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
      "megalith bench decode MODEL --dense bf16 --dense int8\n"
      "megalith bench decode MODEL --mode program,per-op --workers 1,2\n"
      "megalith bench decode MODEL --prefetch on,off --context 1024 --json\n"
      "megalith bench decode MODEL --ranks 1,2",
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
  AddDenseList(*command, options->dense);
  AddRanksList(*command, options->ranks);
  AddJsonFlag(*command, options->json);
}

}  // namespace megalith::apps
