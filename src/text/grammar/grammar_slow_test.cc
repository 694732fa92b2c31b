// The released vocabulary of 163,840 tokens: masks are right, and what they cost. The times are
// printed for docs/structured-output.md; nothing depends on them.

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar_test_util.h"

namespace megalith::text::grammar {
namespace {

// Of this thread's time on a core, so that other work on the machine does not count.
double Microseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

struct Document {
  std::string_view name;
  std::string schema;
  std::string text;
};

std::string LongText() {
  TestRandom random(3);
  std::string text;
  AppendJsonEscaped(RandomText(random, 400), text);
  return text;
}

std::vector<Document> Documents() {
  const std::string record = R"({"id": 17, "name": "Ada \"the\" first", "tags": ["a", "bc"], )"
                             R"("address": {"street": "Example road 5", "city": "Zürich"}, )"
                             R"("scores": [0.5, 12, -3.25e-7], "ok": true, "note": null})";
  const std::string typed = R"({"type":"object","properties":{"id":{"type":"integer","minimum":0},
      "name":{"type":"string","maxLength":100},"tags":{"type":"array","items":{"type":"string"}},
      "address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}},
      "required":["street","city"],"additionalProperties":false},
      "scores":{"type":"array","items":{"type":"number"}},"ok":{"type":"boolean"},
      "note":{"type":["string","null"]}},"required":["id","name"],"additionalProperties":false})";
  std::string pretty = "{\n";
  for (int i = 0; i < 30; ++i) {
    pretty += fmt::format("  \"key {}\": [\n    {},\n    \"{}\"\n  ],\n", i, i * i, "value");
  }
  pretty += "  \"end\": {}\n}";
  std::string nested;
  for (int i = 0; i < 40; ++i) nested += i % 2 == 0 ? "{\"a\": " : "[1, ";
  nested += "0";
  for (int i = 40; i-- > 0;) nested += i % 2 == 0 ? "}" : "]";
  return {{"json_object, a record", R"({"type":"object"})", record},
          {"json_object, indented", R"({"type":"object"})", pretty},
          {"json_object, 40 levels deep", R"({"type":"object"})", nested},
          {"json_object, a long string", R"({"type":"object"})", "{\"t\": \"" + LongText() + "\"}"},
          {"schema, a record", typed, record},
          {"schema, maxLength 2000",
           R"({"type":"object","properties":{"t":{"type":"string","maxLength":2000}}})",
           "{\"t\": \"" + LongText() + "\"}"},
          {"schema, pattern \\w", R"({"type":"string","pattern":"^(\\w+ )*$"})",
           "\"the quick brown fox jumps over the lazy dog and runs \""},
          {"schema, format date-time", R"({"type":"string","format":"date-time"})",
           "\"2024-02-29T23:59:59.123Z\""}};
}

TEST(GrammarOnTheReleasedVocabulary, MasksAlongDocumentsAreRightAndCostLittle) {
  const double begin = Microseconds();
  const auto trie = ReleasedTrie();
  std::printf("trie: %.0f ms (tokenizer included), %zu nodes\n", (Microseconds() - begin) / 1000,
              trie->tree().nodes.size());
  const Tokenizer& tokenizer = ReleasedTokenizer();
  for (const Document& document : Documents()) {
    const double compile_begin = Microseconds();
    const auto grammar = Compile(JsonFormat(document.schema), trie);
    const double compile_us = Microseconds() - compile_begin;
    GrammarMatcher matcher = Matcher(grammar);
    std::vector<TokenId> ids = ValueOf(tokenizer.Encode(document.text));
    for (const TokenId id : Ids(tokenizer, kEndOfAnswer)) ids.push_back(id);
    std::vector<double> times;
    std::vector<std::pair<std::size_t, TokenMask>> masks;
    TokenMask mask(trie->num_mask_words());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::fill(mask.begin(), mask.end(), ~std::uint64_t{0});
      const double mask_begin = Microseconds();
      ASSERT_TRUE(matcher.Restrict(mask));
      times.push_back(Microseconds() - mask_begin);
      const auto bit = mask[static_cast<std::size_t>(ids[i]) / 64] >> (ids[i] % 64) & 1u;
      ASSERT_EQ(bit, 1u) << document.name << " token " << i;
      if (i % 16 == 5) masks.emplace_back(i, mask);
      ASSERT_TRUE(matcher.Push(ids[i]));
      matcher.Commit();
    }
    ASSERT_TRUE(matcher.ended());
    // Apart from the measurement, as it makes later masks cheaper.
    GrammarMatcher pushed = Matcher(grammar);
    std::size_t num_pushed = 0;
    for (const auto& [at, expected] : masks) {
      for (; num_pushed < at; ++num_pushed) ASSERT_TRUE(pushed.Push(ids[num_pushed]));
      ASSERT_EQ(Difference(expected, MaskByPushing(pushed, tokenizer), tokenizer), "");
    }
    double sum = 0;
    for (const double time : times) sum += time;
    std::sort(times.begin(), times.end());
    std::printf(
        "%-28s compile %6.0f us; %3zu masks: mean %6.1f, median %6.1f, 90%% %6.1f, "
        "worst %7.1f us\n",
        std::string(document.name).c_str(), compile_us, times.size(),
        sum / static_cast<double>(times.size()), times[times.size() / 2],
        times[times.size() * 9 / 10], times.back());
  }
}

TEST(GrammarOnTheReleasedVocabulary, MasksOfExtremeSchemasAreBoundedAndNeverEmpty) {
  std::string schema = R"({"anyOf":[)";
  for (int i = 0; i < 250; ++i) {
    // Alternatives that are out of step with each other: few sets of states come twice.
    schema += fmt::format(R"({{"type":"string","pattern":"^(?:.{{{}}}[^\\u{{{:x}}}])*$"}},)", i % 7,
                          0x3b1 + i);
  }
  schema += R"({"type":"null"}]})";
  const auto grammar = Compile(JsonFormat(schema), ReleasedTrie());
  GrammarMatcher matcher = Matcher(grammar);
  const Tokenizer& tokenizer = ReleasedTokenizer();
  std::size_t num_left_out_in_all = 0;
  for (const std::string_view text : {"\"", "a", "b", "c"}) {
    const double begin = Microseconds();
    const TokenMask mask = MaskOf(matcher);
    std::printf("mask of 250 alternatives: %.0f us\n", Microseconds() - begin);
    const TokenMask pushed = MaskByPushing(matcher, tokenizer);
    std::size_t num_left_out = 0;
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      const auto idx = static_cast<std::size_t>(id) / 64;
      const bool in_mask = (mask[idx] >> (id % 64) & 1u) != 0;
      const bool can_push = (pushed[idx] >> (id % 64) & 1u) != 0;
      ASSERT_LE(in_mask, can_push) << id;
      if (in_mask == can_push) continue;
      ++num_left_out;
      EXPECT_GT(tokenizer.TokenBytes(id).size(), 1u) << id;
    }
    std::printf("left out: %zu tokens\n", num_left_out);
    num_left_out_in_all += num_left_out;
    ASSERT_TRUE(matcher.Push(*tokenizer.vocabulary().Find(text)));
  }
  // Else this schema is not extreme enough to test anything.
  EXPECT_GT(num_left_out_in_all, 0u);
}

}  // namespace
}  // namespace megalith::text::grammar
