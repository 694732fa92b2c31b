#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include "text/stream_decoder.h"
#include "text/text_test_util.h"

namespace megalith::text {
namespace {

using Ids = std::vector<TokenId>;

TEST(TokenizerEncode, MarkersTypedByAUserStayOrdinary) {
  for (TokenId id = 163584; id < 163840; ++id) {
    const std::string name(ReleasedTokenizer().TokenBytes(id));
    for (const TokenId part : ValueOf(ReleasedTokenizer().Encode("hi" + name + " " + name))) {
      ASSERT_FALSE(ReleasedTokenizer().IsSpecial(part)) << name;
    }
  }
}

TEST(TokenizerEncode, InvalidUtf8IsRefusedWithItsOffset) {
  const auto ids = ReleasedTokenizer().Encode("caf\xE9!");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, ErrorCode::kUsage);
  EXPECT_NE(ids.error().message.find("byte 3"), std::string::npos) << ids.error().message;
  EXPECT_FALSE(ReleasedTokenizer().EncodeWithSpecials("[BOS]\xFF"));
}

TEST(TokenizerEncode, RawBytesAreLossless) {
  TestRandom random(13);
  for (int round = 0; round < 300; ++round) {
    const std::string bytes = RandomBytes(random, random.Below(200));
    ASSERT_EQ(ValueOf(NanoTokenizer().DecodeBytes(ValueOf(NanoTokenizer().EncodeBytes(bytes)))),
              bytes);
  }
}

TEST(TokenizerEncode, RandomTextDecodesToItself) {
  TestRandom random(17);
  for (int round = 0; round < 500; ++round) {
    const std::string text = RandomText(random, random.Below(120));
    for (const Tokenizer* tokenizer : {&NanoTokenizer(), &ReleasedTokenizer()}) {
      const Ids ids = ValueOf(tokenizer->Encode(text));
      ASSERT_EQ(ValueOf(tokenizer->DecodeBytes(ids)), text) << "seed 17, round " << round;
      ASSERT_EQ(ValueOf(DecodeText(*tokenizer, ids)), text);
    }
  }
}

TEST(TokenizerEncode, SpecialsTakeTheLongestName) {
  const std::string config =
      R"({"added_tokens_decoder":{"256":{"content":"<a>"},"257":{"content":"<a><b>"},)"
      R"("258":{"content":"<b>"}}})";
  const Tokenizer tokenizer = ValueOf(Tokenizer::FromFiles(MakeRankFile(), config));
  EXPECT_EQ(ValueOf(tokenizer.EncodeWithSpecials("<a><b><b><a>x<")),
            (Ids{257, 258, 256, 'x', '<'}));
}

// Runs far beyond what recursive or quadratic splitters survive; ids must not depend on it.
TEST(TokenizerEncode, VeryLongRunsOfOneClass) {
  const std::string_view units[] = {"q", "漢", "7", "\u0301", " ", "\n", "!", "\u01C5"};
  for (const std::string_view unit : units) {
    std::string text;
    for (int i = 0; i < 150'000; ++i) text += unit;
    const Ids ids = ValueOf(ReleasedTokenizer().Encode(text));
    ASSERT_EQ(ValueOf(ReleasedTokenizer().DecodeBytes(ids)), text);
    // Runs of one character give the same ids in every part of 25,000.
    ASSERT_EQ(ids.size() % 6, 0u);
    const std::size_t part = ids.size() / 6;
    for (std::size_t i = part; i < ids.size(); ++i) ASSERT_EQ(ids[i], ids[i - part]);
  }
}

TEST(TokenizerDecode, EveryIdDecodesAndOthersAreErrors) {
  const Tokenizer& tokenizer = ReleasedTokenizer();
  ASSERT_EQ(tokenizer.vocab_size(), 163840);
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    ASSERT_FALSE(ValueOf(tokenizer.DecodeBytes({{id}})).empty());
  }
  for (const TokenId id : {-1, 163840, 2147483647, -2147483647 - 1}) {
    const auto bytes = tokenizer.DecodeBytes({{id}});
    ASSERT_FALSE(bytes);
    EXPECT_EQ(bytes.error().code, ErrorCode::kOutOfRange);
    EXPECT_FALSE(StreamDecoder(tokenizer).Push(id));
  }
}

TEST(TokenizerCheckIds, IdsOutsideTheVocabularyAreNamed) {
  const Tokenizer& tokenizer = ReleasedTokenizer();
  EXPECT_EQ(ValueOf(tokenizer.CheckIds({{0, 163839}})), (Ids{0, 163839}));
  for (const std::int64_t id : {std::int64_t{163840}, std::int64_t{-1}, std::int64_t{1} << 31,
                                (std::int64_t{1} << 32) + 5}) {
    const auto ids = tokenizer.CheckIds({{7, id}});
    ASSERT_FALSE(ids) << id;
    EXPECT_EQ(ids.error().code, ErrorCode::kOutOfRange);
    EXPECT_NE(ids.error().message.find(std::to_string(id)), std::string::npos);
  }
}

}  // namespace
}  // namespace megalith::text
