#include "synth/config_edit.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "model/config.h"
#include "model/tensors.h"
#include "synth/presets.h"

namespace megalith::synth {
namespace {

using Json = nlohmann::json;

model::Model Read(const std::string& json) {
  const auto config = model::ParseConfig(json);
  EXPECT_TRUE(config.has_value()) << (config ? "" : config.error().message);
  return config ? config->model : model::Model();
}

std::string PresetText(std::string_view name) {
  const auto config = PresetConfig(name);
  EXPECT_TRUE(config.has_value()) << (config ? "" : config.error().message);
  return config.value_or("");
}

std::string Kinds(const model::Model& model) {
  std::string kinds;
  for (const model::Layer& layer : model.layers) {
    kinds += layer.mixer == model::Mixer::kMla ? 'M' : 'K';
  }
  return kinds;
}

std::string ErrorOf(const ConfigEdits& edits) {
  const auto edited = EditConfig(PresetText("k3-tiny"), "tiny", edits);
  EXPECT_FALSE(edited.has_value());
  return edited ? "" : edited.error().message;
}

TEST(PresetConfig, EveryPresetIsReadWithoutWarnings) {
  for (const Preset& preset : Presets()) {
    const auto config = model::ParseConfig(PresetText(preset.name));
    ASSERT_TRUE(config.has_value()) << preset.name << ": " << config.error().message;
    EXPECT_TRUE(config->warnings.empty()) << preset.name << ": " << config->warnings.front();
    EXPECT_TRUE(config->model.declares_mxfp4_experts);
  }
}

TEST(PresetConfig, K3IsThePublishedModel) {
  const auto published = ReadTextFile(MEGALITH_TEST_DATA "/kimi-k3-config.json", 1 << 20);
  ASSERT_TRUE(published.has_value());
  Json want = Json::parse(*published);
  for (const char* key :
       {"vision_config", "ignore_index", "image_placeholder", "media_placeholder_token_id"}) {
    want.erase(key);
  }
  Json have = Json::parse(PresetText("k3"));
  const char* const kLists = "/text_config/quantization_config/ignore";
  want[Json::json_pointer(kLists)] = have[Json::json_pointer(kLists)];
  EXPECT_EQ(have, want);
}

TEST(PresetConfig, SliceHasTheShapesOfTheFullModel) {
  const model::Model slice = Read(PresetText("k3-slice"));
  EXPECT_EQ(Kinds(slice), "KKKMK");
  EXPECT_EQ(slice.hidden_size, 7168);
  EXPECT_EQ(slice.vocab_size, 16384);
  EXPECT_EQ(slice.intermediate_size, 8448);
  EXPECT_EQ(slice.attn_res_block_size, 2);
  EXPECT_EQ(slice.kda.num_heads, 96);
  EXPECT_EQ(slice.kda.head_dim, 128);
  EXPECT_EQ(slice.mla.q_lora_rank, 1536);
  EXPECT_EQ(slice.mla.kv_lora_rank, 512);
  EXPECT_EQ(slice.mla.qk_rope_head_dim, 64);
  EXPECT_EQ(slice.moe.num_experts, 64);
  EXPECT_EQ(slice.moe.num_experts_per_token, 16);
  EXPECT_EQ(slice.moe.moe_intermediate_size, 3072);
  EXPECT_EQ(slice.moe.routed_expert_hidden_size, 3584);
  EXPECT_EQ(slice.layers[0].feed_forward, model::FeedForward::kDense);
  EXPECT_EQ(slice.layers[1].feed_forward, model::FeedForward::kMoe);
  const auto size =
      model::Total(model::CountTensors(model::MakeTensorRules(slice), true)).num_bytes;
  EXPECT_NEAR(static_cast<double>(size), 10.8e9, 0.05e9);
}

TEST(PresetConfig, UnknownNameListsTheKnownOnes) {
  const auto config = PresetConfig("k4");
  ASSERT_FALSE(config.has_value());
  EXPECT_EQ(config.error().code, ErrorCode::kUsage);
  EXPECT_NE(config.error().message.find("k3-slice"), std::string::npos);
}

TEST(EditConfig, EveryNumberArrivesWhereItsKeysSay) {
  const std::string before = PresetText("k3-tiny");
  for (const EditableNumber& number : EditableNumbers()) {
    ConfigEdits edits;
    // Legal for each of them: widths of 32, ranks, counts.
    edits.*number.member = number.option == "experts-per-token" ? 5 : 32;
    if (number.option == "vocab") edits.*number.member = 512;
    const auto edited = EditConfig(before, "tiny", edits);
    ASSERT_TRUE(edited.has_value()) << number.option << ": " << edited.error().message;
    const Json text = Json::parse(*edited)["text_config"];
    std::string keys(number.keys);
    while (!keys.empty()) {
      const std::size_t end = std::min(keys.find(", "), keys.size());
      std::string key = "/" + keys.substr(0, end);
      if (const auto dot = key.find('.'); dot != std::string::npos) key[dot] = '/';
      EXPECT_EQ(text[Json::json_pointer(key)], *(edits.*number.member)) << key;
      keys.erase(0, end + 2);
    }
  }
}

TEST(EditConfig, LayersFollowThePatternOfKimiK3) {
  ConfigEdits edits;
  edits.num_layers = 10;
  EXPECT_EQ(Kinds(Read(*EditConfig(PresetText("k3-tiny"), "tiny", edits))), "KKKMKKKMKM");
  edits.num_layers = 1;
  EXPECT_EQ(Kinds(Read(*EditConfig(PresetText("k3-tiny"), "tiny", edits))), "M");
  edits.num_layers.reset();
  edits.layer_kinds = "KM";
  EXPECT_EQ(Kinds(Read(*EditConfig(PresetText("k3-tiny"), "tiny", edits))), "KM");
}

TEST(EditConfig, SpecialIdsMoveWithTheVocabulary) {
  ConfigEdits edits;
  edits.vocab_size = 300;
  const model::Model model = Read(*EditConfig(PresetText("k3-tiny"), "tiny", edits));
  EXPECT_EQ(model.bos_token_id, 44);
  EXPECT_EQ(model.eos_token_ids, std::vector<std::int64_t>{46});
  EXPECT_EQ(model.pad_token_id, 299);
  edits.vocab_size = 3;
  EXPECT_EQ(Read(*EditConfig(PresetText("k3-tiny"), "tiny", edits)).bos_token_id, 0);
}

TEST(EditConfig, BareConfigsAreEditedToo) {
  const Json nested = Json::parse(PresetText("k3-tiny"));
  ConfigEdits edits;
  edits.hidden_size = 96;
  edits.vocab_size = 500;
  const model::Model model = Read(*EditConfig(nested["text_config"].dump(), "bare", edits));
  EXPECT_EQ(model.hidden_size, 96);
  EXPECT_EQ(model.pad_token_id, 499);
}

TEST(EditConfig, AssignmentsReachAnyKey) {
  ConfigEdits edits;
  edits.assignments = {"linear_attn_config.use_full_rank_gate=false", "attn_res_block_size=null",
                       "hidden_act=\"silu\""};
  const model::Model model = Read(*EditConfig(PresetText("k3-tiny"), "tiny", edits));
  EXPECT_FALSE(model.kda.use_full_rank_gate);
  EXPECT_EQ(model.attn_res_block_size, 0);
  EXPECT_EQ(model.activation.kind, model::HiddenAct::kSilu);
}

TEST(EditConfig, WhatCannotBeIsNamed) {
  ConfigEdits edits;
  edits.hidden_size = 0;
  EXPECT_EQ(ErrorOf(edits), "--hidden (hidden_size): at least 1 expected, 0 given");
  edits = {};
  edits.hidden_size = 100;
  EXPECT_NE(ErrorOf(edits).find("multiple of 32"), std::string::npos);
  edits = {};
  edits.num_experts = 2;
  EXPECT_NE(ErrorOf(edits).find("at most num_experts (2) expected, 4 found"), std::string::npos);
  edits = {};
  edits.num_layers = 3;
  edits.layer_kinds = "KKM";
  EXPECT_NE(ErrorOf(edits).find("--layer-kinds"), std::string::npos);
  edits = {};
  edits.layer_kinds = "KKX";
  EXPECT_NE(ErrorOf(edits).find("layer 2, 'X' given"), std::string::npos);
  edits.layer_kinds = "";
  EXPECT_NE(ErrorOf(edits).find("at least one letter"), std::string::npos);
  edits = {};
  edits.num_layers = std::int64_t{1} << 40;
  EXPECT_NE(ErrorOf(edits).find("--layers: at most"), std::string::npos);
  for (const char* assignment :
       {"hidden_size", "=3", "hidden_size=", "hidden_size=abc", "no_such.key=1", "hidden_sise=96",
        "linear_attn_config.heads=3", "rms_norm_eps=-1"}) {
    edits = {};
    edits.assignments = {assignment};
    EXPECT_NE(ErrorOf(edits), "") << assignment;
  }
}

TEST(EditConfig, TextThatIsNoConfigIsRefused) {
  for (const char* text : {"", "{", "[]", "{}", "3", "{\"text_config\": 3}",
                           "{\"text_config\": {\"linear_attn_config\": []}}"}) {
    EXPECT_FALSE(EditConfig(text, "text", {}).has_value()) << text;
  }
}

}  // namespace
}  // namespace megalith::synth
