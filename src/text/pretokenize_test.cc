#include "text/pretokenize.h"

#include <gtest/gtest.h>

#include "text/pretokenize_oracle.h"
#include "text/text_test_util.h"

namespace megalith::text {
namespace {

using Pieces = std::vector<std::string>;

TEST(FindPieceEnd, WordsSplitAtUpperCase) {
  EXPECT_EQ(SplitByScanner("HelloWorld ABC aB"), (Pieces{"Hello", "World", " ABC", " a", "B"}));
}

TEST(FindPieceEnd, ContractionsStayWithTheirWord) {
  EXPECT_EQ(SplitByScanner("don't we'Ve a'lL x'\u017F y'z"),
            (Pieces{"don't", " we'Ve", " a'lL", " x'\u017F", " y", "'z"}));
}

TEST(FindPieceEnd, HanRunsStandAlone) {
  EXPECT_EQ(SplitByScanner("A漢字B〇一2"), (Pieces{"A", "漢字", "B", "〇一", "2"}));
  EXPECT_EQ(SplitByScanner("2〇一"), (Pieces{"2〇", "一"}));
}

TEST(FindPieceEnd, DigitsGoInThrees) {
  EXPECT_EQ(SplitByScanner("1234567"), (Pieces{"123", "456", "7"}));
}

TEST(FindPieceEnd, WhiteSpaceLeavesItsLastCharacterToTheWord) {
  EXPECT_EQ(SplitByScanner("          x"), (Pieces{"         ", " x"}));
  EXPECT_EQ(SplitByScanner("a  "), (Pieces{"a", "  "}));
  EXPECT_EQ(SplitByScanner("\r\n\r\n  y"), (Pieces{"\r\n\r\n", " ", " y"}));
  EXPECT_EQ(SplitByScanner(" \n \n  1"), (Pieces{" \n \n", " ", " ", "1"}));
}

TEST(FindPieceEnd, MarksBelongToBothCases) {
  EXPECT_EQ(SplitByScanner("\u0301"), (Pieces{"\u0301"}));
  EXPECT_EQ(SplitByScanner("\u0301AB"), (Pieces{"\u0301", "AB"}));
  EXPECT_EQ(SplitByScanner("AB\u0301CD"), (Pieces{"AB\u0301", "CD"}));
}

// Strings on which a nearly right rule gives other pieces.
TEST(FindPieceEnd, AwkwardStringsAgreeWithIcu) {
  for (const char* text : {"}\n///x",
                           "値it's",
                           "A漢B",
                           "〇一2",
                           "          x",
                           "\r\n\r\n  y",
                           "don\u2019T",
                           "\U0001F44D\U0001F3FD",
                           "\u0301",
                           "x\u0301'Sa",
                           "\u01C5\u01C5a",
                           "!\u0301A",
                           "\t\u0301\u0301",
                           "\u3000\u3000a",
                           "a\u2028\u2029b",
                           "'s's",
                           "''s",
                           " 's",
                           "A'S",
                           "\u30A2\u3005\u4E00",
                           "\u00AAb\u00AAB",
                           "\u3007\u3007",
                           "\u2E80\u2E80!",
                           "!\u2E80",
                           " \u2E80",
                           "\U00016FF0a",
                           "a\U00016FF0",
                           "!\U00016FF0",
                           "\u0085a",
                           "\x1F\x1F x",
                           "'\u017F",
                           "b'\u017Fc",
                           "a'RE've"}) {
    EXPECT_EQ(SplitByScanner(text), SplitByIcu(text)) << text;
  }
}

TEST(FindPieceEnd, AllShortStringsOfOneCharacterPerClassAgreeWithIcu) {
  const std::string_view alphabet[] = {"a",  "B",  "\u02B0", "\u0301", "漢", "〇",     "1",     " ",
                                       "\t", "\n", "\r",     "'",      "s",  "\u2E80", "\u01C5"};
  constexpr std::size_t kSize = std::size(alphabet);
  for (std::size_t code = 0; code < kSize * kSize * kSize * kSize; ++code) {
    std::string text;
    for (std::size_t rest = code, i = 0; i < 4; ++i, rest /= kSize) text += alphabet[rest % kSize];
    ASSERT_EQ(SplitByScanner(text), SplitByIcu(text)) << text;
  }
}

TEST(FindPieceEnd, RandomTextAgreesWithIcu) {
  TestRandom random(7);
  for (int round = 0; round < 5000; ++round) {
    const std::string text = RandomText(random, 1 + random.Below(60));
    ASSERT_EQ(SplitByScanner(text), SplitByIcu(text)) << "seed 7, round " << round << ": " << text;
  }
}

// The reference cutter as the released wrapper describes it, on one character per byte.
Pieces CutByDefinition(const std::string& text) {
  Pieces parts;
  for (std::size_t slice = 0; slice < text.size(); slice += 400'000) {
    const std::string s = text.substr(slice, 400'000);
    std::size_t run = 0;
    std::size_t start = 0;
    bool run_is_space = std::isspace(static_cast<unsigned char>(s[0])) != 0;
    for (std::size_t i = 0; i < s.size(); ++i) {
      const bool is_space = std::isspace(static_cast<unsigned char>(s[i])) != 0;
      if (is_space != run_is_space) {
        run = 1;
        run_is_space = is_space;
      } else if (++run > 25'000) {
        parts.push_back(s.substr(start, i - start));
        start = i;
        run = 1;
      }
    }
    parts.push_back(s.substr(start));
  }
  return parts;
}

Pieces Cut(std::string_view text) {
  Pieces parts;
  LongTextCutter cutter(text);
  for (auto part = cutter.Next(); !part.empty(); part = cutter.Next()) parts.emplace_back(part);
  return parts;
}

TEST(LongTextCutter, CutsWhereTheReferenceCuts) {
  EXPECT_EQ(Cut(""), Pieces{});
  EXPECT_EQ(Cut("abc"), Pieces{"abc"});
  TestRandom random(11);
  for (int round = 0; round < 20; ++round) {
    std::string text;
    while (text.size() < 900'000) {
      const std::size_t lengths[] = {1, 7, 24'999, 25'000, 25'001, 50'000, 50'001, 60'000};
      text.append(random.Pick(lengths), random.Below(2) == 0 ? 'q' : ' ');
    }
    const Pieces want = CutByDefinition(text);
    const Pieces have = Cut(text);
    ASSERT_EQ(have.size(), want.size()) << round;
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_TRUE(have[i] == want[i]) << i;
  }
}

TEST(LongTextCutter, CountsCharactersNotBytes) {
  std::string text;
  for (int i = 0; i < 25'001; ++i) text += "漢";
  const Pieces parts = Cut(text);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].size(), 75'000u);
  EXPECT_EQ(parts[1], "漢");
}

// U+001C..U+001F are white space to Python's isspace, which the reference cuts by.
TEST(LongTextCutter, WhiteSpaceIsPythons) {
  const std::string run(13'000, ' ');
  EXPECT_EQ(Cut(run + "\x1F" + run).size(), 2u);
  EXPECT_EQ(Cut(run + "x" + run).size(), 1u);
}

}  // namespace
}  // namespace megalith::text
