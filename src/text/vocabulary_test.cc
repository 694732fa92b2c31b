#include "text/vocabulary.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "text/text_test_util.h"

namespace megalith::text {
namespace {

std::string ParseError(std::string_view file) {
  const auto vocabulary = Vocabulary::Parse(file, "ranks");
  if (vocabulary) return "no error";
  EXPECT_EQ(vocabulary.error().code, ErrorCode::kBadFile);
  return vocabulary.error().message;
}

TEST(VocabularyParse, LinesInAnyOrderAreTheSameVocabulary) {
  std::string file = MakeRankFile({"ab", "abc"});
  const auto last = file.find_last_of('\n', file.size() - 2) + 1;
  file = file.substr(last) + file.substr(0, last - 1);  // last line first, no final newline
  const Vocabulary vocabulary = ValueOf(Vocabulary::Parse(file, "ranks"));
  EXPECT_EQ(vocabulary.num_tokens(), 258);
  EXPECT_EQ(vocabulary.max_token_bytes(), 3u);
  EXPECT_EQ(vocabulary.Bytes(257), "abc");
  EXPECT_EQ(vocabulary.Find("ab"), 256);
  EXPECT_EQ(vocabulary.Find("ac"), std::nullopt);
  EXPECT_EQ(vocabulary.Find(""), std::nullopt);
}

TEST(VocabularyParse, BadBase64NamesItsLine) {
  for (const char* bad :
       {"YQ", "YQ=", "Y===", "====", "=YWE", "Y=Q=", "YR==", "YW!h", "YQ==\r", "YQ== "}) {
    const std::string error = ParseError(MakeRankFile() + bad + " 256\n");
    EXPECT_NE(error.find("ranks line 257"), std::string::npos) << bad << ": " << error;
  }
}

TEST(VocabularyParse, BadLinesAreRefused) {
  const std::string file = MakeRankFile();
  for (const char* bad :
       {"YWE=", " 256", "YWE= ", "YWE=  256", "YWE= x", "YWE= 256x", "YWE= -1", "YWE= 0256",
        "YWE= 256\r", "YWE=\t256", "", "YWE= 99999999999999999999"}) {
    const std::string error = ParseError(file + bad + "\n");
    EXPECT_NE(error.find("ranks line 257"), std::string::npos) << bad << ": " << error;
  }
}

TEST(VocabularyParse, WindowsLineEndsAreNamed) {
  std::string file = MakeRankFile();
  file.insert(file.find('\n'), "\r");
  const std::string error = ParseError(file);
  EXPECT_NE(error.find("line 1: the line ends with a carriage return"), std::string::npos) << error;
}

TEST(VocabularyParse, RepeatedRankNamesBothLines) {
  const std::string error = ParseError(MakeRankFile() + "YWE= 7\n");
  EXPECT_NE(error.find("line 257"), std::string::npos) << error;
  EXPECT_NE(error.find("line 8"), std::string::npos) << error;
}

TEST(VocabularyParse, RepeatedBytesNameBothLines) {
  const std::string error = ParseError(MakeRankFile({"ab", "cd", "ab"}));
  EXPECT_NE(error.find("line 259"), std::string::npos) << error;
  EXPECT_NE(error.find("line 257"), std::string::npos) << error;
}

TEST(VocabularyParse, GapInRanksIsRefused) {
  const std::string error = ParseError(MakeRankFile() + "YWE= 257\n");
  EXPECT_NE(error.find("line 257"), std::string::npos) << error;
  EXPECT_NE(error.find("gap"), std::string::npos) << error;
}

TEST(VocabularyParse, MissingSingleByteIsNamed) {
  std::string file = MakeRankFile();
  const std::string line = EncodeBase64("\x41") + " 65\n";
  file.replace(file.find("\n" + line) + 1, line.size(), EncodeBase64("zz") + " 65\n");
  EXPECT_NE(ParseError(file).find("0x41"), std::string::npos);
  EXPECT_NE(ParseError("").find("0x00"), std::string::npos);
}

TEST(VocabularyParse, SizesAreBounded) {
  EXPECT_NE(ParseError(MakeRankFile() + std::string(5000, 'A')).find("line 257"),
            std::string::npos);
  EXPECT_NE(
      ParseError(MakeRankFile({std::string(Vocabulary::kMaxTokenBytes + 1, 'a')})).find("bytes"),
      std::string::npos);
  EXPECT_NE(ParseError(std::string(Vocabulary::kMaxFileBytes + 1, '\n')).find("at most"),
            std::string::npos);
}

// The definition, step by step: the adjacent pair with the lowest rank, leftmost on ties.
std::vector<TokenId> EncodeByDefinition(const Vocabulary& vocabulary, std::string_view piece) {
  if (const auto whole = vocabulary.Find(piece)) return {*whole};
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    std::size_t best = parts.size();
    TokenId best_rank = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto rank = vocabulary.Find(parts[i] + parts[i + 1]);
      if (rank && (best == parts.size() || *rank < best_rank)) {
        best = i;
        best_rank = *rank;
      }
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<TokenId> ids;
  for (const std::string& part : parts) ids.push_back(*vocabulary.Find(part));
  return ids;
}

TEST(EncodePiece, RandomVocabulariesFollowTheDefinition) {
  TestRandom random(3);
  for (int round = 0; round < 60; ++round) {
    // Few letters and many tokens make ties and chains of merges likely.
    std::vector<std::string> more;
    for (int i = 0; i < 40; ++i) {
      std::string token;
      for (std::size_t n = 2 + random.Below(5); n > 0; --n) {
        token.push_back(static_cast<char>('a' + random.Below(3)));
      }
      if (std::find(more.begin(), more.end(), token) == more.end()) more.push_back(token);
    }
    const Vocabulary vocabulary = ValueOf(Vocabulary::Parse(MakeRankFile(more), "ranks"));
    for (const std::size_t length : {1u, 2u, 3u, 7u, 20u, 63u, 64u, 65u, 66u, 130u, 300u}) {
      std::string piece;
      while (piece.size() < length) piece.push_back(static_cast<char>('a' + random.Below(3)));
      std::vector<TokenId> ids;
      vocabulary.EncodePiece(piece, ids);
      ASSERT_EQ(ids, EncodeByDefinition(vocabulary, piece)) << "seed 3, round " << round << piece;
    }
  }
}

TEST(EncodePiece, ReleasedVocabularyFollowsTheDefinition) {
  const Vocabulary& vocabulary = ReleasedTokenizer().vocabulary();
  TestRandom random(5);
  for (int round = 0; round < 200; ++round) {
    const std::string piece = round % 2 == 0 ? RandomBytes(random, 1 + random.Below(150))
                                             : std::string(1 + random.Below(300), 'q');
    std::vector<TokenId> ids;
    vocabulary.EncodePiece(piece, ids);
    ASSERT_EQ(ids, EncodeByDefinition(vocabulary, piece)) << "seed 5, round " << round;
  }
}

}  // namespace
}  // namespace megalith::text
