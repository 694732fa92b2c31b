// megalith bench prefill: a prompt to its first token, beside what the machine can multiply.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "base/units.h"
#include "bench/prefill.h"
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
  std::vector<int> tokens = {512};
  std::vector<int> rows_per_step = {engine::EngineOptions{}.rows_per_step};
  std::vector<std::string> prefill = {"exact"};
  int rounds = 3;
  bool json = false;
};

using Run = SetsRun<bench::PrefillResult>;

Result<Run> Measure(const Options& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<kernels::Isa> isas, ChooseIsas(options.compare));
  std::vector<bench::PrefillCase> cases;
  for (const kernels::Isa isa : isas) {
    for (const int tokens : options.tokens) {
      for (const int rows : options.rows_per_step) {
        for (const std::string& form : options.prefill) {
          cases.push_back({tokens, rows, isa, form == "fast"});
        }
      }
    }
  }
  ProgressBar bar(cli.common.quiet);
  bench::PrefillOptions prefill;
  prefill.rounds = options.rounds;
  prefill.progress = bar.Callback();
  prefill.cancel = cli.cancel;
  auto run = MeasureSets<bench::PrefillSet, bench::PrefillResult>(
      directory, {{options.load.ranks}, ChooseEngineWorkers(options.compare), options.dense},
      options.load, cli, cases, [&](const std::vector<bench::PrefillSet>& sets) {
        return bench::MeasurePrefill(sets, prefill);
      });
  bar.Clear();
  return run;
}

std::string FormOf(const bench::PrefillResult& result) {
  return result.what.fast ? "fast" : "exact";
}

/// The exact case beside a fast one: the same but for the form; null if there is none.
const bench::PrefillResult* ExactBeside(const Run& run, std::size_t index) {
  const bench::PrefillResult& fast = run.results[index];
  if (!fast.what.fast) return nullptr;
  for (std::size_t i = 0; i < run.results.size(); ++i) {
    const bench::PrefillResult& exact = run.results[i];
    if (!exact.what.fast && exact.what.tokens == fast.what.tokens &&
        exact.what.rows_per_step == fast.what.rows_per_step && exact.what.isa == fast.what.isa &&
        exact.workers == fast.workers && run.dense[i] == run.dense[index]) {
      return &exact;
    }
  }
  return nullptr;
}

/// How many times the rate of exact; empty if one of them found no steady turn.
std::optional<double> OverExact(const bench::PrefillResult& fast,
                                const bench::PrefillResult& exact) {
  if (fast.series.kept.empty() || exact.series.kept.empty()) return std::nullopt;
  return exact.series.SecondsPerItem().median / fast.series.SecondsPerItem().median;
}

void PrintJson(const Run& run) {
  Json results = Json::array();
  for (std::size_t i = 0; i < run.results.size(); ++i) {
    const bench::PrefillResult& result = run.results[i];
    const bench::Series& series = result.series;
    Json json = {
        {"tokens", result.what.tokens},
        {"rows_per_step", result.what.rows_per_step},
        {"prefill", FormOf(result)},
        {"workers", result.workers},
        {"dense", run.dense[i]},
        {"isa", std::string(kernels::IsaName(result.what.isa))},
        {"program_hash", result.program_hash},
        {"output_hash", result.output_hash},
        {"yardstick", result.yardstick},
        {"tokens_per_s", SummaryJson(series, series.ItemsPerSecond())},
        {"first_token_s", SummaryJson(series, series.SecondsPerItem(), result.what.tokens)},
        {"flops", result.flops},
        {"weight_bytes", result.weight_bytes},
        {"activation_bytes", result.activation_bytes}};
    json.update(SeriesJson(series, "gflop_per_s"));
    if (const bench::PrefillResult* exact = ExactBeside(run, i)) {
      const std::optional<double> over_exact = OverExact(result, *exact);
      json["over_exact"] = over_exact ? Json(*over_exact) : Json();
    }
    if (result.difference) {
      json["logits_beside_exact"] = {{"largest_difference", result.difference->largest},
                                     {"rms_difference", result.difference->rms},
                                     {"rms", result.difference->reference_rms},
                                     {"same_token", result.difference->same_token}};
    }
    results.push_back(std::move(json));
  }
  Json json = SetsRunJson("prefill", run);
  json["results"] = results;
  Put("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

void PrintText(const Run& run) {
  Put("{}\n{}: prefill from an empty sequence\n", ConditionsLine(), run.model);
  for (const std::string& line : run.sets.lines) Put("{}\n", line);
  std::vector<std::vector<std::string>> table = {
      {"tokens", "rows/step", "prefill", "workers", "dense", "isa", "tok/s", "first token s",
       "GFLOP/s", "held against", "its rate", "ratio", "weights read", "activations", "rounds",
       "dropped", "program", "output"}};
  for (std::size_t i = 0; i < run.results.size(); ++i) {
    const bench::PrefillResult& result = run.results[i];
    const bench::Series& series = result.series;
    table.push_back({fmt::format("{}", result.what.tokens),
                     fmt::format("{}", result.what.rows_per_step), FormOf(result),
                     fmt::format("{}", result.workers), run.dense[i],
                     std::string(kernels::IsaName(result.what.isa)),
                     FormatSummary(series, series.ItemsPerSecond(), 1.0, 1),
                     FormatSummary(series, series.SecondsPerItem(), result.what.tokens, 3),
                     FormatSummary(series, series.Rate(), 1e-9, 1), result.yardstick,
                     FormatSummary(series, series.Probe(), 1e-9, 1),
                     FormatSummary(series, series.Ratio(), 1.0, 3),
                     FormatBytes(static_cast<std::uint64_t>(result.weight_bytes)),
                     FormatBytes(static_cast<std::uint64_t>(result.activation_bytes)),
                     fmt::format("{}", series.kept.size()), fmt::format("{}", series.num_dropped),
                     result.program_hash.substr(0, 8), result.output_hash});
  }
  Put("{}", FormatTable(table));
  for (std::size_t i = 0; i < run.results.size(); ++i) {
    const bench::PrefillResult& result = run.results[i];
    if (const bench::PrefillResult* exact = ExactBeside(run, i)) {
      if (const std::optional<double> over_exact = OverExact(result, *exact)) {
        Put("{} tokens, {} rows a step, {}: fast has {:.2f} times the rate of exact\n",
            result.what.tokens, result.what.rows_per_step, kernels::IsaName(result.what.isa),
            *over_exact);
      }
    }
    if (const auto& difference = result.difference) {
      Put("  its last logits differ from exact ones by {:.4f} at most, {:.4f} rms (theirs: "
          "{:.3f}); "
          "the first token is {}\n",
          difference->largest, difference->rms, difference->reference_rms,
          difference->same_token ? "the same" : "another");
    }
  }
  if (!run.sets.interleaved) {
    Put("sets of weights were measured one after the other: memory does not hold all\n");
  }
}

Status Prefill(const Options& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const Run run, Measure(options, cli));
  if (options.json) {
    PrintJson(run);
  } else {
    PrintText(run);
  }
  return {};
}

}  // namespace

void RegisterBenchPrefill(CLI::App& group, Cli& cli) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(
      group, cli, "prefill",
      "A prompt of any tokens up to its first token, beside the bare multiply loop of the "
      "instruction set; every combination of the lists takes turns with the others",
      "megalith bench prefill\n"
      "megalith bench prefill MODEL --tokens 512,4096 --rows-per-step 64,256\n"
      "megalith bench prefill MODEL --tokens 32768 --rows-per-step 1024 --prefill exact,fast\n"
      "megalith bench prefill MODEL --isa all --json",
      [options, &cli] { return Prefill(*options, cli); });
  AddModelArgument(*command, options->model);
  AddCompareOptions(*command, options->compare);
  command->add_option("--tokens", options->tokens, "Length of the prompt")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 24))
      ->type_name("N,..")
      ->capture_default_str();
  command
      ->add_option("--rows-per-step", options->rows_per_step,
                   "Tokens of one step; bounds the memory for activations")
      ->delimiter(',')
      ->check(CLI::Range(1, program::kMaxRowBucket))
      ->type_name("N,..")
      ->capture_default_str();
  command
      ->add_option("--prefill", options->prefill,
                   "Form of runs of 64 rows and more: exact, fast (other bits), or both to compare")
      ->delimiter(',')
      ->check(CLI::IsMember({"exact", "fast"}))
      ->type_name("FORM,..")
      ->capture_default_str();
  AddRoundsOption(*command, options->rounds);
  AddLoadOptions(*command, options->load);
  AddDenseList(*command, options->dense);
  AddJsonFlag(*command, options->json);
}

}  // namespace megalith::apps
