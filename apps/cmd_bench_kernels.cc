// megalith bench kernels: every kernel alone, on one thread.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/units.h"
#include "bench/kernels.h"
#include "bench_report.h"
#include "commands_bench.h"
#include "console.h"
#include "progress_bar.h"

namespace megalith::apps {
namespace {

struct Options {
  std::vector<std::string> isas = {"all"};
  bench::KernelOptions kernels;
  std::int64_t probe_mib = 0;
  std::int64_t cold_mib = 256;
  double turn_ms = 30.0;
  bool json = false;
};

bool CountsFlops(const bench::KernelResult& result) {
  return result.inputs > 0 && result.rows >= bench::kMultiplyBoundRows;
}

void PrintJson(const std::vector<bench::KernelResult>& all) {
  Json results = Json::array();
  for (const bench::KernelResult& result : all) {
    const bench::Series& series = result.series;
    const double calls_per_second = series.ItemsPerSecond().median;
    Json json = {{"kernel", result.kernel},
                 {"shape", result.shape},
                 {"isa", std::string(kernels::IsaName(result.isa))},
                 {"inputs", result.inputs > 0 ? Json(result.inputs) : Json(nullptr)},
                 {"rows", result.rows},
                 {"bytes_per_call", result.bytes_per_call},
                 {"flops_per_call", result.flops_per_call},
                 {"us_per_call", SummaryJson(series, series.SecondsPerItem(), 1e6)},
                 {"gb_per_s_median", calls_per_second * result.bytes_per_call * 1e-9},
                 {"gflop_per_s_median", calls_per_second * result.flops_per_call * 1e-9},
                 {"yardstick", result.yardstick.empty() ? Json(nullptr) : Json(result.yardstick)}};
    if (!result.yardstick.empty()) {
      json.update(SeriesJson(series, CountsFlops(result) ? "gflop_per_s" : "gb_per_s"));
    } else {
      json["rounds"] = series.kept.size();
      json["dropped"] = series.num_dropped;
    }
    results.push_back(std::move(json));
  }
  const Json json = {{"command", "kernels"},
                     {"conditions", ConditionsJson()},
                     {"workers", 1},
                     {"results", results}};
  Put("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

void PrintText(const std::vector<bench::KernelResult>& all) {
  std::vector<std::vector<std::string>> table = {{"kernel", "shape", "isa", "us/call", "GB/s",
                                                  "GFLOP/s", "held against", "its rate", "ratio",
                                                  "rounds", "dropped"}};
  for (const bench::KernelResult& result : all) {
    const bench::Series& series = result.series;
    const double calls_per_second = series.ItemsPerSecond().median;
    const auto rate = [calls_per_second](double per_call) {
      return per_call > 0.0 ? fmt::format("{:.1f}", calls_per_second * per_call * 1e-9) : "-";
    };
    const bool held = !result.yardstick.empty();
    table.push_back({result.kernel, result.shape, std::string(kernels::IsaName(result.isa)),
                     FormatSummary(series, series.SecondsPerItem(), 1e6, 1),
                     rate(result.bytes_per_call), rate(result.flops_per_call),
                     held ? result.yardstick : "-",
                     held ? FormatSummary(series, series.Probe(), 1e-9, 1) : "-",
                     held ? FormatSummary(series, series.Ratio(), 1.0, 2) : "-",
                     fmt::format("{}", series.kept.size()), fmt::format("{}", series.num_dropped)});
  }
  Put("{}\none thread; weights and states cold\n{}", ConditionsLine(), FormatTable(table));
}

Status Kernels(Options options, const Cli& cli) {
  CompareOptions compare;
  compare.isas = options.isas;
  ProgressBar bar(cli.common.quiet);
  MEGALITH_ASSIGN_OR_RETURN(options.kernels.isas, ChooseIsas(compare));
  options.kernels.probe_bytes = static_cast<std::size_t>(options.probe_mib) << 20;
  options.kernels.cold_bytes = static_cast<std::size_t>(options.cold_mib) << 20;
  options.kernels.turn_seconds = options.turn_ms * 1e-3;
  options.kernels.progress = bar.Callback();
  options.kernels.cancel = cli.cancel;
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<bench::KernelResult> results,
                            bench::MeasureKernels(options.kernels));
  bar.Clear();
  if (options.json) {
    PrintJson(results);
  } else {
    PrintText(results);
  }
  return {};
}

}  // namespace

void RegisterBenchKernels(CLI::App& group, Cli& cli) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(
      group, cli, "kernels",
      "Every kernel alone on one thread: matmuls of cold weights beside what the thread can read "
      "or, from 16 rows on, multiply; the others as time per call",
      "megalith bench kernels\n"
      "megalith bench kernels --only matmul_mxfp4 --rows 1,8 --isa avx512\n"
      "megalith bench kernels --rounds 9 --json",
      [options, &cli] { return Kernels(*options, cli); });
  command->remove_option(command->get_option("--workers"));
  command->remove_option(command->get_option("--isa"));
  command
      ->add_option("--isa", options->isas, "Instruction-set paths; all: what this machine can run")
      ->delimiter(',')
      ->type_name("NAME,..")
      ->capture_default_str();
  command->add_option("--inputs", options->kernels.inputs, "K of the matmuls, multiples of 32")
      ->delimiter(',')
      ->check(CLI::Range(32, 1 << 20))
      ->check(CLI::Validator(
          [](std::string& text) {
            std::int64_t value = 0;
            CLI::detail::lexical_cast(text, value);
            return value % 32 == 0 ? std::string() : std::string("a multiple of 32 expected");
          },
          "", "multiple_of_32"))
      ->type_name("K,..")
      ->capture_default_str();
  command->add_option("--rows", options->kernels.rows, "Rows of the matmuls")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->type_name("N,..")
      ->capture_default_str();
  command->add_option("--only", options->kernels.only, "Only kernels whose name contains this")
      ->type_name("TEXT");
  command
      ->add_option("--turn-ms", options->turn_ms, "Least time of one measurement, in milliseconds")
      ->check(CLI::Range(0.01, 10'000.0))
      ->capture_default_str();
  command
      ->add_option("--cold-mib", options->cold_mib,
                   "Memory that weights and states are spread over; several times the caches")
      ->check(CLI::Range(std::int64_t{8}, std::int64_t{1} << 16))
      ->type_name("MIB")
      ->capture_default_str();
  AddProbeOption(*command, options->probe_mib);
  AddRoundsOption(*command, options->kernels.rounds);
  AddJsonFlag(*command, options->json);
}

}  // namespace megalith::apps
