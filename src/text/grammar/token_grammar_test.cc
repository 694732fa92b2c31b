// Masks, markers and the way through a whole reply.

#include "text/grammar/token_grammar.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar_test_util.h"

namespace megalith::text::grammar {
namespace {

constexpr std::string_view kPerson = R"({"type":"object","properties":{
    "name":{"type":"string","maxLength":20},"age":{"type":"integer","minimum":0},
    "tags":{"type":"array","items":{"type":"string","pattern":"^[a-z]+$"}}},
    "required":["name"],"additionalProperties":false})";

ReplyFormat ToolFormat(ReplyFormat::Calls calls) {
  ReplyFormat format;
  format.calls = calls;
  format.tools.push_back(Tool("get_weather", R"({"type":"object","properties":{
      "city":{"type":"string"},"days":{"type":"integer","maximum":9},"unit":{"enum":["c","f"]}},
      "required":["city"],"additionalProperties":false})"));
  format.tools.push_back(Tool("stop \"now\" & here", ""));
  return format;
}

constexpr std::string_view kCall =
    "<|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|>"
    "<|open|>argument key=\"city\" type=\"string\"<|sep|>New \"York\"\n<|close|>argument<|sep|>"
    "<|open|>argument key=\"days\" type=\"number\"<|sep|>3<|close|>argument<|sep|>"
    "<|close|>call<|sep|>"
    "<|open|>call tool=\"stop &quot;now&quot; &amp; here\" index=\"2\"<|sep|><|close|>call<|sep|>"
    "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";

bool TakesReply(const std::shared_ptr<const TokenGrammar>& grammar, Channel start,
                std::string_view text) {
  GrammarMatcher matcher = Matcher(grammar, start);
  const std::vector<TokenId> ids = Ids(grammar->trie().tokenizer(), text);
  return PushAll(matcher, ids) == ids.size() && matcher.ended();
}

TEST(GrammarMatcher, MaskAgreesWithPushingEveryToken) {
  ReplyFormat formats[] = {JsonFormat("true"), JsonFormat(kPerson),
                           ToolFormat(ReplyFormat::Calls::kRequired)};
  formats[1].calls = ReplyFormat::Calls::kAllowed;
  formats[1].tools.push_back(Tool("any", "{}"));
  TestRandom random(1);
  for (const ReplyFormat& format : formats) {
    const auto grammar = Compile(format);
    for (const Channel start : {Channel::kThink, Channel::kResponse}) {
      GrammarMatcher matcher = Matcher(grammar, start);
      for (int step = 0; step < 150 && !matcher.ended(); ++step) {
        const TokenMask mask = MaskOf(matcher);
        ASSERT_EQ(Difference(mask, MaskByPushing(matcher, NanoTokenizer()), NanoTokenizer()), "");
        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < NanoTokenizer().vocab_size(); ++id) {
          if ((mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1u) != 0)
            allowed.push_back(id);
        }
        ASSERT_FALSE(allowed.empty());
        // Special tokens often, to come through all parts.
        ASSERT_TRUE(matcher.Push(random.Below(5) == 0 ? allowed.back() : random.Pick(allowed)));
      }
    }
  }
}

TEST(GrammarMatcher, ReasoningIsFreeAndTheAnswerIsNot) {
  const auto grammar = Compile(JsonFormat(R"({"type":"object","properties":{"n":{"type":"integer"}},
      "required":["n"],"additionalProperties":false})"));
  const std::string answer = std::string("{\"n\": 5}") + std::string(kEndOfAnswer);
  EXPECT_TRUE(
      TakesReply(grammar, Channel::kThink,
                 "Not JSON } at all\n<|close|>think<|sep|><|open|>response<|sep|>" + answer));
  EXPECT_TRUE(TakesReply(grammar, Channel::kThink,
                         "<|close|>think<|sep|><|open|>response<|sep|>" + answer));
  // Shortened forms that models are seen to write.
  EXPECT_TRUE(
      TakesReply(grammar, Channel::kThink, "x<|close|>think<|open|>response<|sep|>" + answer));
  EXPECT_TRUE(TakesReply(grammar, Channel::kThink, "x<|open|>response<|sep|>" + answer));
  EXPECT_TRUE(TakesReply(grammar, Channel::kResponse, answer));
  for (const std::string_view wrong :
       {"x<|end_of_msg|>", "x[EOS]", "x<|sep|>", "x<|close|>message<|sep|>",
        "x<|close|>think<|sep|><|close|>message<|sep|>",
        "x<|close|>think<|sep|><|open|>tools<|sep|>", "x<|close|>think<|sep|>text",
        "x<|close|>think<|sep|><|open|>response<|sep|>text",
        "x<|close|>think<|sep|><|open|>response<|sep|><|close|>"}) {
    EXPECT_FALSE(TakesReply(grammar, Channel::kThink, wrong)) << wrong;
  }
}

TEST(GrammarMatcher, OnlyClosingTokensFollowACompleteAnswer) {
  const auto grammar = Compile(JsonFormat(R"({"type":"object"})"));
  GrammarMatcher matcher = Matcher(grammar);
  const ControlTokens control = ValueOf(NanoTokenizer().FindControlTokens());
  ASSERT_EQ(PushAll(matcher, ValueOf(NanoTokenizer().EncodeBytes("{\"a\":1}"))), 7u);
  TokenMask expected(NanoTrie()->num_mask_words());
  SetToken(expected, control.close);
  EXPECT_EQ(Difference(MaskOf(matcher), expected, NanoTokenizer()), "");
  const auto rest = Ids(NanoTokenizer(), "<|close|>response<|sep|><|close|>message<|sep|>");
  ASSERT_EQ(PushAll(matcher, rest), rest.size());
  EXPECT_FALSE(matcher.ended());
  expected.assign(expected.size(), 0);
  SetToken(expected, control.end_of_msg);
  SetToken(expected, control.eos);
  EXPECT_EQ(Difference(MaskOf(matcher), expected, NanoTokenizer()), "");
  ASSERT_TRUE(matcher.Push(control.eos));
  EXPECT_TRUE(matcher.ended());
  EXPECT_EQ(Difference(MaskOf(matcher), expected, NanoTokenizer()), "");
}

TEST(GrammarMatcher, FreeReasoningRestrictsNothingUntilItEnds) {
  ReplyFormat format = JsonFormat("true");
  format.free_reasoning = true;
  const auto grammar = Compile(format);
  GrammarMatcher matcher = Matcher(grammar, Channel::kThink);
  TokenMask mask(NanoTrie()->num_mask_words(), ~std::uint64_t{0});
  const TokenMask all = mask;
  for (const std::string_view text : {"words", "<|sep|>", "[BOS]", "é"}) {
    EXPECT_FALSE(matcher.Restrict(mask));
    EXPECT_EQ(mask, all);
    const auto ids = Ids(NanoTokenizer(), text);
    EXPECT_EQ(PushAll(matcher, ids), ids.size()) << text;
  }
  const auto ids = Ids(NanoTokenizer(), "<|close|>think<|sep|><|open|>response<|sep|>");
  ASSERT_EQ(PushAll(matcher, ids), ids.size());
  EXPECT_TRUE(matcher.Restrict(mask));
  EXPECT_NE(mask, all);
  EXPECT_FALSE(matcher.Push(Ids(NanoTokenizer(), "[BOS]")[0]));
  EXPECT_TRUE(TakesReply(grammar, Channel::kThink, "thoughts<|end_of_msg|>"));
}

TEST(GrammarMatcher, RefusedTokensChangeNothing) {
  GrammarMatcher matcher = Matcher(Compile(JsonFormat(kPerson)));
  ASSERT_EQ(PushAll(matcher, ValueOf(NanoTokenizer().EncodeBytes("{\"na"))), 4u);
  const TokenMask before = MaskOf(matcher);
  EXPECT_FALSE(matcher.Push(*NanoTokenizer().vocabulary().Find("x")));
  EXPECT_FALSE(matcher.Push(-1));
  EXPECT_FALSE(matcher.Push(NanoTokenizer().vocab_size()));
  EXPECT_FALSE(matcher.Push(NanoTokenizer().vocab_size() - 1));
  EXPECT_EQ(MaskOf(matcher), before);
}

TEST(GrammarMatcher, TokensBeyondTheVocabularyMayNotCome) {
  GrammarMatcher matcher = Matcher(Compile(JsonFormat("true")));
  TokenMask mask(NanoTrie()->num_mask_words() + 3, ~std::uint64_t{0});
  EXPECT_TRUE(matcher.Restrict(mask));
  for (std::size_t i = NanoTrie()->num_mask_words(); i < mask.size(); ++i) EXPECT_EQ(mask[i], 0u);
  // Bits that are clear already stay so.
  TokenMask none(NanoTrie()->num_mask_words());
  EXPECT_TRUE(matcher.Restrict(none));
  EXPECT_EQ(none, TokenMask(none.size()));
}

TEST(GrammarMatcher, PoppedTokensLeaveNoTrace) {
  TestRandom random(7);
  ReplyFormat format = JsonFormat("true");
  format.calls = ReplyFormat::Calls::kAllowed;
  format.tools.push_back(Tool("f", R"({"type":"object","properties":{"a":{}}})"));
  const auto grammar = Compile(format);
  for (int round = 0; round < 20; ++round) {
    GrammarMatcher matcher = Matcher(grammar, Channel::kThink);
    const auto prefix = RandomIds(NanoTokenizer(),
                                  "<|close|>think<|sep|><|open|>response<|sep|>{\"k\": [1", random);
    ASSERT_EQ(PushAll(matcher, prefix), prefix.size());
    for (int step = 0; step < 30 && !matcher.ended(); ++step) {
      std::vector<TokenMask> masks;
      std::vector<TokenId> pushed;
      while (pushed.size() < GrammarMatcher::kMaxPop) {
        masks.push_back(MaskOf(matcher));
        TokenId id = 0;
        do {
          id = static_cast<TokenId>(
              random.Below(static_cast<std::size_t>(NanoTokenizer().vocab_size())));
        } while (!matcher.Push(id));
        pushed.push_back(id);
      }
      const std::size_t count = 1 + random.Below(pushed.size());
      matcher.Pop(count);
      EXPECT_EQ(MaskOf(matcher), masks[masks.size() - count]);
      if (random.Below(2) == 0) matcher.Commit();
    }
  }
}

TEST(GrammarMatcher, LongRepliesKeepMemoryBoundedAndPopWorks) {
  const auto grammar = Compile(JsonFormat(R"({"type":"array","minItems":100000})"));
  GrammarMatcher matcher = Matcher(grammar);
  ASSERT_TRUE(matcher.Push(*NanoTokenizer().vocabulary().Find("[")));
  const auto item = ValueOf(NanoTokenizer().EncodeBytes("1,"));
  // Every count is a state of its own; the table of states is begun anew on the way.
  for (int i = 0; i < 60'000; ++i) {
    ASSERT_EQ(PushAll(matcher, item), item.size());
    if (i % 1000 == 0) {
      const TokenMask mask = MaskOf(matcher);
      ASSERT_EQ(PushAll(matcher, item), item.size());
      matcher.Pop(item.size());
      ASSERT_EQ(MaskOf(matcher), mask);
    }
  }
}

TEST(GrammarMatcher, StartsOnlyWhereAPromptLeavesTheModelToWrite) {
  const auto grammar = Compile(JsonFormat("true"));
  for (const Channel channel : {Channel::kNone, Channel::kTools, Channel::kCall}) {
    EXPECT_FALSE(GrammarMatcher::Create(grammar, channel));
  }
}

TEST(GrammarMatcher, RequiredCallComesInTheFormatAndTheParserReadsIt) {
  const auto grammar = Compile(ToolFormat(ReplyFormat::Calls::kRequired));
  for (const std::string_view start :
       {"<|close|>response<|sep|>", "I will look.<|close|>response<|sep|>"}) {
    const std::string text = std::string(start) + std::string(kCall);
    EXPECT_TRUE(TakesReply(grammar, Channel::kResponse, text));
    ChatParserOptions options;
    options.start = Channel::kResponse;
    const ChatReply reply =
        ValueOf(ParseReply(NanoTokenizer(), Ids(NanoTokenizer(), text), options));
    ASSERT_EQ(reply.tool_calls.size(), 2u);
    EXPECT_EQ(reply.tool_calls[0].arguments, R"({"city":"New \"York\"\n","days":3})");
    EXPECT_EQ(reply.tool_calls[1].name, "stop \"now\" & here");
  }
  EXPECT_TRUE(TakesReply(grammar, Channel::kThink, "hm<|close|>think<|sep|>" + std::string(kCall)));
  EXPECT_FALSE(TakesReply(grammar, Channel::kResponse, "No." + std::string(kEndOfAnswer)));
}

TEST(GrammarMatcher, CallsAreCheckedPartByPart) {
  const auto grammar = Compile(ToolFormat(ReplyFormat::Calls::kRequired));
  const std::string before =
      "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"get_weather\" "
      "index=\"1\"<|sep|>";
  const std::string city =
      "<|open|>argument key=\"city\" type=\"string\"<|sep|>Rome<|close|>argument<|sep|>";
  const std::string after =
      "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";
  const auto argument = [](std::string_view key, std::string_view type, std::string_view value) {
    return fmt::format("<|open|>argument key=\"{}\" type=\"{}\"<|sep|>{}<|close|>argument<|sep|>",
                       key, type, value);
  };
  const auto takes = [&](const std::string& arguments) {
    return TakesReply(grammar, Channel::kResponse, before + arguments + after);
  };
  EXPECT_TRUE(takes(city));
  EXPECT_TRUE(takes(city + argument("days", "number", "-3")));
  EXPECT_TRUE(takes(city + argument("unit", "string", "f")));
  EXPECT_FALSE(takes(""));
  EXPECT_FALSE(takes(argument("days", "number", "3") + city));
  EXPECT_FALSE(takes(city + city));
  EXPECT_FALSE(takes(city + argument("days", "number", "10")));
  EXPECT_FALSE(takes(city + argument("days", "number", "1.5")));
  EXPECT_FALSE(takes(city + argument("days", "string", "3")));
  EXPECT_FALSE(takes(city + argument("days", "integer", "3")));
  EXPECT_FALSE(takes(city + argument("unit", "string", "k")));
  EXPECT_FALSE(takes(city + argument("unit", "string", "\"f\"")));
  EXPECT_FALSE(takes(city + argument("more", "string", "x")));
  const auto replaced = [&](std::string_view from, std::string_view to) {
    std::string text = before + city + after;
    text.replace(text.find(from), from.size(), to);
    return TakesReply(grammar, Channel::kResponse, text);
  };
  EXPECT_FALSE(replaced("get_weather", "get_time"));
  EXPECT_FALSE(replaced("index=\"1\"", "index=\"2\""));
  EXPECT_FALSE(replaced("index=\"1\"", "index=\"01\""));
  EXPECT_FALSE(replaced("<|close|>tools<|sep|>", ""));
}

TEST(GrammarMatcher, IndexCountsTheCalls) {
  const auto grammar = Compile(ToolFormat(ReplyFormat::Calls::kRequired));
  std::string text = "<|close|>response<|sep|><|open|>tools<|sep|>";
  for (std::uint32_t i = 1; i <= kMaxToolCalls; ++i) {
    text += fmt::format(
        "<|open|>call tool=\"stop &quot;now&quot; &amp; here\" "
        "index=\"{}\"<|sep|><|close|>call<|sep|>",
        i);
  }
  EXPECT_TRUE(TakesReply(grammar, Channel::kResponse,
                         text + "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"));
  GrammarMatcher matcher = Matcher(grammar);
  const auto ids = Ids(NanoTokenizer(), text);
  ASSERT_EQ(PushAll(matcher, ids), ids.size());
  EXPECT_FALSE(matcher.Push(ValueOf(NanoTokenizer().FindControlTokens()).open));
}

TEST(GrammarMatcher, ForbiddenCallsCannotBegin) {
  ReplyFormat format;
  format.calls = ReplyFormat::Calls::kForbidden;
  const auto grammar = Compile(format);
  EXPECT_TRUE(TakesReply(
      grammar, Channel::kThink,
      "x<|close|>think<|sep|><|open|>response<|sep|>Any text" + std::string(kEndOfAnswer)));
  EXPECT_FALSE(TakesReply(grammar, Channel::kThink, "x<|close|>think<|sep|>" + std::string(kCall)));
  EXPECT_FALSE(
      TakesReply(grammar, Channel::kResponse, "x<|close|>response<|sep|>" + std::string(kCall)));
  EXPECT_FALSE(TakesReply(grammar, Channel::kResponse, "x" + std::string(kCall)));
}

TEST(GrammarMatcher, OneNamedCallAndNothingElse) {
  ReplyFormat format = ToolFormat(ReplyFormat::Calls::kOnly);
  format.tools.resize(1);
  const auto grammar = Compile(format);
  const std::string call =
      "<|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|>"
      "<|open|>argument key=\"city\" type=\"string\"<|sep|>Rome<|close|>argument<|sep|>"
      "<|close|>call<|sep|>";
  const std::string end = "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";
  EXPECT_TRUE(TakesReply(grammar, Channel::kResponse, "<|close|>response<|sep|>" + call + end));
  EXPECT_FALSE(
      TakesReply(grammar, Channel::kResponse, "text<|close|>response<|sep|>" + call + end));
  std::string second = call.substr(call.find("<|open|>call"));
  second.replace(second.find("index=\"1\""), 9, "index=\"2\"");
  EXPECT_FALSE(
      TakesReply(grammar, Channel::kResponse, "<|close|>response<|sep|>" + call + second + end));
  EXPECT_FALSE(TakesReply(grammar, Channel::kResponse, std::string(kEndOfAnswer)));
}

TEST(GrammarMatcher, JsonAnswerOrCallsIfBothMayCome) {
  ReplyFormat format = ToolFormat(ReplyFormat::Calls::kAllowed);
  format.content_schema = JsonValue::Boolean(true);
  const auto grammar = Compile(format);
  EXPECT_TRUE(TakesReply(grammar, Channel::kResponse, "1" + std::string(kEndOfAnswer)));
  EXPECT_TRUE(
      TakesReply(grammar, Channel::kResponse, "<|close|>response<|sep|>" + std::string(kCall)));
  EXPECT_TRUE(
      TakesReply(grammar, Channel::kResponse, "1<|close|>response<|sep|>" + std::string(kCall)));
  EXPECT_FALSE(TakesReply(grammar, Channel::kResponse, std::string(kEndOfAnswer)));
}

TEST(GrammarMatcher, SchemasOfToolsThatAreNotStrictMayBeBeyondUs) {
  ReplyFormat format;
  format.calls = ReplyFormat::Calls::kRequired;
  format.tools.push_back(Tool("f", R"({"type":"object","properties":{"a":{"not":{}}}})", false));
  format.tools.push_back(
      Tool("g", R"({"type":"object","properties":{"a":{"type":"null"}}})", false));
  const auto grammar = Compile(format);
  const auto text = [](std::string_view tool, std::string_view key, std::string_view type,
                       std::string_view value) {
    return fmt::format(
        "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"{}\" index=\"1\"<|sep|>"
        "<|open|>argument key=\"{}\" "
        "type=\"{}\"<|sep|>{}<|close|>argument<|sep|><|close|>call<|sep|>"
        "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>",
        tool, key, type, value);
  };
  EXPECT_TRUE(TakesReply(grammar, Channel::kResponse, text("f", "x &quot;", "array", "[1]")));
  EXPECT_FALSE(TakesReply(grammar, Channel::kResponse, text("f", "x", "array", "[1")));
  EXPECT_FALSE(TakesReply(grammar, Channel::kResponse, text("f", "", "null", "null")));
  EXPECT_TRUE(TakesReply(grammar, Channel::kResponse, text("g", "a", "null", "null")));
  EXPECT_FALSE(TakesReply(grammar, Channel::kResponse, text("g", "a", "string", "null")));
  EXPECT_FALSE(TakesReply(grammar, Channel::kResponse, text("g", "b", "null", "null")));
  format.tools[0].strict = true;
  const auto strict = TokenGrammar::Compile(format, NanoTrie());
  ASSERT_FALSE(strict);
  EXPECT_EQ(strict.error().message, "tools.f.properties.a.not: this keyword is not supported");
}

TEST(ReplyFormat, OptionsOfARequestSayWhatIsRestricted) {
  const auto tools = ValueOf(ParseJson(R"([{"type":"function","function":{"name":"f"}},
      {"type":"function","function":{"name":"g","strict":true,"parameters":{"type":"object"}}}])"));
  ChatOptions options;
  EXPECT_FALSE(FindReplyFormat(options));
  options.response_format = ResponseFormat::kJsonObject;
  ASSERT_TRUE(FindReplyFormat(options));
  EXPECT_TRUE(Accepts(Compile(*FindReplyFormat(options)), "{\"a\":1}"));
  EXPECT_FALSE(Accepts(Compile(*FindReplyFormat(options)), "[]"));
  options.response_format = ResponseFormat::kText;
  options.tools = JsonValue::Array({tools.items()[0]});
  EXPECT_FALSE(FindReplyFormat(options));
  EXPECT_TRUE(FindReplyFormat(options, false));
  options.tools = tools;
  auto format = FindReplyFormat(options);
  ASSERT_TRUE(format);
  EXPECT_EQ(format->calls, ReplyFormat::Calls::kAllowed);
  EXPECT_EQ(format->tools[1].path, "tools[1].function.parameters");
  options.tool_choice = ToolChoice::kNone;
  format = FindReplyFormat(options);
  ASSERT_TRUE(format);
  EXPECT_EQ(format->calls, ReplyFormat::Calls::kForbidden);
  EXPECT_TRUE(format->tools.empty());
  options.tool_choice = ToolChoice::kFunction;
  options.tool_choice_function = "g";
  format = FindReplyFormat(options);
  ASSERT_TRUE(format);
  EXPECT_EQ(format->calls, ReplyFormat::Calls::kOnly);
  ASSERT_EQ(format->tools.size(), 1u);
  EXPECT_EQ(format->tools[0].name, "g");
  EXPECT_TRUE(format->tools[0].strict);
  options.tool_choice = ToolChoice::kRequired;
  EXPECT_EQ(FindReplyFormat(options)->calls, ReplyFormat::Calls::kRequired);
}

TEST(TokenTrie, VocabulariesWithoutChatMarkersAreRefused) {
  const Tokenizer tokenizer =
      ValueOf(Tokenizer::FromFiles(MakeRankFile(), R"({"added_tokens_decoder":{}})"));
  const auto trie = TokenTrie::Create(tokenizer);
  ASSERT_FALSE(trie);
  EXPECT_EQ(trie.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace megalith::text::grammar
