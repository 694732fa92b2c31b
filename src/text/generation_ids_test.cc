#include "text/generation_ids.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

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

TEST(FindStopIds, GenerationConfigWithoutMeaningIsRefused) {
  for (const char* text :
       {"[]", "7", "null", R"({"eos_token_id":null})", R"({"eos_token_id":[]})"}) {
    const auto ids = FindStopIds(text, "", ReleasedTokenizer());
    ASSERT_FALSE(ids) << text;
    EXPECT_EQ(ids.error().code, ErrorCode::kBadConfig) << ids.error().message;
    EXPECT_NE(ids.error().message.find("generation_config.json"), std::string::npos);
  }
}

TEST(FindStopIds, ErrorsOfFilesNameTheirPath) {
  const auto dir = std::filesystem::path(testing::TempDir()) /
                   fmt::format("megalith_generation_ids_{}", ::getpid());
  std::filesystem::create_directories(dir);
  const auto path = dir / "generation_config.json";
  EXPECT_TRUE(FindStopIds(dir, ReleasedTokenizer()));
  for (const char* text : {"", "{", "[]", R"({"eos_token_id":999999})"}) {
    std::ofstream(path) << text;
    const auto ids = FindStopIds(dir, ReleasedTokenizer());
    ASSERT_FALSE(ids) << text;
    EXPECT_NE(ids.error().message.find(path.string()), std::string::npos) << ids.error().message;
  }
  // What is there but cannot be opened does not count as absent.
  std::filesystem::remove(path);
  std::filesystem::create_symlink(path, path);
  EXPECT_FALSE(FindStopIds(dir, ReleasedTokenizer()));
  std::filesystem::remove_all(dir);
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
