// The tokenizer against recorded ids: the released vocabulary and the embedded model.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/stream_decoder.h"
#include "text/text_test_util.h"
#include "text/tokenizer.h"

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

}  // namespace
}  // namespace megalith::text
