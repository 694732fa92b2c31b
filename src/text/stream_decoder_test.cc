#include "text/stream_decoder.h"

#include <gtest/gtest.h>

#include "text/text_test_util.h"

namespace megalith::text {
namespace {

using Ids = std::vector<TokenId>;

// Rank = byte, so ids spell bytes one by one.
const Tokenizer& ByteTokenizer() {
  static const Tokenizer tokenizer = ValueOf(Tokenizer::FromFiles(
      MakeRankFile(), R"({"added_tokens_decoder":{"256":{"content":"<|open|>"}}})"));
  return tokenizer;
}

Ids BytesAsIds(std::string_view bytes) {
  Ids ids;
  for (const char c : bytes) ids.push_back(static_cast<std::uint8_t>(c));
  return ids;
}

std::string Stream(const Ids& ids, SpecialText special) {
  StreamDecoder decoder(ByteTokenizer(), special);
  std::string joined;
  for (const TokenId id : ids) {
    const std::string part = ValueOf(decoder.Push(id));
    EXPECT_FALSE(FindInvalidUtf8(part));
    joined += part;
  }
  const std::string part = decoder.Finish();
  EXPECT_FALSE(FindInvalidUtf8(part));
  return joined + part;
}

TEST(StreamDecoder, CharacterOverSeveralTokensComesWhole) {
  const std::string family = "\U0001F468\u200D\U0001F469\u200D\U0001F467";
  StreamDecoder decoder(ByteTokenizer());
  std::vector<std::string> parts;
  for (const TokenId id : BytesAsIds(family)) {
    const std::string part = ValueOf(decoder.Push(id));
    if (!part.empty()) parts.push_back(part);
  }
  EXPECT_EQ(parts, (std::vector<std::string>{"\U0001F468", "\u200D", "\U0001F469", "\u200D",
                                             "\U0001F467"}));
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(StreamDecoder, CharacterCutByTheEndBecomesOneReplacement) {
  StreamDecoder decoder(ByteTokenizer());
  EXPECT_EQ(ValueOf(decoder.Push(0xF0)), "");
  EXPECT_EQ(ValueOf(decoder.Push(0x9F)), "");
  EXPECT_EQ(decoder.Finish(), "\uFFFD");
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(StreamDecoder, SpecialTokenEndsACutCharacter) {
  const Ids ids = {'a', 0xF0, 0x9F, 256, 0x98, 0x80, 'b'};
  EXPECT_EQ(Stream(ids, SpecialText::kSkip), "a\uFFFD\uFFFD\uFFFDb");
  EXPECT_EQ(Stream(ids, SpecialText::kShow), "a\uFFFD<|open|>\uFFFD\uFFFDb");
}

TEST(StreamDecoder, JoinedStreamEqualsWholeDecode) {
  TestRandom random(23);
  for (int round = 0; round < 500; ++round) {
    Ids ids = BytesAsIds(RandomBytes(random, random.Below(60)));
    for (std::size_t i = random.Below(3); i > 0; --i) {
      ids.insert(ids.begin() + static_cast<std::ptrdiff_t>(random.Below(ids.size() + 1)), 256);
    }
    for (const SpecialText special : {SpecialText::kSkip, SpecialText::kShow}) {
      const std::string whole = ValueOf(DecodeText(ByteTokenizer(), ids, special));
      ASSERT_EQ(Stream(ids, special), whole) << "seed 23, round " << round;
    }
  }
}

TEST(StreamDecoder, BytesOfCharacterCutAcrossNanoTokensJoin) {
  const std::string text = "é 漢字 \U0001F600 ok";
  StreamDecoder decoder(NanoTokenizer());
  std::string joined;
  for (const TokenId id : ValueOf(NanoTokenizer().Encode(text)))
    joined += ValueOf(decoder.Push(id));
  EXPECT_EQ(joined + decoder.Finish(), text);
}

}  // namespace
}  // namespace megalith::text
