#include "text/generation_ids.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "text/text_test_util.h"

namespace megalith::text {
namespace {

using Ids = std::vector<TokenId>;

TEST(FindStopIds, TokenizerAndConfigIdsAreJoined) {
  const Tokenizer& tokenizer = ReleasedTokenizer();
  EXPECT_EQ(ValueOf(FindStopIds("", "", tokenizer)), (Ids{163585, 163586}));
  EXPECT_EQ(ValueOf(FindStopIds("{}", R"({"eos_token_id":163586})", tokenizer)),
            (Ids{163585, 163586}));
  EXPECT_EQ(
      ValueOf(FindStopIds(R"({"eos_token_id":[163593,163586]})",
                          R"({"text_config":{"eos_token_id":7},"eos_token_id":null})", tokenizer)),
      (Ids{7, 163585, 163586, 163593}));
  EXPECT_EQ(ValueOf(FindStopIds(NanoDir(), NanoTokenizer())), (Ids{3841, 3842}));
}

TEST(FindStopIds, BadIdsNameFileAndKey) {
  for (const char* value : {"163840", "-1", "\"x\"", "1.5", "[1,true]", "{}", "1e3"}) {
    const auto ids = FindStopIds(
        "", fmt::format(R"({{"text_config":{{"eos_token_id":{}}}}})", value), ReleasedTokenizer());
    ASSERT_FALSE(ids) << value;
    EXPECT_EQ(ids.error().code, ErrorCode::kBadConfig);
    EXPECT_NE(ids.error().message.find("text_config.eos_token_id"), std::string::npos);
  }
  EXPECT_EQ(FindStopIds("{", "", ReleasedTokenizer()).error().code, ErrorCode::kBadFile);
}

TEST(FindNeverGeneratedIds, AllSpecialsButFive) {
  const Ids ids = FindNeverGeneratedIds(ReleasedTokenizer());
  EXPECT_EQ(ids.size(), 251u);
  for (TokenId id = 163585; id <= 163589; ++id) {
    EXPECT_EQ(std::count(ids.begin(), ids.end(), id), 0) << id;
  }
  EXPECT_EQ(ids.front(), 163584);
  EXPECT_EQ(ids.back(), 163839);
}

}  // namespace
}  // namespace megalith::text
