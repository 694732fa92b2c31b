#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include "text/text_test_util.h"

namespace megalith::text {
namespace {

struct Filtered {
  std::string text;
  std::optional<std::size_t> matched;
  friend bool operator==(const Filtered&, const Filtered&) = default;
};

Filtered Whole(const std::vector<std::string>& stops, std::string_view text) {
  StopStringFilter filter = ValueOf(StopStringFilter::Create(stops));
  std::string out;
  filter.Push(text, out);
  filter.Flush(out);
  return {out, filter.matched()};
}

TEST(StopStringFilter, CutsAtTheFirstOccurrence) {
  EXPECT_EQ(Whole({"END"}, "one END two END"), (Filtered{"one ", 0}));
  EXPECT_EQ(Whole({"END"}, "one EN"), (Filtered{"one EN", std::nullopt}));
  EXPECT_EQ(Whole({}, "one"), (Filtered{"one", std::nullopt}));
  EXPECT_EQ(Whole({"aab"}, "aaab"), (Filtered{"a", 0}));
}

TEST(StopStringFilter, FirstCompleteStopWinsAndLongestAtOnePlace) {
  EXPECT_EQ(Whole({"abcd", "bc"}, "xabcd"), (Filtered{"xa", 1}));
  EXPECT_EQ(Whole({"bc", "abc"}, "xabcd"), (Filtered{"x", 1}));
}

TEST(StopStringFilter, HoldsBackOnlyWhatCouldBecomeAStop) {
  StopStringFilter filter = ValueOf(StopStringFilter::Create({"<stop>"}));
  std::string out;
  filter.Push("text <st", out);
  EXPECT_EQ(out, "text ");
  filter.Push("ring", out);
  EXPECT_EQ(out, "text <string");
  filter.Push("<stop>tail", out);
  EXPECT_EQ(out, "text <string");
  EXPECT_TRUE(filter.stopped());
  filter.Push("more", out);
  filter.Flush(out);
  EXPECT_EQ(out, "text <string");
}

TEST(StopStringFilter, EmptyStopStringIsRefused) {
  const auto filter = StopStringFilter::Create({"a", ""});
  ASSERT_FALSE(filter);
  EXPECT_EQ(filter.error().code, ErrorCode::kUsage);
  EXPECT_NE(filter.error().message.find("stop[1]"), std::string::npos);
}

// Straight from the definition.
Filtered ByDefinition(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < stops.size(); ++i) {
      const bool here = std::string_view(text).substr(0, end).ends_with(stops[i]);
      if (here && (!best || stops[i].size() > stops[*best].size())) best = i;
    }
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

TEST(StopStringFilter, AnyChunkingGivesTheSameAndNothingIsTakenBack) {
  TestRandom random(29);
  for (int round = 0; round < 5000; ++round) {
    const auto random_word = [&](std::size_t max) {
      std::string word;
      for (std::size_t n = 1 + random.Below(max); n > 0; --n) {
        word.push_back(static_cast<char>('a' + random.Below(2)));
      }
      return word;
    };
    std::vector<std::string> stops;
    std::size_t longest = 0;
    for (std::size_t n = 1 + random.Below(3); n > 0; --n) {
      stops.push_back(random_word(7) + (random.Below(2) == 0 ? "c" : ""));
      longest = std::max(longest, stops.back().size());
    }
    const std::string text = random_word(12) + "c" + random_word(12);
    const Filtered want = ByDefinition(stops, text);
    StopStringFilter filter = ValueOf(StopStringFilter::Create(stops));
    std::string out;
    std::size_t num_pushed = 0;
    while (num_pushed < text.size()) {
      const std::size_t length = std::min(1 + random.Below(4), text.size() - num_pushed);
      filter.Push(std::string_view(text).substr(num_pushed, length), out);
      num_pushed += length;
      ASSERT_TRUE(want.text.starts_with(out)) << "seed 29, round " << round;
      if (filter.stopped()) break;
      ASSERT_GE(out.size() + longest, num_pushed + 1);
    }
    filter.Flush(out);
    ASSERT_EQ((Filtered{out, filter.matched()}), want) << "seed 29, round " << round;
  }
}

}  // namespace
}  // namespace megalith::text
