#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/stream_decoder.h"
#include "text/text_test_util.h"

namespace megalith::text {
namespace {

using Ids = std::vector<TokenId>;

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

const nlohmann::json& Vectors() {
  static const auto vectors = nlohmann::json::parse(ReadTestFile(GoldenDir() / "vectors.json"));
  return vectors;
}

TEST(TokenizerGolden, OrdinaryVectors) {
  ASSERT_EQ(Vectors()["ordinary"].size(), 340u);
  for (const auto& vector : Vectors()["ordinary"]) {
    const std::string text = FromHex(vector["utf8_hex"]);
    ASSERT_EQ(text, vector["text"].get<std::string>());
    const Ids ids = ValueOf(ReleasedTokenizer().Encode(text));
    EXPECT_EQ(ids, vector["ids"].get<Ids>()) << vector["group"] << ": " << text;
    EXPECT_EQ(ValueOf(ReleasedTokenizer().DecodeBytes(ids)), text);
    EXPECT_EQ(ValueOf(DecodeText(ReleasedTokenizer(), ids)), text);
  }
}

TEST(TokenizerGolden, WithSpecialVectors) {
  ASSERT_EQ(Vectors()["with_special"].size(), 11u);
  for (const auto& vector : Vectors()["with_special"]) {
    const std::string text = vector["text"];
    EXPECT_EQ(ValueOf(ReleasedTokenizer().EncodeWithSpecials(text)), vector["ids"].get<Ids>())
        << text;
  }
}

TEST(TokenizerGolden, DecodeVectors) {
  ASSERT_EQ(Vectors()["decode"].size(), 24u);
  for (const auto& vector : Vectors()["decode"]) {
    EXPECT_EQ(ValueOf(ReleasedTokenizer().DecodeBytes(vector["ids"].get<Ids>())),
              FromHex(vector["bytes_hex"]));
  }
}

TEST(TokenizerGolden, SinglePieceVectors) {
  ASSERT_EQ(Vectors()["bpe_single_piece"].size(), 17u);
  for (const auto& vector : Vectors()["bpe_single_piece"]) {
    const std::string bytes = FromHex(vector["bytes_hex"]);
    EXPECT_EQ(ValueOf(ReleasedTokenizer().EncodeBytes(bytes)), vector["ids"].get<Ids>());
  }
}

TEST(TokenizerGolden, PublicPairs) {
  const auto file = nlohmann::json::parse(ReadTestFile(GoldenDir() / "public_pairs.json"));
  ASSERT_FALSE(file["pairs"].empty());
  for (const auto& pair : file["pairs"]) {
    EXPECT_EQ(ValueOf(ReleasedTokenizer().Encode(pair["text"].get<std::string>())),
              pair["ids"].get<Ids>());
  }
  const std::string text = file["hash_check"]["text"];
  EXPECT_EQ(ValueOf(ReleasedTokenizer().Encode(text)).size(), file["hash_check"]["n_ids"]);
}

TEST(TokenizerGolden, SpecialTokenTable) {
  const std::pair<TokenId, const char*> table[] = {{163584, "[BOS]"},
                                                   {163585, "[EOS]"},
                                                   {163586, "<|end_of_msg|>"},
                                                   {163587, "<|open|>"},
                                                   {163588, "<|close|>"},
                                                   {163589, "<|sep|>"},
                                                   {163590, "[start_header_id]"},
                                                   {163591, "[end_header_id]"},
                                                   {163592, "<|reserved_token_163592|>"},
                                                   {163593, "[EOT]"},
                                                   {163602, "<|media_begin|>"},
                                                   {163603, "<|media_content|>"},
                                                   {163604, "<|media_end|>"},
                                                   {163605, "<|media_pad|>"},
                                                   {163649, "<osagent_mode>"},
                                                   {163837, "<|reserved_token_163837|>"},
                                                   {163838, "[UNK]"},
                                                   {163839, "[PAD]"}};
  for (const auto& [id, name] : table) {
    EXPECT_EQ(ReleasedTokenizer().TokenBytes(id), name);
    EXPECT_EQ(ReleasedTokenizer().special_tokens().Find(name), id);
  }
  const ControlTokens control = ValueOf(ReleasedTokenizer().FindControlTokens());
  EXPECT_EQ(control.open, 163587);
  EXPECT_EQ(control.close, 163588);
  EXPECT_EQ(control.sep, 163589);
  EXPECT_EQ(control.end_of_msg, 163586);
  EXPECT_EQ(control.eos, 163585);
}

TEST(TokenizerGolden, NanoPromptsHaveTheirIds) {
  const auto golden = nlohmann::json::parse(ReadTestFile(NanoDir() / "golden.json"));
  int num_texts = 0;
  for (const auto& prompt : golden["prompts"]) {
    if (prompt["kind"] != "text") continue;
    ++num_texts;
    const std::string text = prompt["text"];
    EXPECT_EQ(ValueOf(NanoTokenizer().EncodeWithSpecials("[BOS]" + text)),
              prompt["ids"].get<Ids>());
    EXPECT_EQ(ValueOf(DecodeText(NanoTokenizer(), prompt["tokens"].get<Ids>(), SpecialText::kShow)),
              prompt["decoded"].get<std::string>());
  }
  EXPECT_EQ(num_texts, 5);
}

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
