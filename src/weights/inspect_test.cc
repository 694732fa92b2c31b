#include "weights/inspect.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "model/config.h"
#include "tools/fake_checkpoint.h"
#include "tools/temp_dir.h"

namespace megalith::weights {
namespace {

using nlohmann::json;

const std::string kData = MEGALITH_TEST_DATA;

std::uint64_t PerToken(const InspectReport& report, model::Part part) {
  return report.parts[static_cast<std::size_t>(part)].bytes_per_token;
}

/// Numbers of the specification, sections 3, 7 and 8.
void ExpectReleasedModel(const InspectReport& report) {
  using model::Part;
  EXPECT_EQ(report.num_expected, 497'052u);
  EXPECT_EQ(PerToken(report, Part::kKda), 69ull * 887'800'832ull);
  EXPECT_EQ(PerToken(report, Part::kMla), 24ull * 464'392'192ull);
  EXPECT_EQ(PerToken(report, Part::kDenseFfn), 2ull * 726'663'168ull);
  EXPECT_EQ(PerToken(report, Part::kRouter), 92ull * (2 * 6'422'528ull + 4 * 896));
  EXPECT_EQ(PerToken(report, Part::kLatent), 92ull * 2 * 51'383'808ull);
  EXPECT_EQ(PerToken(report, Part::kSharedExperts), 92ull * 2 * 132'120'576ull);
  EXPECT_EQ(PerToken(report, Part::kNorms), 2ull * (93 * 43'008 + 21'504));
  EXPECT_EQ(PerToken(report, Part::kHead), 2ull * 1'174'405'120ull);
  EXPECT_EQ(PerToken(report, Part::kEmbedding), 14'336u);
  EXPECT_EQ(PerToken(report, Part::kExperts), 92ull * 16 * 17'547'264ull);
  // 111.161 GB dense, 136.990 GB in all, 104.19 G active of 2779.484 G parameters.
  EXPECT_EQ(report.dense_bytes_per_token(), 111'160'730'624u);
  EXPECT_EQ(report.bytes_per_token(), 136'990'317'568u);
  EXPECT_EQ(report.parameters_per_token() / 10'000'000, 10'418u);
  EXPECT_EQ(report.stored().num_parameters, 2'779'484'478'208u);
  EXPECT_EQ(report.stored().num_bytes, 1'559'965'606'912u);

  EXPECT_EQ(report.state.kda_recurrent_bytes, 434'110'464u);
  EXPECT_EQ(report.state.kda_conv_bytes, 15'261'696u);
  EXPECT_EQ(report.state.mla_bytes_per_token, 27'648u);
  EXPECT_EQ(report.state.residual_block_bytes, 129'024u);
  EXPECT_EQ(report.plan.context_tokens, 1'048'576);
  EXPECT_EQ(report.plan.mla_bytes, 28'991'029'248u);
  EXPECT_EQ(report.plan.total_bytes,
            report.plan.weight_bytes + report.plan.kda_bytes + report.plan.mla_bytes);
}

TEST(Inspect, ReleasedConfigAloneGivesTheNumbersOfTheSpecification) {
  const auto report = Inspect(kData + "/kimi-k3-config.json", {});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_FALSE(report->files);
  ExpectReleasedModel(*report);
}

TEST(Inspect, FullSizeCheckpointIsReadFromItsHeaders) {
  const tools::TempDir temp;
  const auto config = ReadTextFile(kData + "/kimi-k3-config.json", 1 << 20);
  ASSERT_TRUE(config);
  const Status made = tools::MakeFakeCheckpoint(temp.path(), *config);
  ASSERT_TRUE(made) << made.error().message;

  const auto start = std::chrono::steady_clock::now();
  const auto report = Inspect(temp.path(), {});
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(report) << report.error().message;
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  // Printed, not judged: a busy machine is no failure.
  fmt::print("inspected in {:.2f} s, peak memory of the test {} MB\n", elapsed.count(),
             usage.ru_maxrss / 1024);

  ExpectReleasedModel(*report);
  ASSERT_TRUE(report->files);
  EXPECT_EQ(report->files->num_shards, 96u);
  EXPECT_EQ(report->files->num_present, 497'220u);
  EXPECT_EQ(report->files->num_skipped, 168u);
  EXPECT_EQ(report->files->skipped_bytes, 2u * 447'358'976u);
  EXPECT_EQ(report->files->num_unknown, 0u);
  EXPECT_EQ(report->files->num_mxfp4_matrices, 247'296u);
  EXPECT_EQ(report->stored().num_bytes + report->files->skipped_bytes, 1'560'860'324'864u);
  EXPECT_GT(report->files->num_file_bytes, 1'560'860'324'864u);
  EXPECT_EQ(report->warnings, std::vector<std::string>());
}

TEST(Inspect, CheckpointAndItsConfigAgree) {
  for (const char* name : {"k3-odd", "k3-realdims", "k3-tiny", "k3-unit"}) {
    const std::string directory = kData + "/golden/" + name;
    const auto files = Inspect(directory, {});
    const auto config = Inspect(directory + "/config.json", {});
    ASSERT_TRUE(files) << files.error().message;
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(files->num_expected, config->num_expected);
    for (std::size_t i = 0; i < files->parts.size(); ++i) {
      EXPECT_EQ(files->parts[i].stored.num_bytes, config->parts[i].stored.num_bytes) << name;
      EXPECT_EQ(files->parts[i].stored.num_parameters, config->parts[i].stored.num_parameters);
      EXPECT_EQ(files->parts[i].stored.num_tensors, config->parts[i].stored.num_tensors);
      EXPECT_EQ(files->parts[i].bytes_per_token, config->parts[i].bytes_per_token);
    }
  }
}

// Some engines sized the cache by all layers and took experts for granted in layer 0.
TEST(Inspect, CachesAreCountedPerKindOfLayer) {
  json config = json::parse(*ReadTextFile(kData + "/golden/k3-tiny/config.json", 1 << 20));
  json& text = config["text_config"];
  text["num_hidden_layers"] = 8;
  text["linear_attn_config"]["full_attn_layers"] = {4, 8};
  text["linear_attn_config"]["kda_layers"] = {1, 2, 3, 5, 6, 7};
  const tools::TempDir temp;
  temp.Write("config.json", config.dump());
  const auto report = Inspect(temp.path(), {.context_tokens = 1000, .num_sequences = 3});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->state.mla_bytes_per_token, 2u * (64 + 16) * 2);
  EXPECT_EQ(report->plan.mla_bytes, 3u * 1000 * 2 * (64 + 16) * 2);
  EXPECT_EQ(report->state.kda_recurrent_bytes, 6u * 4 * 32 * 32 * 4);
  EXPECT_EQ(report->state.kda_conv_bytes, 6u * 3 * 3 * 128 * 2);
  EXPECT_EQ(PerToken(*report, model::Part::kExperts), 7u * 4 * 3 * (64 * 32 + 64 * 2));
  ASSERT_EQ(report->layer_groups.size(), 3u);
  EXPECT_EQ(report->layer_groups[0].layers, std::vector<std::int64_t>{0});
  EXPECT_EQ(report->layer_groups[2].layers, (std::vector<std::int64_t>{3, 7}));
}

TEST(Inspect, TiedEmbeddingIsStoredOnceAndReadAsTheHead) {
  json config = json::parse(*ReadTextFile(kData + "/golden/k3-tiny/config.json", 1 << 20));
  config["tie_word_embeddings"] = true;
  config["text_config"]["tie_word_embeddings"] = true;
  const tools::TempDir temp;
  temp.Write("config.json", config.dump());
  const auto report = Inspect(temp.path(), {});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->parts[static_cast<std::size_t>(model::Part::kHead)].stored.num_bytes, 0u);
  EXPECT_EQ(PerToken(*report, model::Part::kHead), 512u * 128 * 2);
}

TEST(Inspect, MissingShardIsNamedLikeByTheEngine) {
  const tools::TempDir temp;
  temp.CopyFrom(kData + "/golden/k3-tiny");
  temp.Remove("model-00002-of-000003.safetensors");
  const auto report = Inspect(temp.path(), {});
  const auto checkpoint = Checkpoint::Open(temp.path());
  ASSERT_FALSE(report);
  ASSERT_FALSE(checkpoint);
  EXPECT_EQ(report.error().message, checkpoint.error().message);
  EXPECT_NE(report.error().message.find("model-00002-of-000003.safetensors"), std::string::npos);
}

TEST(Inspect, PlanOfNoTokensIsRefused) {
  EXPECT_FALSE(Inspect(kData + "/golden/k3-tiny", {.context_tokens = 0}));
  EXPECT_FALSE(Inspect(kData + "/golden/k3-tiny", {.num_sequences = -1}));
}

TEST(Inspect, PlanBeyondTheModelOrTheMachineIsRefused) {
  const std::string directory = kData + "/golden/k3-tiny";
  const auto report = Inspect(directory, {});
  ASSERT_TRUE(report) << report.error().message;
  const std::int64_t positions = report->model.max_position_embeddings;
  EXPECT_TRUE(Inspect(directory, {.context_tokens = positions}));
  for (const std::int64_t context : {positions + 1, INT64_MAX}) {
    const auto refused = Inspect(directory, {.context_tokens = context});
    ASSERT_FALSE(refused) << context;
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfRange);
    for (const std::int64_t number : {context, positions}) {
      EXPECT_NE(refused.error().message.find(fmt::to_string(number)), std::string::npos)
          << refused.error().message;
    }
  }
  for (const std::int64_t sequences : {INT64_MAX, INT64_MAX / 1000}) {
    const auto refused = Inspect(directory, {.num_sequences = sequences});
    ASSERT_FALSE(refused) << sequences;
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfRange);
    EXPECT_NE(refused.error().message.find(fmt::to_string(sequences)), std::string::npos);
  }
}

TEST(Inspect, TextNamesUnknownTensors) {
  const auto config = model::ReadConfig(kData + "/golden/k3-tiny");
  ASSERT_TRUE(config) << config.error().message;
  auto tensors = tools::ListFakeTensors(config->model, {});
  for (int i = 0; i < 20; ++i) {
    tensors.push_back({fmt::format("language_model.other.{}", i), DType::kU8, {1}, 0});
  }
  const tools::TempDir temp;
  const std::string json_text = *ReadTextFile(kData + "/golden/k3-tiny/config.json", 1 << 20);
  ASSERT_TRUE(tools::WriteFakeCheckpoint(temp.path(), json_text, tensors));
  const auto report = Inspect(temp.path(), {});
  ASSERT_TRUE(report) << report.error().message;
  const std::string text = ToText(*report);
  for (const char* expected : {"language_model.other.0 in", "20 unknown", "more unknown tensors"}) {
    EXPECT_NE(text.find(expected), std::string::npos) << expected << "\n" << text;
  }
}

TEST(Inspect, TextAndJsonShowTheSameNumbers) {
  const auto report = Inspect(kData + "/golden/k3-tiny", {.context_tokens = 4096});
  ASSERT_TRUE(report) << report.error().message;
  const json root = json::parse(ToJson(*report));
  EXPECT_EQ(root["total"]["bytes_per_token"], report->bytes_per_token());
  EXPECT_EQ(root["total"]["tensors"], report->num_expected);
  EXPECT_EQ(root["parts"].size(), static_cast<std::size_t>(model::kNumModelParts));
  EXPECT_EQ(root["files"]["tensors_skipped"], 2);
  EXPECT_EQ(root["memory_plan"]["context_tokens"], 4096);
  EXPECT_EQ(root["architecture"]["moe"]["num_experts"], 16);
  EXPECT_EQ(root["architecture"]["layer_groups"].size(), 3u);
  const std::string text = ToText(*report);
  for (const char* expected : {"kimi_k3", "1 KDA + dense: 0", "4 MLA + MoE: 3, 7, 11-12",
                               "2 skipped", "0 unknown", "4096 tokens"}) {
    EXPECT_NE(text.find(expected), std::string::npos) << expected << "\n" << text;
  }
}

TEST(Inspect, DrafterIsShownWithItsPlanAndCosts) {
  const std::string nano = MEGALITH_SOURCE_DIR "/models/k3-nano";
  const auto report = Inspect(nano, {});
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_TRUE(report->drafter);
  const DrafterReport& drafter = *report->drafter;
  EXPECT_EQ(drafter.source, nano + "/dspark");
  EXPECT_EQ(drafter.stored.num_tensors, 31u);
  constexpr std::uint64_t kTables = 2ull * 4096 * (192 + 16);
  EXPECT_EQ(drafter.stored.num_bytes - kTables, drafter.bytes_per_block);
  EXPECT_EQ(drafter.context_bytes_per_token, 2u * 2u * 128u * 2u);
  EXPECT_EQ(drafter.num_shards, 1u);
  EXPECT_GT(drafter.num_file_bytes, drafter.stored.num_bytes);
  // The model's own numbers do not change with a drafter beside it.
  const auto alone = Inspect(nano, {.drafter_beside = false, .drafts_from_text = false});
  ASSERT_TRUE(alone) << alone.error().message;
  EXPECT_FALSE(alone->drafter);
  EXPECT_FALSE(alone->draft_plan);
  EXPECT_EQ(report->stored().num_bytes, alone->stored().num_bytes);
  EXPECT_EQ(report->files->num_shards, alone->files->num_shards);
  EXPECT_EQ(report->files->num_file_bytes, alone->files->num_file_bytes);
  EXPECT_EQ(report->files->num_present, alone->files->num_present);
  EXPECT_EQ(report->plan.total_bytes, alone->plan.total_bytes);
  // Seven states more of 6 layers; a window of 2048 and seven drafts in the ring.
  ASSERT_TRUE(report->draft_plan);
  const DraftPlan& plan = *report->draft_plan;
  EXPECT_EQ(plan.num_drafts, 7);
  EXPECT_EQ(plan.weight_bytes, drafter.stored.num_bytes);
  EXPECT_EQ(plan.kda_bytes, 7u * 6 * (4 * 64 * 64 * 4 + 3 * 4 * 64 * 3 * 2));
  EXPECT_EQ(plan.context_bytes, (2048u + 7) * 1024);
  EXPECT_EQ(plan.total_bytes,
            report->plan.total_bytes + plan.weight_bytes + plan.kda_bytes + plan.context_bytes);
  InspectOptions few;
  few.max_drafts = 2;
  few.context_tokens = 100;
  few.num_sequences = 2;
  const auto shorter = Inspect(nano, few);
  ASSERT_TRUE(shorter) << shorter.error().message;
  EXPECT_EQ(shorter->draft_plan->kda_bytes, plan.kda_bytes / 7 * 2 * 2);
  EXPECT_EQ(shorter->draft_plan->context_bytes, 2u * 100 * 1024);
  // A drafter proposes no more than its block, a text as much as may be.
  InspectOptions many;
  many.max_drafts = 15;
  EXPECT_EQ(Inspect(nano, many)->draft_plan->kda_bytes, plan.kda_bytes / 7 * 15);
  many.drafter = nano + "/dspark";
  many.drafts_from_text = false;
  EXPECT_EQ(Inspect(nano, many)->draft_plan->kda_bytes, plan.kda_bytes / 7 * 8);
  EXPECT_EQ(Inspect(nano, many)->draft_plan->context_bytes, (2048u + 8) * 1024);
  many = {.max_drafts = 15, .drafter_beside = false};
  const auto by_text = Inspect(nano, many);
  ASSERT_TRUE(by_text) << by_text.error().message;
  EXPECT_FALSE(by_text->drafter);
  EXPECT_EQ(by_text->draft_plan->kda_bytes, plan.kda_bytes / 7 * 15);
  EXPECT_EQ(by_text->draft_plan->context_bytes, 0u);
  EXPECT_EQ(by_text->draft_plan->total_bytes,
            by_text->plan.total_bytes + by_text->draft_plan->kda_bytes);
  few.max_drafts = 0;
  const auto none = Inspect(nano, few);
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_TRUE(none->drafter);
  EXPECT_FALSE(none->draft_plan);

  const std::string text = ToText(*report);
  for (const char* expected :
       {"(speculators)", "2 window 2048, causal in the block: 0-1", "4 query and 2 key heads x 64",
        "what enters layers 4, 6, 8", "8 slots, 8 drafts, mask token 4093",
        "own, vanilla Markov of rank 16, confidence with Markov", "31 tensors", "4096 positions"}) {
    EXPECT_NE(text.find(expected), std::string::npos) << expected << "\n" << text;
  }
  const json root = json::parse(ToJson(*report));
  EXPECT_EQ(root["drafter"]["format"], "speculators");
  EXPECT_EQ(root["drafter"]["layers"].size(), 2u);
  EXPECT_EQ(root["drafter"]["layers"][0]["sliding_window"], 2048);
  EXPECT_EQ(root["drafter"]["aux_layers"], json({4, 6, 8}));
  EXPECT_EQ(root["drafter"]["stored_bytes"], drafter.stored.num_bytes);
  EXPECT_EQ(root["drafter"]["bytes_per_block"], drafter.bytes_per_block);
  EXPECT_EQ(root["drafter"]["max_drafts"], 8);
  EXPECT_EQ(root["drafter"]["markov_rank"], 16);
  EXPECT_EQ(root["drafter"]["markov_head_type"], "vanilla");
  EXPECT_EQ(root["drafting_plan"]["total_bytes"], plan.total_bytes);
  EXPECT_FALSE(json::parse(ToJson(*alone)).contains("drafter"));
}

// Spec (DSpark) sections 2.2 and 4.4.
TEST(Inspect, PublishedDrafterFromItsConfigHasTheCostsOfTheSpecification) {
  json config = json::parse(*ReadTextFile(kData + "/golden/k3-tiny-dspark/config.json", 1 << 20));
  config["aux_hidden_state_layer_ids"] = {24, 48, 72, 88, 92};
  config["mask_token_id"] = 163837;
  config["markov_rank"] = 256;
  config["draft_vocab_size"] = 163840;
  config["transformer_layer_config"].update(
      {{"hidden_size", 7168},
       {"vocab_size", 163840},
       {"intermediate_size", 14336},
       {"num_hidden_layers", 5},
       {"num_attention_heads", 96},
       {"num_key_value_heads", 16},
       {"head_dim", 64},
       {"layer_types", std::vector<std::string>(5, "sliding_attention")}});
  const tools::TempDir temp;
  temp.Write("config.json", config.dump());
  const auto report =
      Inspect(kData + "/kimi-k3-config.json", {.context_tokens = 1, .drafter = temp.path()});
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_TRUE(report->drafter);
  EXPECT_EQ(report->drafter->stored.num_parameters, 4'744'900'481u);
  EXPECT_EQ(report->drafter->stored.num_bytes, 9'489'800'962u);
  EXPECT_EQ(report->drafter->bytes_per_block / 10'000'000, 705u);
  EXPECT_EQ(report->drafter->context_bytes_per_token, 20'480u);
  EXPECT_EQ(report->drafter->num_shards, 0u);
  EXPECT_NE(ToText(*report).find("none read"), std::string::npos);
  EXPECT_NE(ToText(*report).find("4.745 G parameters"), std::string::npos);
}

TEST(Inspect, MarkovHeadsAreNamedAndTheirMatricesCounted) {
  json config = json::parse(*ReadTextFile(kData + "/golden/k3-tiny-dspark/config.json", 1 << 20));
  const auto inspect = [&] {
    const tools::TempDir temp;
    temp.Write("config.json", config.dump());
    return Inspect(kData + "/golden/k3-tiny/config.json", {.drafter = temp.path()});
  };
  const auto vanilla = inspect();
  ASSERT_TRUE(vanilla) << vanilla.error().message;
  for (const auto& [type, parameters] : std::vector<std::pair<std::string, std::uint64_t>>{
           {"gated", 16 * (128 + 16) + 16}, {"rnn", 48 * (2 * 16 + 128) + 48}}) {
    config["markov_head_type"] = type;
    const auto report = inspect();
    ASSERT_TRUE(report) << report.error().message;
    const DrafterReport& drafter = *report->drafter;
    EXPECT_EQ(drafter.stored.num_tensors, vanilla->drafter->stored.num_tensors + 2);
    EXPECT_EQ(drafter.stored.num_parameters, vanilla->drafter->stored.num_parameters + parameters);
    EXPECT_EQ(drafter.bytes_per_block, vanilla->drafter->bytes_per_block + 2 * parameters);
    EXPECT_EQ(report->draft_plan->weight_bytes, vanilla->draft_plan->weight_bytes + 2 * parameters);
    EXPECT_NE(ToText(*report).find(type + " Markov of rank 16"), std::string::npos);
    EXPECT_EQ(json::parse(ToJson(*report))["drafter"]["markov_head_type"], type);
  }
}

TEST(Inspect, UnreadableDrafterIsAnErrorOnlyWhenAskedFor) {
  const tools::TempDir temp;
  temp.CopyFrom(kData + "/golden/k3-unit");
  std::filesystem::create_directory(temp.File("dspark"));
  temp.Write("dspark/config.json", R"({"architectures": ["DFlashDraftModel"]})");
  const auto beside = Inspect(temp.path(), {});
  ASSERT_TRUE(beside) << beside.error().message;
  EXPECT_FALSE(beside->drafter);
  ASSERT_EQ(beside->warnings.size(), 1u);
  EXPECT_EQ(beside->warnings[0].find("drafter not shown: "), 0u);
  EXPECT_NE(beside->warnings[0].find("DFlashDraftModel"), std::string::npos);
  const auto asked = Inspect(temp.path(), {.drafter = temp.File("dspark")});
  ASSERT_FALSE(asked);
  EXPECT_EQ(asked.error().code, ErrorCode::kUnsupported);
  const auto absent = Inspect(temp.path(), {.drafter = temp.File("nowhere")});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace megalith::weights
