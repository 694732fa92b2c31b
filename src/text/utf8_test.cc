#include "text/utf8.h"

#include <gtest/gtest.h>
#include <unicode/unistr.h>

#include "text/text_test_util.h"

namespace megalith::text {
namespace {

std::string RepairByIcu(std::string_view bytes) {
  std::string out;
  icu::UnicodeString::fromUTF8(icu::StringPiece(bytes.data(), static_cast<int>(bytes.size())))
      .toUTF8String(out);
  return out;
}

TEST(Utf8Repair, EachMaximalInvalidPartBecomesOneReplacement) {
  EXPECT_EQ(RepairUtf8("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(RepairUtf8("\xC0\x80"), "\uFFFD\uFFFD");                      // overlong
  EXPECT_EQ(RepairUtf8("\x80"), "\uFFFD");                                // lone continuation
  EXPECT_EQ(RepairUtf8("\xE0\x80\x80"), "\uFFFD\uFFFD\uFFFD");            // overlong
  EXPECT_EQ(RepairUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // surrogate
  EXPECT_EQ(RepairUtf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // above U+10FFFF
  EXPECT_EQ(RepairUtf8("\xF0\x9F\x98!"), "\uFFFD!");                      // cut inside
  EXPECT_EQ(RepairUtf8("\xF0\x9F\x98"), "\uFFFD");                        // cut at the end
  EXPECT_EQ(RepairUtf8("\xF4\x8F\xBF\xBF"), "\U0010FFFF");
}

TEST(Utf8Repair, RandomBytesAgreeWithIcuForAnyChunking) {
  TestRandom random(20250101);
  for (int round = 0; round < 3000; ++round) {
    const std::string bytes = RandomBytes(random, random.Below(40));
    const std::string want = RepairByIcu(bytes);
    ASSERT_EQ(RepairUtf8(bytes), want) << round;
    ASSERT_FALSE(FindInvalidUtf8(want));
    Utf8Repair repair;
    std::string out;
    for (std::size_t begin = 0; begin < bytes.size();) {
      const std::size_t length = std::min(1 + random.Below(5), bytes.size() - begin);
      repair.Push(std::string_view(bytes).substr(begin, length), out);
      ASSERT_FALSE(FindInvalidUtf8(out));
      begin += length;
    }
    repair.Flush(out);
    ASSERT_EQ(out, want) << round;
    ASSERT_FALSE(repair.holding());
  }
}

TEST(FindInvalidUtf8, OffsetOfFirstBadByte) {
  EXPECT_EQ(FindInvalidUtf8("abc"), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("ab\xFF"), 2u);
  EXPECT_EQ(FindInvalidUtf8("\xE2\x82\xAC\xE2\x82"), 3u);
}

TEST(AppendUtf8, EveryScalarValueReadsBack) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(c, text);
    const Utf8Step step = DecodeUtf8(text, 0);
    ASSERT_TRUE(step.valid);
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(step.length_bytes, text.size());
  }
}

}  // namespace
}  // namespace megalith::text
