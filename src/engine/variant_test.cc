// Engine::MakeVariant: other forms of a model on the same weights.

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "exec/device_memory.h"

namespace megalith::engine {
namespace {

std::unique_ptr<Engine> LoadNano(std::int32_t workers) {
  EngineOptions options;
  options.num_workers = workers;
  options.max_positions = 1;
  options.rows_per_step = 1;
  auto engine = Engine::Load(MEGALITH_SOURCE_DIR "/models/k3-nano", options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message;
    return nullptr;
  }
  return std::move(*engine);
}

/// Logits of all steps of two sequences, run together: a prompt, then single tokens.
Result<std::vector<float>> RunSteps(exec::Executor& executor) {
  std::vector<float> all;
  const std::vector<std::vector<std::int32_t>> steps = {
      {5, 6, 7, 8, 9, 10, 11}, {100, 200}, {101, 201}, {3000, 4}};
  std::int32_t first = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    std::vector<exec::Run> runs;
    if (i == 0) {
      runs = {{0, 0, 4}, {1, 0, 3}};
      first = 0;
    } else {
      runs = {{0, 4 + first, 1}, {1, 3 + first, 1}};
      ++first;
    }
    const std::vector<std::int32_t> logit_rows = {0,
                                                  static_cast<std::int32_t>(steps[i].size()) - 1};
    MEGALITH_ASSIGN_OR_RETURN(const exec::StepOutput logits,
                              executor.Step({runs, steps[i], logit_rows}));
    for (const std::int64_t row : {0, 1}) {
      all.insert(all.end(), logits.Row(row).begin(), logits.Row(row).end());
    }
  }
  return all;
}

VariantOptions TwoSequences() {
  VariantOptions options;
  options.row_buckets = {2, 8};
  options.logit_rows = 2;
  options.num_sequences = 2;
  options.max_positions = 16;
  return options;
}

TEST(MakeVariant, BarriersAndPrefetchChangeNoBit) {
  for (const std::int32_t workers : {1, 2, 3}) {
    const auto engine = LoadNano(workers);
    ASSERT_TRUE(engine);
    VariantOptions options = TwoSequences();
    const auto normal = engine->MakeVariant(options);
    options.prefetch = false;
    const auto without_prefetch = engine->MakeVariant(options);
    options.barrier_after_each_op = true;
    const auto barriers = engine->MakeVariant(options);
    ASSERT_TRUE(normal && without_prefetch && barriers);
    EXPECT_NE(normal->programs.front().hash(), barriers->programs.front().hash());
    const auto want = RunSteps(*normal->executor);
    ASSERT_TRUE(want) << want.error().message;
    for (const auto* other : {&*without_prefetch, &*barriers}) {
      const auto have = RunSteps(*other->executor);
      ASSERT_TRUE(have) << have.error().message;
      EXPECT_TRUE(*have == *want) << workers << " workers";
    }
  }
}

TEST(MakeVariant, EveryInstructionSetRunsOnTheSameWeights) {
  const auto engine = LoadNano(2);
  ASSERT_TRUE(engine);
  for (const kernels::Isa isa : kernels::SupportedIsas()) {
    VariantOptions options = TwoSequences();
    options.isa = isa;
    const auto variant = engine->MakeVariant(options);
    ASSERT_TRUE(variant) << variant.error().message;
    EXPECT_NE(variant->executor->Describe().find(kernels::IsaName(isa)), std::string::npos);
    EXPECT_TRUE(RunSteps(*variant->executor));
  }
}

TEST(MakeVariant, StepsCountTheExpertsTheyUse) {
  const auto engine = LoadNano(2);
  ASSERT_TRUE(engine);
  const auto variant = engine->MakeVariant(TwoSequences());
  ASSERT_TRUE(variant) << variant.error().message;
  const std::int64_t moe_layers = engine->model().CountLayers(model::FeedForward::kMoe);
  const std::int64_t top_k = engine->model().moe.num_experts_per_token;
  const std::int32_t token = 7;
  const exec::Run one{0, 0, 1};
  ASSERT_TRUE(variant->executor->Step({{&one, 1}, {&token, 1}, {}}));
  EXPECT_EQ(variant->executor->memory().step_active_experts(), moe_layers * top_k);
  const std::int32_t tokens[] = {9, 2000};
  const exec::Run two[] = {{0, 1, 1}, {1, 0, 1}};
  ASSERT_TRUE(variant->executor->Step({two, tokens, {}}));
  EXPECT_GE(variant->executor->memory().step_active_experts(), moe_layers * top_k);
  EXPECT_LE(variant->executor->memory().step_active_experts(), 2 * moe_layers * top_k);
}

}  // namespace
}  // namespace megalith::engine
