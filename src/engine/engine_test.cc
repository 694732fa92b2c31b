#include "engine/engine.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <map>

#include "engine/generate.h"
#include "exec/device_memory.h"
#include "exec/snapshot.h"
#include "kernels/kernel_table.h"
#include "kernels/numerics_revision.h"
#include "weights/inspect.h"

namespace megalith::engine {
namespace {

constexpr char kNano[] = MEGALITH_SOURCE_DIR "/models/k3-nano";

std::unique_ptr<Engine> MustLoad(EngineOptions options) {
  options.max_positions = options.max_positions == 0 ? 256 : options.max_positions;
  auto engine = Engine::Load(kNano, options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message;
    return nullptr;
  }
  return std::move(*engine);
}

const std::vector<std::int32_t> kPrompt = {3840, 3077, 259, 2124, 483, 1979, 282};

GenerateResult MustGenerate(Sequence& sequence, std::span<const std::int32_t> prompt,
                            const GenerateOptions& options) {
  auto result = Generate(sequence, prompt, options, {});
  if (!result) {
    ADD_FAILURE() << result.error().message;
    return {};
  }
  return std::move(*result);
}

TEST(Generate, SamplingWithOneSeedGivesOneTextWhateverTheStepsWorkersOrNeighbours) {
  GenerateOptions options{.max_tokens = 40, .sampling = {.temperature = 1.0f, .seed = 7}};
  auto plain = MustLoad({.num_workers = 1, .rows_per_step = 1});
  Sequence alone(*plain, 0);
  const auto expected = MustGenerate(alone, kPrompt, options).ids;
  ASSERT_EQ(expected.size(), 40u);

  auto other = MustLoad({.num_workers = 3, .num_sequences = 2, .rows_per_step = 8});
  Sequence neighbour(*other, 0);
  MustGenerate(neighbour, std::vector<std::int32_t>{5, 6, 7}, options);
  Sequence sequence(*other, 1);
  EXPECT_EQ(MustGenerate(sequence, kPrompt, options).ids, expected);

  options.sampling.seed = 8;
  EXPECT_NE(MustGenerate(sequence, kPrompt, options).ids, expected);
}

TEST(Engine, SequencesTakeTheMemoryThatInspectionPlans) {
  constexpr std::int32_t kPositions = 300;
  const std::string dspark = std::string(kNano) + "/dspark";
  for (const std::string& drafter : {std::string(), dspark}) {
    for (const std::int32_t max_drafts : {0, 1, 7, 12}) {
      const auto engine = MustLoad({.num_workers = 1,
                                    .num_sequences = 2,
                                    .max_positions = kPositions,
                                    .drafter = drafter,
                                    .max_drafts = max_drafts});
      ASSERT_NE(engine, nullptr);
      const auto report = weights::Inspect(kNano, {.context_tokens = kPositions,
                                                   .num_sequences = 2,
                                                   .max_drafts = max_drafts,
                                                   .drafter = drafter,
                                                   .drafter_beside = false});
      ASSERT_TRUE(report) << report.error().message;
      const weights::DraftPlan drafting = report->draft_plan.value_or(weights::DraftPlan());
      const exec::MemorySizes& sizes = engine->executor().memory().sizes();
      EXPECT_EQ(static_cast<std::uint64_t>(sizes.kda_state + sizes.conv_state),
                report->plan.kda_bytes + drafting.kda_bytes)
          << drafter << " " << max_drafts;
      if (max_drafts > 0) {
        EXPECT_EQ(static_cast<std::uint64_t>(sizes.draft_cache), drafting.context_bytes);
      }
    }
  }
}

TEST(Generate, StopsAtStopIdsMaxTokensAndContextEnd) {
  auto engine = MustLoad({.max_positions = 16});
  Sequence sequence(*engine, 0);
  GenerateOptions options{.max_tokens = 4};
  auto result = MustGenerate(sequence, kPrompt, options);
  EXPECT_EQ(result.ids.size(), 4u);
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);

  options.max_tokens = 1000;
  result = MustGenerate(sequence, kPrompt, options);
  // 16 positions can be run; the token after the last of them is still chosen.
  EXPECT_EQ(result.ids.size(), 16u - kPrompt.size() + 1);
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);

  options.stop_ids = {result.ids[2]};
  result = MustGenerate(sequence, kPrompt, options);
  EXPECT_EQ(result.finish_reason, FinishReason::kStop);
  EXPECT_EQ(result.ids.back(), options.stop_ids.front());
  EXPECT_LE(result.ids.size(), 3u);
}

TEST(Generate, AContinuedSequenceReusesItsPrefixWithTheSameTokens) {
  auto engine = MustLoad({.rows_per_step = 8});
  Sequence sequence(*engine, 0);
  GenerateOptions options{.max_tokens = 10};
  const auto first = MustGenerate(sequence, kPrompt, options);
  std::vector<std::int32_t> longer = kPrompt;
  longer.insert(longer.end(), first.ids.begin(), first.ids.end());
  longer.push_back(300);
  const auto warm = MustGenerate(sequence, longer, options);
  EXPECT_EQ(warm.reused_tokens, kPrompt.size() + first.ids.size() - 1);
  ASSERT_TRUE(sequence.Reset().has_value());
  const auto cold = MustGenerate(sequence, longer, options);
  EXPECT_EQ(cold.reused_tokens, 0u);
  EXPECT_EQ(warm.ids, cold.ids);
  // Another beginning starts over.
  EXPECT_EQ(MustGenerate(sequence, kPrompt, options).reused_tokens, 0u);
}

TEST(Generate, BadPromptsAreRefusedWithTheNumbers) {
  auto engine = MustLoad({.max_positions = 16});
  Sequence sequence(*engine, 0);
  const GenerateOptions options{.max_tokens = 4};
  const auto expect_error = [&](const std::vector<std::int32_t>& prompt, ErrorCode code,
                                const std::string& text) {
    const auto result = Generate(sequence, prompt, options, {});
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, code);
    EXPECT_NE(result.error().message.find(text), std::string::npos) << result.error().message;
  };
  expect_error({}, ErrorCode::kUsage, "prompt");
  expect_error(std::vector<std::int32_t>(17, 5), ErrorCode::kOutOfRange, "17 tokens");
  expect_error({5, 4096}, ErrorCode::kOutOfRange, "4096");
  expect_error({5, -1}, ErrorCode::kOutOfRange, "-1");
  EXPECT_EQ(MustGenerate(sequence, kPrompt, options).ids.size(), 4u);
}

TEST(Generate, ACancelledGenerationEndsBetweenSteps) {
  auto engine = MustLoad({});
  Sequence sequence(*engine, 0);
  CancelFlag cancel;
  GenerateOptions options{.max_tokens = 100};
  options.cancel = &cancel;
  int seen = 0;
  const auto result = Generate(sequence, kPrompt, options, [&](std::int32_t) {
    if (++seen == 3) cancel.Cancel();
    return true;
  });
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(result->ids.size(), 3u);
}

TEST(EngineLoad, ImpossibleOptionsAreRefused) {
  EXPECT_EQ(Engine::Load(kNano, {.max_positions = 1'000'000}).error().code, ErrorCode::kOutOfRange);
  EXPECT_EQ(Engine::Load(kNano, {.num_workers = -1}).error().code, ErrorCode::kUsage);
  EXPECT_EQ(Engine::Load(kNano, {.rows_per_step = 0}).error().code, ErrorCode::kUsage);
  EXPECT_EQ(Engine::Load("/nowhere", {}).error().code, ErrorCode::kNotFound);
}

TEST(EngineLoad, FastPrefillIsSaidAndRefusedWhereItCannotBe) {
  const auto short_steps = Engine::Load(kNano, {.rows_per_step = 32, .fast_prefill = true});
  ASSERT_FALSE(short_steps);
  EXPECT_EQ(short_steps.error().code, ErrorCode::kUsage);
  EXPECT_NE(short_steps.error().message.find("fast prefill"), std::string::npos);
  EXPECT_EQ(
      Engine::Load(kNano, {.activation_dtype = DType::kF32, .fast_prefill = true}).error().code,
      ErrorCode::kUsage);
  const auto fast = MustLoad({.fast_prefill = true});
  const auto exact = MustLoad({});
  EXPECT_NE(fast->Describe().find("prefill fast"), std::string::npos) << fast->Describe();
  EXPECT_NE(exact->Describe().find("prefill exact"), std::string::npos) << exact->Describe();
  // A state of one form is no state of the other.
  const auto of_fast = fast->StateIdentity();
  const auto of_exact = exact->StateIdentity();
  ASSERT_TRUE(of_fast && of_exact);
  EXPECT_NE(*of_fast, *of_exact);
  // The one-row Program is the same.
  EXPECT_EQ(fast->program_hash(), exact->program_hash());
}

/// Of everything that a snapshot after a prompt holds that is long enough for a last bit of any
/// float to show after rounding to bf16 somewhere.
std::uint64_t HashOfState(Engine& engine) {
  std::vector<std::int32_t> prompt;
  for (std::size_t i = 0; i < 200; ++i) prompt.push_back(kPrompt[i * i % std::size(kPrompt)]);
  Sequence sequence(engine, 0);
  MustGenerate(sequence, prompt, {.max_tokens = 1});
  const auto snapshot = engine.executor().Save(0);
  if (!snapshot) {
    ADD_FAILURE() << snapshot.error().message;
    return 0;
  }
  std::uint64_t hash = 0;
  for (const std::span<const std::byte> part : (*snapshot)->Contents()) {
    hash = XXH3_64bits_withSeed(part.data(), part.size(), hash);
  }
  return hash;
}

TEST(EngineLoad, BitsOfAStateBelongToARevision) {
  // Whoever has to change a hash raises the revision.
  ASSERT_EQ(kernels::kNumericsRevision, 3);
  constexpr std::uint64_t kSplitPairs = 13168773493515340763U;
  constexpr std::uint64_t kTiles = 2082375645248343078U;
  const std::map<kernels::Isa, std::uint64_t> expected = {
      {kernels::Isa::kPortable, kSplitPairs}, {kernels::Isa::kAvx2, kSplitPairs},
      {kernels::Isa::kAvx512, kSplitPairs},   {kernels::Isa::kAvx512Bf16, 7946459103680765656U},
      {kernels::Isa::kAmx, kTiles},           {kernels::Isa::kAmxEmulated, kTiles}};
  for (const auto& [isa, hash] : expected) {
    EngineOptions options{.num_workers = 2, .max_positions = 256};
    options.isa = isa;
    const auto engine = Engine::Load(kNano, options);
    if (!engine) {
      std::printf("not on this machine: %s\n", std::string(kernels::IsaName(isa)).c_str());
      continue;
    }
    EXPECT_EQ(HashOfState(**engine), hash) << kernels::IsaName(isa);
  }
}

TEST(Generate, FastPrefillGoesOnWithSingleRows) {
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < 200; ++i) prompt.push_back(kPrompt[static_cast<std::size_t>(i) % 7]);
  GenerateOptions options{.max_tokens = 8};
  const auto fast = MustLoad({.fast_prefill = true});
  const auto again = MustLoad({.num_workers = 3, .rows_per_step = 128, .fast_prefill = true});
  Sequence one(*fast, 0);
  Sequence two(*again, 0);
  // 200 rows, and 128 and 72: cut where a chunk ends.
  EXPECT_EQ(MustGenerate(one, prompt, options).ids, MustGenerate(two, prompt, options).ids);
}

TEST(EngineLoad, ReferenceAndCpuEngineGenerateTheSameTokens) {
  GenerateOptions options{.max_tokens = 12};
  auto cpu = MustLoad({.isa = kernels::Isa::kPortable});
  auto reference = MustLoad({.executor = ExecutorKind::kReference, .num_workers = 2});
  Sequence a(*cpu, 0);
  Sequence b(*reference, 0);
  EXPECT_EQ(MustGenerate(a, kPrompt, options).ids, MustGenerate(b, kPrompt, options).ids);
}

}  // namespace
}  // namespace megalith::engine
