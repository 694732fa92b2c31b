// The measuring itself: statistics, turns, costs. Rates are made up; nothing asserts a time.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "bench/decode.h"
#include "bench/kernels.h"
#include "bench/load.h"
#include "bench/multiply_rate.h"
#include "bench/prefill.h"
#include "bench/rounds.h"
#include "bench/statistics.h"
#include "bench/step_cost.h"
#include "bench/tokens.h"
#include "bench/yardstick.h"
#include "model/config.h"
#include "program/compile/compile.h"

namespace megalith::bench {
namespace {

const std::string kNano = MEGALITH_SOURCE_DIR "/models/k3-nano";

TEST(Summarize, MedianIsTheMiddleOrTheMeanOfTheMiddleTwo) {
  const Summary odd = Summarize({3.0, 1.0, 2.0});
  EXPECT_EQ(odd.median, 2.0);
  EXPECT_EQ(odd.min, 1.0);
  EXPECT_EQ(odd.max, 3.0);
  EXPECT_EQ(Summarize({4.0, 1.0, 2.0, 8.0}).median, 3.0);
  EXPECT_EQ(Summarize({}).median, 0.0);
}

TEST(IsSteady, ProbesMayDifferByFifteenPerCentOfTheSmaller) {
  EXPECT_TRUE(IsSteady(100.0, 115.0));
  EXPECT_TRUE(IsSteady(115.0, 100.0));
  EXPECT_FALSE(IsSteady(100.0, 115.1));
  EXPECT_FALSE(IsSteady(115.1, 100.0));
}

TEST(TokenHash, DependsOnEveryTokenAndItsPlace) {
  const std::vector<std::int32_t> tokens = {1, 2, 300};
  EXPECT_EQ(TokenHash(tokens).size(), 16u);
  EXPECT_EQ(TokenHash(tokens), TokenHash(std::vector<std::int32_t>{1, 2, 300}));
  EXPECT_NE(TokenHash(tokens), TokenHash(std::vector<std::int32_t>{2, 1, 300}));
  EXPECT_NE(TokenHash(tokens), TokenHash(std::vector<std::int32_t>{1, 2}));
  // FNV-1a of four zero bytes.
  EXPECT_EQ(TokenHash(std::vector<std::int32_t>{0}), "4d25767f9dce13f5");
}

TEST(GreedyToken, IsTheFirstOfTheLargest) {
  std::vector<float> logits(37, -1.0f);
  logits[20] = logits[33] = 2.0f;
  EXPECT_EQ(GreedyToken(logits), 20);
  logits[36] = 3.0f;
  EXPECT_EQ(GreedyToken(logits), 36);
}

TEST(ArbitraryTokens, AreInRangeSpreadAndDependOnTheText) {
  const std::vector<std::int32_t> tokens = ArbitraryTokens(0, 1000, 100);
  EXPECT_TRUE(std::all_of(tokens.begin(), tokens.end(), [](int t) { return t >= 0 && t < 100; }));
  std::vector<std::int32_t> distinct = tokens;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  EXPECT_GT(distinct.size(), 90u);
  EXPECT_NE(tokens, ArbitraryTokens(1, 1000, 100));
  EXPECT_EQ(tokens, ArbitraryTokens(0, 1000, 100));
}

// ---- rounds -------------------------------------------------------------------------------------

/// Gives the rates one after the other, then the last for ever.
Yardstick Rates(std::deque<double> rates, std::string* log) {
  return [rates, log]() mutable -> Result<double> {
    *log += 'p';
    const double rate = rates.front();
    if (rates.size() > 1) rates.pop_front();
    return rate;
  };
}

Turn Logs(char name, std::string* log) {
  return [name, log]() -> Result<Work> {
    *log += name;
    return Work{2.0, 10.0, 4.0};
  };
}

TEST(RunRounds, ContestantsTakeTurnsBetweenSharedProbes) {
  std::string log;
  const Yardstick yardstick = Rates({10.0}, &log);
  RoundsOptions options;
  options.num_rounds = 2;
  const auto series =
      RunRounds({{Logs('A', &log), &yardstick}, {Logs('B', &log), &yardstick}}, options);
  ASSERT_TRUE(series) << series.error().message;
  EXPECT_EQ(log, "pApBpApBp");
  ASSERT_EQ((*series)[1].kept.size(), 2u);
  EXPECT_EQ((*series)[1].num_dropped, 0);
  EXPECT_EQ((*series)[1].Rate().median, 5.0);
  EXPECT_EQ((*series)[1].Ratio().median, 0.5);
  EXPECT_EQ((*series)[1].ItemsPerSecond().median, 2.0);
  EXPECT_EQ((*series)[1].SecondsPerItem().median, 0.5);
}

TEST(RunRounds, ContestantsWithYardsticksOfTheirOwnAreBracketedByThem) {
  std::string log;
  const Yardstick one = Rates({10.0}, &log);
  const Yardstick other = Rates({20.0}, &log);
  RoundsOptions options;
  options.num_rounds = 1;
  const auto series = RunRounds({{Logs('A', &log), &one}, {Logs('B', &log), &other}}, options);
  ASSERT_TRUE(series) << series.error().message;
  EXPECT_EQ(log, "pApppBp");  // the first after a change does not count
  EXPECT_EQ((*series)[0].Probe().median, 10.0);
  EXPECT_EQ((*series)[1].Probe().median, 20.0);
}

TEST(RunRounds, UnsteadyTurnsAreDroppedCountedAndRepeated) {
  std::string log;
  // Before and after the first turn: 10 and 20. Then 20, 20, ...
  const Yardstick yardstick = Rates({10.0, 20.0}, &log);
  RoundsOptions options;
  options.num_rounds = 2;
  const auto series = RunRounds({{Logs('A', &log), &yardstick}}, options);
  ASSERT_TRUE(series) << series.error().message;
  EXPECT_EQ(series->front().kept.size(), 2u);
  EXPECT_EQ(series->front().num_dropped, 1);
  EXPECT_EQ(series->front().Probe().min, 20.0);
  EXPECT_EQ(log, "pApApAp");
}

TEST(Series, SpeedsAreComparedRoundByRound) {
  const auto sample = [](int round, double seconds) {
    return Sample{.round = round, .work = {.seconds = seconds, .amount = 1.0, .items = 12.0}};
  };
  // The machine is ten times slower in rounds 2 and 3; either has rounds that the other has not.
  Series base{.kept = {sample(0, 1.0), sample(1, 1.0), sample(2, 10.0), sample(3, 10.0)}};
  Series other{.kept = {sample(0, 0.5), sample(2, 5.0), sample(3, 2.5), sample(5, 100.0)}};
  const Summary speed = other.SpeedOver(base);
  EXPECT_EQ(speed.median, 2.0);
  EXPECT_EQ(speed.min, 2.0);
  EXPECT_EQ(speed.max, 4.0);
  EXPECT_EQ(base.SpeedOver(base).median, 1.0);
  EXPECT_EQ(base.SpeedOver(Series{}).median, 0.0);
}

TEST(RunRounds, NeverSteadyEndsAtTheLimit) {
  std::string log;
  int calls = 0;
  const Yardstick yardstick = [&calls]() -> Result<double> { return calls++ % 2 == 0 ? 1.0 : 2.0; };
  RoundsOptions options;
  options.num_rounds = 2;
  options.max_rounds = 5;
  const auto series = RunRounds({{Logs('A', &log), &yardstick}}, options);
  ASSERT_TRUE(series) << series.error().message;
  EXPECT_TRUE(series->front().kept.empty());
  EXPECT_EQ(series->front().num_dropped, 5);
  EXPECT_EQ(series->front().Ratio().median, 0.0);
}

TEST(RunRounds, ErrorsAndCancelEndIt) {
  std::string log;
  const Yardstick yardstick = Rates({10.0}, &log);
  const Turn fails = []() -> Result<Work> { return Fail(ErrorCode::kNumeric, "no"); };
  EXPECT_EQ(RunRounds({{fails, &yardstick}}, {}).error().code, ErrorCode::kNumeric);
  CancelFlag cancel;
  cancel.Cancel();
  RoundsOptions options;
  options.cancel = &cancel;
  EXPECT_EQ(RunRounds({{Logs('A', &log), &yardstick}}, options).error().code,
            ErrorCode::kCancelled);
}

// ---- costs --------------------------------------------------------------------------------------

TEST(CostOf, AgreesWithTheProgramsOwnCount) {
  const auto config = model::ReadConfig(kNano);
  ASSERT_TRUE(config) << config.error().message;
  const std::int64_t top_k = config->model.moe.num_experts_per_token;
  program::CompileOptions options;
  options.num_workers = 3;
  for (const bool barriers : {false, true}) {
    options.barrier_after_each_op = barriers;
    const auto program = program::Compile(config->model, options);
    ASSERT_TRUE(program) << program.error().message;
    const StepCost cost = CostOf(*program, top_k);
    const auto num_moe =
        static_cast<std::int64_t>(config->model.CountLayers(model::FeedForward::kMoe));
    EXPECT_EQ(cost.num_moe_layers, num_moe);
    for (const std::int64_t experts : {0, 1, 4}) {
      EXPECT_EQ(cost.WeightBytes(1, static_cast<double>(experts * num_moe)),
                static_cast<double>(program::CountStepBytes(*program, 1, experts).packed));
    }
    // Two operations for each weight of a row: bf16 has two bytes a weight, so about its bytes.
    EXPECT_GT(cost.row_flops, cost.dense_bytes * 0.9);
    EXPECT_EQ(cost.logit_flops,
              2.0 * static_cast<double>(config->model.hidden_size * config->model.vocab_size));
    EXPECT_GT(cost.cache_bytes, 0.0);
    EXPECT_GT(cost.state_bytes, 0.0);
  }
}

// ---- measurements, as small as they get ---------------------------------------------------------

std::unique_ptr<engine::Engine> LoadNano(std::int32_t workers) {
  engine::EngineOptions options;
  options.num_workers = workers;
  options.max_positions = 1;
  options.rows_per_step = 1;
  auto engine = engine::Engine::Load(kNano, options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message;
    return nullptr;
  }
  return std::move(*engine);
}

TEST(MeasureDecode, AllFormsChooseTheSameTokensAndCountTheirExperts) {
  const auto one = LoadNano(1);
  const auto two = LoadNano(2);
  ASSERT_TRUE(one && two);
  DecodeOptions options;
  options.context = 3;
  options.steps = 1;
  options.rounds = 1;
  options.probe_bytes = 1 << 20;
  const auto isa = kernels::SupportedIsas().back();
  const std::vector<DecodeCase> cases = {
      {1, isa, false, true}, {3, isa, false, true}, {1, isa, true, false}};
  const auto results =
      MeasureDecode({{one.get(), "nano", cases}, {two.get(), "nano", cases}}, options);
  ASSERT_TRUE(results) << results.error().message;
  ASSERT_EQ(results->size(), 6u);
  for (const DecodeResult& result : *results) {
    EXPECT_EQ(result.first_row_hash, results->front().first_row_hash);
    EXPECT_EQ(result.steps_per_turn, 1);
    EXPECT_GT(result.weight_bytes, 8e6);
    // The share of the machine may be anything, but somebody has measured it.
    EXPECT_EQ(result.series.kept.size() + static_cast<std::size_t>(result.series.num_dropped) > 0,
              true);
  }
  EXPECT_EQ((*results)[0].workers, 1);
  EXPECT_EQ((*results)[3].workers, 2);
  EXPECT_EQ((*results)[0].experts_per_layer, 4.0);  // top-4
  EXPECT_GT((*results)[1].experts_per_layer, 4.0);
  EXPECT_NE((*results)[0].program_hash, (*results)[2].program_hash);
}

TEST(MeasureDecode, ContextBeyondTheModelIsRefused) {
  const auto engine = LoadNano(1);
  ASSERT_TRUE(engine);
  DecodeOptions options;
  options.context = static_cast<std::int32_t>(engine->model().max_position_embeddings);
  options.probe_bytes = 1 << 20;
  const auto results = MeasureDecode({{engine.get(), "nano", {DecodeCase{}}}}, options);
  ASSERT_FALSE(results);
  EXPECT_EQ(results.error().code, ErrorCode::kOutOfRange);
}

TEST(MeasurePrefill, HowThePromptIsCutChangesNoBit) {
  const auto engine = LoadNano(2);
  ASSERT_TRUE(engine);
  PrefillOptions options;
  options.rounds = 1;
  const auto isa = kernels::SupportedIsas().back();
  const auto results =
      MeasurePrefill({{engine.get(), "nano", {{19, 4, isa}, {19, 64, isa}}}}, options);
  ASSERT_TRUE(results) << results.error().message;
  EXPECT_EQ((*results)[0].output_hash, (*results)[1].output_hash);
  EXPECT_GT((*results)[0].weight_bytes, (*results)[1].weight_bytes);
  EXPECT_LT((*results)[0].activation_bytes, (*results)[1].activation_bytes);
  EXPECT_EQ((*results)[0].flops, (*results)[1].flops);
}

TEST(MeasurePrefill, FastIsComparedWithExact) {
  const auto engine = LoadNano(2);
  ASSERT_TRUE(engine);
  PrefillOptions options;
  options.rounds = 1;
  const auto isa = kernels::SupportedIsas().back();
  const auto results =
      MeasurePrefill({{engine.get(),
                       "nano",
                       {{130, 256, isa, false}, {130, 256, isa, true}, {130, 64, isa, true}}}},
                     options);
  ASSERT_TRUE(results) << results.error().message;
  EXPECT_FALSE((*results)[0].difference.has_value());
  for (const std::size_t i : {1u, 2u}) {
    EXPECT_NE((*results)[i].output_hash, (*results)[0].output_hash);
    ASSERT_TRUE((*results)[i].difference.has_value());
    EXPECT_GT((*results)[i].difference->largest, 0.0);
    EXPECT_LT((*results)[i].difference->rms, (*results)[i].difference->reference_rms * 0.1);
  }
  EXPECT_LT((*results)[1].flops, (*results)[0].flops);
}

TEST(MeasureKernels, EveryKernelOfThePortablePathRuns) {
  KernelOptions options;
  options.isas = {kernels::Isa::kPortable};
  options.inputs = {64};
  options.rows = {1, 16};
  options.rounds = 1;
  options.turn_seconds = 1e-6;
  options.cold_bytes = 4 << 20;
  options.probe_bytes = 1 << 20;
  const auto results = MeasureKernels(options);
  ASSERT_TRUE(results) << results.error().message;
  for (const char* name : {"matmul_bf16", "matmul_mxfp4", "matmul_int8", "kda_head", "kda_chunks",
                           "mla_attention", "mla_partial", "mla_merge", "attn_res_norm", "rms_norm",
                           "gated_pair", "router_top_k", "draft_attention", "head_norm_rotary"}) {
    EXPECT_TRUE(std::any_of(results->begin(), results->end(), [name](const KernelResult& result) {
      return result.kernel == name;
    })) << name;
  }
  options.only = "no such kernel";
  EXPECT_EQ(MeasureKernels(options).error().code, ErrorCode::kUsage);
}

TEST(MeasureLoad, ReportsWhatWasPackedAndPlanned) {
  engine::EngineOptions options;
  options.num_workers = 2;
  options.max_positions = 16;
  const auto result = MeasureLoad(kNano, options, 1, false, 1 << 20);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->workers, 2);
  EXPECT_GT(result->packed_bytes, 9'000'000);
  EXPECT_GE(result->arena_bytes, result->packed_bytes);
  EXPECT_GT(result->state_bytes, 0);
  EXPECT_GT(result->memory.peak_bytes, 0u);
}

TEST(MultiplyYardstick, EverySupportedPathHasALoop) {
  for (const kernels::Isa isa : kernels::SupportedIsas()) {
    EXPECT_FALSE(MultiplyInstruction(isa).empty());
    const auto rate = MultiplyYardstick(isa, 1, {})();
    ASSERT_TRUE(rate) << rate.error().message;
    EXPECT_GT(*rate, 0.0);
  }
}

}  // namespace
}  // namespace megalith::bench
