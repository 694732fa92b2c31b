// Long inputs and long oracle runs.

#include <gtest/gtest.h>

#include "text/pretokenize_oracle.h"
#include "text/text_test_util.h"
#include "text/tokenizer.h"

namespace megalith::text {
namespace {

TEST(FindPieceEndSlow, ManyRandomTextsAgreeWithIcu) {
  TestRandom random(61);
  for (int round = 0; round < 150'000; ++round) {
    const std::string text = RandomText(random, 1 + random.Below(100));
    ASSERT_EQ(SplitByScanner(text), SplitByIcu(text)) << "seed 61, round " << round << ": " << text;
  }
}

TEST(FindPieceEndSlow, AllStringsOfFiveCharactersAgreeWithIcu) {
  const std::string_view alphabet[] = {"a",  "B",  "\u0301", "漢", "1",     " ",
                                       "\t", "\n", "'",      "S",  "\u02B0"};
  constexpr std::size_t kSize = std::size(alphabet);
  std::size_t num_strings = 1;
  for (int i = 0; i < 5; ++i) num_strings *= kSize;
  for (std::size_t code = 0; code < num_strings; ++code) {
    std::string text;
    for (std::size_t rest = code, i = 0; i < 5; ++i, rest /= kSize) text += alphabet[rest % kSize];
    ASSERT_EQ(SplitByScanner(text), SplitByIcu(text)) << text;
  }
}

// Four million characters of one class: what overflows the stack of a recursive splitter and never
// ends with a quadratic merge.
TEST(TokenizerSlow, FourMillionCharactersOfOneClass) {
  for (const std::string_view unit : {"q", "漢", "7", "\u0301", " ", "\n", "!", "\u01C5", "qQ"}) {
    std::string text;
    text.reserve(unit.size() * 4'000'000);
    for (int i = 0; i < 4'000'000; ++i) text += unit;
    const auto ids = ValueOf(ReleasedTokenizer().Encode(text));
    ASSERT_TRUE(ValueOf(ReleasedTokenizer().DecodeBytes(ids)) == text) << unit;
    const auto raw = ValueOf(ReleasedTokenizer().EncodeBytes(text));
    ASSERT_TRUE(ValueOf(ReleasedTokenizer().DecodeBytes(raw)) == text) << unit;
  }
}

}  // namespace
}  // namespace megalith::text
