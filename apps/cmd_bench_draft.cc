// megalith bench draft: what rounds of drafting cost, and the tokens per second they bring.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "base/topology.h"
#include "base/units.h"
#include "bench/draft_costs.h"
#include "bench/draft_rates.h"
#include "bench/statistics.h"
#include "bench/synthetic_proposer.h"
#include "bench/tokens.h"
#include "bench/turns.h"
#include "bench/yardstick.h"
#include "bench_engines.h"
#include "bench_report.h"
#include "commands_bench.h"
#include "console.h"
#include "default_model.h"
#include "drafting.h"
#include "loading.h"
#include "model/config.h"
#include "progress_bar.h"
#include "sampling_options.h"
#include "text/tokenizer.h"

namespace megalith::apps {
namespace {

constexpr std::int32_t kMaxRows = program::kMaxDrafts + 1;
/// Of an arbitrary prompt.
constexpr int kDefaultContext = 64;

struct Options {
  std::string model;
  LoadOptions load;
  std::string only;
  std::vector<int> rows = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<std::string> draft_rows = {"2", "4", "8", "auto"};
  std::string drafter = "auto";
  std::optional<double> synthetic_acceptance;
  std::int64_t synthetic_seed = 0;
  std::string prompt;
  std::string ids;
  int context = 0;
  std::string tokens = "random";
  int max_tokens = 128;
  int steps = 0;
  int repeats = 5;
  std::int64_t probe_mib = 0;
  kernels::SamplingOptions sampling;
  bool json = false;

  bool measures(const std::string& part) const { return only.empty() || only == part; }
};

/// A line of the second part.
struct RateLine {
  std::string drafter;  ///< "plain", "dspark", "ngram", "both", "synthetic"
  std::string rows;     ///< a number or "auto"
  bench::DraftRateCase what;
};

struct Run {
  std::string model;
  std::string drafter;  ///< folder; empty: none
  std::string isa;
  std::int32_t workers = 0;
  std::string yardstick;
  std::size_t prompt_tokens = 0;
  WeightSetsReport weights;
  std::vector<bench::DraftCost> costs;
  std::vector<RateLine> lines;
  std::vector<bench::DraftRate> rates;  ///< of each line
  std::string token_hash;               ///< of what all of them generated
};

// ---- what to measure ----------------------------------------------------------------------------

std::string LineName(const std::string& drafter, const std::string& rows) {
  return fmt::format("{}, {} rows", drafter, rows);
}

/// Plain decoding first. Synthetic drafts come in when their text is known. `drafter`: a folder, or
/// empty.
Result<std::vector<RateLine>> RateLines(const Options& options, const std::string& drafter,
                                        const std::string& directory, const model::Model& model) {
  std::vector<RateLine> lines = {RateLine{"plain", "1", {"plain", {}}}};
  const auto add = [&](const std::string& kind, const std::string& sources,
                       const std::string& rows) -> Status {
    MEGALITH_ASSIGN_OR_RETURN(const Drafting drafting,
                              ResolveDrafting({sources, rows}, directory, model));
    // A drafter may propose less.
    const std::int32_t most_rows = drafting.options.max_drafts + 1;
    const std::string measured = rows == "auto" ? rows : fmt::to_string(most_rows);
    lines.push_back({kind, measured, {LineName(kind, measured), drafting.options}});
    return {};
  };
  const bool is_synthetic = options.synthetic_acceptance.has_value();
  // Any proposer will do in place of the synthetic one.
  const std::string fixed_kind = is_synthetic ? "synthetic" : "dspark";
  const std::string fixed_sources = is_synthetic ? "ngram" : drafter;
  for (const std::string& rows : options.draft_rows) {
    MEGALITH_ASSIGN_OR_RETURN(const DraftRows parsed, ParseDraftRows(rows));
    if (parsed.max_drafts == 0) {
      return Fail(
          ErrorCode::kUsage,
          "--draft-rows: auto or a number from 2 to {} expected, {} given: one row is plain "
          "decoding, which is measured anyway",
          kMaxRows, rows);
    }
    if (!fixed_sources.empty()) MEGALITH_RETURN_IF_ERROR(add(fixed_kind, fixed_sources, rows));
  }
  if (is_synthetic) return lines;
  MEGALITH_RETURN_IF_ERROR(add("ngram", "ngram", "auto"));
  if (!drafter.empty()) MEGALITH_RETURN_IF_ERROR(add("both", drafter + ",ngram", "auto"));
  return lines;
}

std::int32_t MostDrafts(const std::vector<RateLine>& lines) {
  std::int32_t most = 0;
  for (const RateLine& line : lines) most = std::max(most, line.what.drafting.max_drafts);
  return most;
}

/// Before anything is loaded.
Status CheckSyntheticAcceptance(const Options& options, const std::vector<RateLine>& lines) {
  const std::int32_t most = MostDrafts(lines) + 1;
  if (options.synthetic_acceptance.value_or(1.0) <= most) return {};
  return Fail(ErrorCode::kUsage,
              "--synthetic-acceptance: at most {} tokens a round, the largest of --draft-rows, "
              "expected; {} given",
              most, *options.synthetic_acceptance);
}

/// Gives the synthetic lines their proposer.
void AddSyntheticProposers(const Options& options, double tokens_per_round, std::int64_t vocab_size,
                           const bench::DraftRateOptions& rates, std::vector<RateLine>* lines) {
  std::vector<std::int32_t> text = rates.prompt;
  text.insert(text.end(), rates.expected.begin(), rates.expected.end());
  const engine::DraftProposer proposer = bench::MakeSyntheticProposer(
      std::move(text), bench::ChanceFor(tokens_per_round, MostDrafts(*lines)),
      options.synthetic_seed, static_cast<std::int32_t>(vocab_size));
  for (RateLine& line : *lines) {
    if (line.drafter == "synthetic") line.what.drafting.proposer = proposer;
  }
}

/// Text, ids, or as many arbitrary tokens as --context says; by default the sample text, and
/// arbitrary tokens for a model without a tokenizer.
Result<std::vector<std::int32_t>> ReadPrompt(const Options& options, const std::string& directory,
                                             std::int64_t vocab_size) {
  if (options.context > 0) return bench::ArbitraryTokens(0, options.context, vocab_size);
  if (!options.ids.empty()) {
    MEGALITH_ASSIGN_OR_RETURN(std::vector<std::int32_t> ids, ParseIds(options.ids));
    MEGALITH_RETURN_IF_ERROR(CheckIds(ids, vocab_size));
    if (ids.empty()) return Fail(ErrorCode::kUsage, "--ids: at least one token expected");
    return ids;
  }
  const auto tokenizer = text::Tokenizer::Load(directory, vocab_size);
  if (!tokenizer && tokenizer.error().code == ErrorCode::kNotFound && options.prompt.empty()) {
    return bench::ArbitraryTokens(0, kDefaultContext, vocab_size);
  }
  if (!tokenizer) return tl::unexpected(tokenizer.error());
  std::vector<std::int32_t> ids;
  MEGALITH_RETURN_IF_ERROR(
      tokenizer->EncodeTo(options.prompt.empty() ? kSamplePrompt : options.prompt, ids));
  return ids;
}

// ---- measuring ----------------------------------------------------------------------------------

struct Loaded {
  std::unique_ptr<engine::Engine> engine;
  bench::MemoryYardstick yardstick;
};

Result<Loaded> Load(const Options& options, const std::string& directory,
                    const std::vector<RateLine>& lines, const std::vector<std::int32_t>& prompt,
                    std::int64_t model_positions, const Cli& cli, Run* run) {
  const auto positions = static_cast<std::int64_t>(prompt.size()) +
                         std::max(options.max_tokens, bench::kMeasuredPositions);
  engine::EngineOptions engine_options;
  engine_options.max_positions = static_cast<std::int32_t>(std::min(positions, model_positions));
  engine_options.drafter = run->drafter;
  if (options.measures("costs")) {
    engine_options.max_drafts = *std::max_element(options.rows.begin(), options.rows.end()) - 1;
  }
  engine_options.max_drafts = std::max(engine_options.max_drafts, MostDrafts(lines));
  Loaded loaded;
  MEGALITH_ASSIGN_OR_RETURN(loaded.engine,
                            LoadEngine(directory, cli, options.load, std::move(engine_options)));
  DescribeWeights(*loaded.engine, options.load.dense, options.load.huge_pages, &run->weights);
  run->isa = loaded.engine->isa_name();
  run->workers = loaded.engine->num_workers();
  MEGALITH_ASSIGN_OR_RETURN(const Topology topology, DetectTopology());
  MEGALITH_ASSIGN_OR_RETURN(
      loaded.yardstick,
      bench::StartMemoryYardstick(
          run->workers, PlaceWorkers(topology, run->workers).cpus, PreferredHugePages(),
          options.probe_mib > 0 ? static_cast<std::size_t>(options.probe_mib) << 20
                                : bench::kYardstickBytes));
  run->yardstick = bench::Describe(loaded.yardstick.method);
  return loaded;
}

Status MeasureCosts(const Options& options, const bench::DraftRateOptions& rates, Loaded& loaded,
                    Run* run) {
  bench::DraftCostOptions costs;
  costs.rows.assign(options.rows.begin(), options.rows.end());
  costs.context = static_cast<std::int32_t>(rates.prompt.size());
  costs.steps = options.steps;
  costs.repeats = options.repeats;
  costs.yardstick = rates.yardstick;
  costs.progress = rates.progress;
  costs.cancel = rates.cancel;
  costs.text = rates.prompt;
  if (options.tokens == "text") {
    costs.text.insert(costs.text.end(), rates.expected.begin(), rates.expected.end());
  } else {
    const auto vocab_size = loaded.engine->model().vocab_size;
    for (std::int64_t i = costs.context; i < loaded.engine->max_positions(); ++i) {
      costs.text.push_back(bench::ArbitraryToken(0, i, vocab_size));
    }
  }
  MEGALITH_ASSIGN_OR_RETURN(run->costs, bench::MeasureDraftCosts(*loaded.engine, costs));
  return {};
}

Status MeasureRates(const Options& options, const bench::DraftRateOptions& rates, Loaded& loaded,
                    Run* run) {
  if (options.synthetic_acceptance) {
    AddSyntheticProposers(options, *options.synthetic_acceptance, loaded.engine->model().vocab_size,
                          rates, &run->lines);
  }
  std::vector<bench::DraftRateCase> cases;
  for (const RateLine& line : run->lines) cases.push_back(line.what);
  MEGALITH_ASSIGN_OR_RETURN(run->rates, bench::MeasureDraftRates(*loaded.engine, cases, rates));
  run->token_hash = bench::TokenHash(rates.expected);
  return {};
}

Result<Run> Measure(const Options& options, const Cli& cli) {
  MEGALITH_RETURN_IF_ERROR(kernels::CheckSampling(options.sampling));
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
  MEGALITH_ASSIGN_OR_RETURN(const model::Config config, model::ReadConfig(directory));
  bench::DraftRateOptions rates;
  MEGALITH_ASSIGN_OR_RETURN(rates.prompt, ReadPrompt(options, directory, config.model.vocab_size));
  Run run;
  run.model = ModelName(directory);
  run.prompt_tokens = rates.prompt.size();
  MEGALITH_ASSIGN_OR_RETURN(const Drafting drafting,
                            ResolveDrafting({options.drafter, "auto"}, directory, config.model));
  run.drafter = drafting.drafter;
  if (options.measures("rates")) {
    MEGALITH_ASSIGN_OR_RETURN(run.lines, RateLines(options, run.drafter, directory, config.model));
    MEGALITH_RETURN_IF_ERROR(CheckSyntheticAcceptance(options, run.lines));
  }
  MEGALITH_ASSIGN_OR_RETURN(Loaded loaded, Load(options, directory, run.lines, rates.prompt,
                                                config.model.max_position_embeddings, cli, &run));
  ProgressBar bar(cli.common.quiet);
  rates.sampling = options.sampling;
  rates.repeats = options.repeats;
  rates.yardstick = &loaded.yardstick.measure;
  rates.progress = bar.Callback();
  rates.cancel = cli.cancel;
  if (options.measures("rates") || options.tokens == "text") {
    MEGALITH_ASSIGN_OR_RETURN(
        rates.expected, bench::PlainContinuation(*loaded.engine, rates.prompt, options.max_tokens,
                                                 options.sampling, cli.cancel));
  }
  if (options.measures("costs")) {
    MEGALITH_RETURN_IF_ERROR(MeasureCosts(options, rates, loaded, &run));
  }
  if (options.measures("rates")) {
    MEGALITH_RETURN_IF_ERROR(MeasureRates(options, rates, loaded, &run));
  }
  bar.Clear();
  return run;
}

// ---- reporting ----------------------------------------------------------------------------------

double RatioOf(double value, double base) { return base > 0.0 ? value / base : 0.0; }

double Speedup(const Run& run, const bench::DraftRate& rate) {
  return rate.series.SpeedOver(run.rates.front().series).median;
}

/// Accepted of the verified drafts at each position; nothing where none was verified.
std::vector<std::optional<double>> AcceptanceByPosition(const bench::DraftRate& rate) {
  std::vector<std::optional<double>> shares;
  for (std::size_t k = 0; k < rate.drafting.position_proposed.size(); ++k) {
    const auto drafted = static_cast<double>(rate.drafting.position_proposed[k]);
    shares.push_back(
        drafted > 0.0
            ? std::optional(static_cast<double>(rate.drafting.position_accepted[k]) / drafted)
            : std::nullopt);
  }
  return shares;
}

/// 0, "not measured", as null.
Json KnownOrNull(double value) { return value > 0.0 ? Json(value) : Json(nullptr); }

Json CostJson(const bench::DraftCost& cost, const std::string& yardstick) {
  const bench::Series& series = cost.series;
  const bool drafts = cost.rows > 1;
  Json json = {
      {"part", "costs"},
      {"rows", cost.rows},
      {"proposals", cost.proposals},
      {"program_hash", cost.program_hash},
      {"yardstick", yardstick},
      {"steps_per_turn", cost.steps_per_turn},
      {"ms_per_step", SummaryJson(series, series.SecondsPerItem(), 1e3)},
      {"weight_bytes_per_step", cost.weight_bytes},
      {"state_bytes_per_step", cost.state_bytes},
      {"experts_per_layer", cost.experts_per_layer},
      {"mean_positions", cost.mean_positions},
      {"time_ratio", KnownOrNull(cost.time_ratio)},
      {"bytes_ratio", cost.bytes_ratio},
      {"time_over_bytes", KnownOrNull(RatioOf(cost.time_ratio, cost.bytes_ratio))},
      {"break_even_tokens_per_round", drafts ? KnownOrNull(cost.time_ratio) : Json(nullptr)}};
  json.update(SeriesJson(series, "gb_per_s"));
  return json;
}

Json RateJson(const Run& run, std::size_t i) {
  const bench::DraftRate& rate = run.rates[i];
  Json acceptance = Json::array();
  for (const std::optional<double>& share : AcceptanceByPosition(rate)) {
    acceptance.push_back(share ? Json(*share) : Json(nullptr));
  }
  Json json = {{"part", "rates"},
               {"drafter", run.lines[i].drafter},
               {"rows", run.lines[i].rows},
               {"yardstick", run.yardstick},
               {"tokens_per_s", SummaryJson(rate.series, rate.series.ItemsPerSecond())},
               {"speedup", KnownOrNull(Speedup(run, rate))},
               {"tokens_per_round", rate.TokensPerRound()},
               {"rounds", rate.drafting.rounds},
               {"drafted", rate.drafting.drafted},
               {"accepted", rate.drafting.accepted},
               {"acceptance_by_position", acceptance},
               {"rounds_by_drafts", rate.drafting.rounds_by_drafts},
               {"output_hash", run.token_hash},
               {"same_ids_as_plain", true}};  // any other token has ended the measurement
  json.update(SeriesJson(rate.series, "gb_per_s"));
  return json;
}

void PrintJson(const Options& options, const Run& run) {
  Json results = Json::array();
  for (const bench::DraftCost& cost : run.costs) results.push_back(CostJson(cost, run.yardstick));
  for (std::size_t i = 0; i < run.rates.size(); ++i) results.push_back(RateJson(run, i));
  const Json json = {
      {"command", "draft"},
      {"conditions", ConditionsJson()},
      {"model", run.model},
      {"drafter", run.drafter.empty() ? Json(nullptr) : Json(run.drafter)},
      {"workers", run.workers},
      {"dense", options.load.dense},
      {"isa", run.isa},
      {"context", run.prompt_tokens},
      {"generated_tokens", options.max_tokens},
      {"tokens", options.tokens},
      {"synthetic_acceptance",
       options.synthetic_acceptance ? Json(*options.synthetic_acceptance) : Json(nullptr)},
      {"weights", run.weights.json},
      {"peak_memory_bytes", PeakMemory()},
      {"results", results}};
  Put("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

std::string KnownOrDash(double value) {
  return value > 0.0 ? fmt::format("{:.3f}", value) : std::string("-");
}

/// "1.85 (chance 0.49)", "never" if not even rounds with every draft accepted gain.
std::string BreakEven(const bench::DraftCost& cost) {
  if (cost.rows == 1 || cost.time_ratio <= 0.0) return "-";
  if (cost.time_ratio >= cost.rows) return fmt::format("{:.2f}: never", cost.time_ratio);
  return fmt::format("{:.2f} (chance {:.2f})", cost.time_ratio,
                     bench::ChanceFor(cost.time_ratio, cost.rows - 1));
}

void PrintCosts(const Options& options, const Run& run) {
  Put("cost of rounds ({} tokens):\n", options.tokens);
  std::vector<std::vector<std::string>> table = {
      {"rows", "proposals", "ms/step", "time", "read/step", "experts", "bytes", "time/bytes",
       "break-even", "GB/s", "probe", "ratio", "turns", "dropped", "program"}};
  for (const bench::DraftCost& cost : run.costs) {
    const bench::Series& series = cost.series;
    table.push_back(
        {fmt::format("{}", cost.rows), fmt::format("{}", cost.proposals),
         FormatSummary(series, series.SecondsPerItem(), 1e3, 3), KnownOrDash(cost.time_ratio),
         FormatBytes(static_cast<std::uint64_t>(cost.weight_bytes)),
         fmt::format("{:.1f}", cost.experts_per_layer), KnownOrDash(cost.bytes_ratio),
         KnownOrDash(RatioOf(cost.time_ratio, cost.bytes_ratio)), BreakEven(cost),
         FormatSummary(series, series.Rate(), 1e-9, 1),
         FormatSummary(series, series.Probe(), 1e-9, 1),
         FormatSummary(series, series.Ratio(), 1.0, 3), fmt::format("{}", series.kept.size()),
         fmt::format("{}", series.num_dropped), cost.program_hash.substr(0, 8)});
  }
  Put("{}", FormatTable(table));
  Put("time, bytes: over the step of 1 row; break-even: tokens a round from which such rounds "
      "gain,\nand the chance of each draft that gives them\n");
}

void PrintRates(const Options& options, const Run& run) {
  Put("rates over {} tokens{}:\n", options.max_tokens,
      options.synthetic_acceptance ? ", synthetic drafts, which cost nothing" : "");
  std::vector<std::vector<std::string>> table = {{"drafter", "rows", "tok/s", "speed-up",
                                                  "tokens/round", "accepted by position, %", "GB/s",
                                                  "probe", "ratio", "turns", "dropped"}};
  for (std::size_t i = 0; i < run.rates.size(); ++i) {
    const bench::DraftRate& rate = run.rates[i];
    std::vector<std::string> accepted;
    for (const std::optional<double>& share : AcceptanceByPosition(rate)) {
      accepted.push_back(share ? fmt::format("{:.0f}", *share * 100) : "-");
    }
    table.push_back({run.lines[i].drafter, run.lines[i].rows,
                     FormatSummary(rate.series, rate.series.ItemsPerSecond(), 1.0, 2),
                     KnownOrDash(Speedup(run, rate)), fmt::format("{:.2f}", rate.TokensPerRound()),
                     accepted.empty() ? "-" : fmt::format("{}", fmt::join(accepted, " ")),
                     FormatSummary(rate.series, rate.series.Rate(), 1e-9, 1),
                     FormatSummary(rate.series, rate.series.Probe(), 1e-9, 1),
                     FormatSummary(rate.series, rate.series.Ratio(), 1.0, 3),
                     fmt::format("{}", rate.series.kept.size()),
                     fmt::format("{}", rate.series.num_dropped)});
  }
  Put("{}", FormatTable(table));
  Put("GB/s: what plain decoding would read for these tokens; all ids equal those of plain "
      "decoding, hash {}\n",
      run.token_hash);
}

void PrintText(const Options& options, const Run& run) {
  Put("{}\n{}: context {}, {}, {} worker{}, yardstick {}, {}\n", ConditionsLine(), run.model,
      run.prompt_tokens, run.isa, run.workers, run.workers == 1 ? "" : "s", run.yardstick,
      run.drafter.empty() ? "no drafter" : fmt::format("drafter {}", run.drafter));
  for (const std::string& line : run.weights.lines) Put("{}\n", line);
  if (!run.costs.empty()) PrintCosts(options, run);
  if (!run.rates.empty()) PrintRates(options, run);
}

Status Draft(const Options& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const Run run, Measure(options, cli));
  if (options.json) {
    PrintJson(options, run);
  } else {
    PrintText(options, run);
  }
  return {};
}

void AddWhatToMeasure(CLI::App& command, Options& options) {
  command
      .add_option("--only", options.only,
                  "costs: steps that verify drafts, with and without new proposals; rates: tokens "
                  "per second with and without drafting")
      ->check(CLI::IsMember({"costs", "rates"}))
      ->type_name("costs|rates");
  command
      .add_option("--rows", options.rows,
                  "Costs: rows of a step, drafts and the token before them; 1 is measured anyway")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxRows))
      ->type_name("N,..")
      ->capture_default_str();
  command
      .add_option("--draft-rows", options.draft_rows,
                  "Rates: rows of a step, a number, or auto: as many as pay")
      ->delimiter(',')
      ->type_name("N|auto,..")
      ->capture_default_str();
  command
      .add_option("--draft", options.drafter,
                  "Which drafter to measure, as in run: the folder of one; auto: the one in "
                  "MODEL/dspark, if there is one; off or ngram: none. N-grams are measured anyway, "
                  "alone and beside it, unless drafts are synthetic")
      ->type_name(kDraftForms)
      ->capture_default_str();
  command
      .add_option("--synthetic-acceptance", options.synthetic_acceptance,
                  "Rates with drafts that come from plain decoding, some of them made wrong, so "
                  "that the largest of --draft-rows gives so many tokens a round on average; they "
                  "cost nothing")
      ->check(CLI::Range(1.0, static_cast<double>(kMaxRows)))
      ->type_name("TOKENS");
  command
      .add_option("--synthetic-seed", options.synthetic_seed, "Which synthetic drafts are wrong")
      ->type_name("N")
      ->capture_default_str();
}

void AddText(CLI::App& command, Options& options) {
  CLI::Option_group* prompt = command.add_option_group("prompt");
  prompt
      ->add_option("-p,--prompt", options.prompt,
                   "Text to continue; default: a sample, or 64 arbitrary tokens for a model "
                   "without a tokenizer")
      ->type_name("TEXT");
  prompt->add_option("--ids", options.ids, "Token ids, separated by commas or spaces")
      ->type_name("IDS");
  prompt->add_option("--context", options.context, "A prompt of so many arbitrary tokens")
      ->check(CLI::Range(1, 1 << 24))
      ->type_name("N");
  prompt->require_option(0, 1);
  command
      .add_option("--tokens", options.tokens,
                  "What the steps of the costs read. random: any tokens, always the same ones, "
                  "which spread over the experts whatever the weights; text: what plain decoding "
                  "generates")
      ->check(CLI::IsMember({"random", "text"}))
      ->capture_default_str();
  command.add_option("-n,--max-tokens", options.max_tokens, "Tokens that a turn generates")
      ->check(CLI::Range(2, 1 << 24))
      ->type_name("N")
      ->capture_default_str();
}

}  // namespace

void RegisterBenchDraft(CLI::App& group, Cli& cli) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(
      group, cli, "draft",
      "Drafting: what steps that verify and propose tokens cost beside plain ones, and tokens per "
      "second with and without; all lines of a part take turns",
      "megalith bench draft\n"
      "megalith bench draft MODEL --draft DIR --prompt \"And the king said\" -n 256\n"
      "megalith bench draft MODEL --only costs --rows 1,4,8 --context 1024\n"
      "megalith bench draft MODEL --only rates --synthetic-acceptance 3 --json",
      [options, &cli] { return Draft(*options, cli); });
  AddModelArgument(*command, options->model);
  AddWhatToMeasure(*command, *options);
  AddText(*command, *options);
  command
      ->add_option(
          "--steps", options->steps,
          "Costs: steps of one measurement; default: about 0.2 s of plain ones, at least 2")
      ->check(CLI::Range(1, 2000))
      ->type_name("N");
  AddRoundsOption(*command, options->repeats, "--repeats");
  AddProbeOption(*command, options->probe_mib);
  AddSamplingOptions(*command, options->sampling);
  AddLoadOptions(*command, options->load);
  AddJsonFlag(*command, options->json);
}

}  // namespace megalith::apps
