// How many drafts of k3-nano's drafter are accepted, against what its training code measured with
// the same prompts (models/k3-nano/README.md): a drafter that reads a wrong layer, sees the wrong
// part of a block or is off by one position still changes nothing but this.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/generate.h"

namespace megalith::engine {
namespace {

constexpr std::int64_t kNewTokens = 96;

struct Measured {
  std::int64_t tokens = 0;  ///< after the first one, which no round decided
  std::int64_t rounds = 0;
  double Length() const { return static_cast<double>(tokens) / static_cast<double>(rounds); }
};

TEST(Acceptance, IsWhatTheTrainingCodeMeasured) {
  EngineOptions load;
  load.drafter = MEGALITH_SOURCE_DIR "/models/k3-nano/dspark";
  load.max_drafts = 7;
  load.activation_dtype = DType::kF32;
  load.max_positions = 256;
  load.isa = kernels::Isa::kPortable;
  const auto engine = Engine::Load(MEGALITH_SOURCE_DIR "/models/k3-nano", load);
  ASSERT_TRUE(engine) << engine.error().message;

  GenerateOptions options;
  options.max_tokens = kNewTokens;
  options.stop_ids = {3841, 3842};  // [EOS], <|end_of_msg|>
  options.drafting.max_drafts = 7;
  options.drafting.always = 7;
  std::map<std::string, Measured> kinds;
  const nlohmann::json prompts =
      nlohmann::json::parse(std::ifstream(MEGALITH_TEST_DATA "/draft-prompts.json"));
  ASSERT_EQ(prompts.size(), 22U);
  Sequence sequence(**engine, 0);
  for (const nlohmann::json& prompt : prompts) {
    const auto ids = prompt["ids"].get<std::vector<std::int32_t>>();
    const auto result = Generate(sequence, ids, options, {});
    ASSERT_TRUE(result) << result.error().message;
    for (const std::string& kind : {prompt["kind"].get<std::string>(), std::string("all")}) {
      kinds[kind].tokens += static_cast<std::int64_t>(result->ids.size()) - 1;
      kinds[kind].rounds += result->drafting.rounds;
    }
  }
  const std::map<std::string, double> expected = {{"kjv text", 2.40},
                                                  {"austen text", 2.71},
                                                  {"chat held-out", 2.76},
                                                  {"chat seen", 3.64},
                                                  {"all", 2.73}};
  for (const auto& [kind, length] : expected) {
    EXPECT_NEAR(kinds[kind].Length(), length, 0.05 * length) << kind;
    RecordProperty("tokens per round, " + kind, std::to_string(kinds[kind].Length()));
  }
}

}  // namespace
}  // namespace megalith::engine
