#include "text/chat_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "text/text_test_util.h"

namespace megalith::text {
namespace {

using Ids = std::vector<TokenId>;
using Kind = ChatEvent::Kind;

Ids Spelled(const std::string& text) {
  return ValueOf(ReleasedTokenizer().EncodeWithSpecials(text));
}

ChatParserOptions StartIn(Channel channel) {
  ChatParserOptions options;
  options.start = channel;
  options.tool_call_ids = ToolCallIds(1);
  return options;
}

// Parses with the events of every token kept apart, and checks what holds for any stream.
ChatReply Stream(const Ids& ids, ChatParserOptions options = StartIn(Channel::kThink),
                 bool hit_limit = false) {
  ChatParser parser = ValueOf(ChatParser::Create(ReleasedTokenizer(), options));
  ChatReplyBuilder builder;
  std::vector<ChatEvent> events;
  const auto take = [&] {
    for (const ChatEvent& event : events) {
      EXPECT_FALSE(FindInvalidUtf8(event.text));
      builder.Add(event);
    }
    events.clear();
  };
  for (const TokenId id : ids) {
    EXPECT_TRUE(parser.Push(id, events));
    take();
  }
  const FinishReason reason = parser.Finish(hit_limit, events);
  take();
  ChatReply reply = std::move(builder).Build(reason);
  const ChatReply whole = ValueOf(ParseReply(ReleasedTokenizer(), ids, options, hit_limit));
  EXPECT_EQ(reply.reasoning, whole.reasoning);
  EXPECT_EQ(reply.content, whole.content);
  EXPECT_EQ(reply.tool_calls, whole.tool_calls);
  EXPECT_EQ(reply.finish_reason, whole.finish_reason);
  return reply;
}

const std::string kEnd = "<|close|>message<|sep|><|end_of_msg|>";

TEST(ChatParser, ReasoningThenAnswer) {
  const ChatReply reply = Stream(Spelled(
      "let me see\n<|close|>think<|sep|><|open|>response<|sep|>42 <|close|>response<|sep|>" +
      kEnd));
  EXPECT_EQ(reply.reasoning, "let me see\n");
  EXPECT_EQ(reply.content, "42 ");
  EXPECT_TRUE(reply.tool_calls.empty());
  EXPECT_EQ(reply.finish_reason, FinishReason::kStop);
}

TEST(ChatParser, InstructModeStartsInTheAnswer) {
  const ChatReply reply =
      Stream(Spelled("42<|close|>response<|sep|>" + kEnd), StartIn(Channel::kResponse));
  EXPECT_EQ(reply.reasoning, "");
  EXPECT_EQ(reply.content, "42");
}

// A reply cut while still thinking holds no marker at all; it is reasoning all the same.
TEST(ChatParser, TextWithoutMarkersBelongsToTheChannelThePromptOpened) {
  ChatReply reply = Stream(Spelled("only words"), StartIn(Channel::kThink), true);
  EXPECT_EQ(reply.reasoning, "only words");
  EXPECT_EQ(reply.content, "");
  EXPECT_EQ(reply.finish_reason, FinishReason::kLength);
  reply = Stream(Spelled("only words"), StartIn(Channel::kResponse), true);
  EXPECT_EQ(reply.reasoning, "");
  EXPECT_EQ(reply.content, "only words");
  EXPECT_EQ(reply.finish_reason, FinishReason::kLength);
}

TEST(ChatParser, ShortenedCloseBeforeTheNextSection) {
  ChatReply reply =
      Stream(Spelled("words<|close|>think<|open|>response<|sep|>answer<|close|>"
                     "response<|sep|>" +
                     kEnd));
  EXPECT_EQ(reply.reasoning, "words");
  EXPECT_EQ(reply.content, "answer");
  // Opening a later section closes the earlier one.
  reply = Stream(Spelled("words<|open|>response<|sep|>answer<|close|>message<|end_of_msg|>"));
  EXPECT_EQ(reply.reasoning, "words");
  EXPECT_EQ(reply.content, "answer");
}

TEST(ChatParser, ShortenedCloseOfAnyElement) {
  const ChatReply reply = Stream(
      Spelled("<|close|>think<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>"
              "<|open|>argument key=\"a\" type=\"string\"<|sep|>x<|close|>argument<|close|>call"
              "<|open|>call tool=\"g\" index=\"2\"<|sep|><|close|>call<|end_of_msg|>"));
  ASSERT_EQ(reply.tool_calls.size(), 2u);
  EXPECT_EQ(reply.tool_calls[0].arguments, R"({"a":"x"})");
  EXPECT_EQ(reply.tool_calls[1].name, "g");
  // Text behind the close of a channel is outside, also if an unknown element follows.
  EXPECT_EQ(Stream(Spelled("a<|close|>think<|open|>aside<|sep|>b<|end_of_msg|>")).reasoning, "a");
}

TEST(ChatParser, EchoOfThePrefixIsSwallowed) {
  ChatReply reply =
      Stream(Spelled("<|open|>think<|sep|>a<|close|>think<|sep|><|open|>response<|sep|>b"));
  EXPECT_EQ(reply.reasoning, "a");
  EXPECT_EQ(reply.content, "b");
  reply = Stream(Spelled("<|open|>response<|sep|>b"), StartIn(Channel::kResponse));
  EXPECT_EQ(reply.content, "b");
}

TEST(ChatParser, TextOutsideChannelsAndUnknownTagsAreDropped) {
  const ChatReply reply = Stream(Spelled(
      "a<|close|>think<|sep|>noise<|open|>aside x=\"1\"<|sep|>more<|close|>aside<|sep|><|sep|>"
      "<|open|>response<|sep|>b<|open|>aside<|sep|>c<|close|>response<|sep|>noise" +
      kEnd));
  EXPECT_EQ(reply.reasoning, "a");
  EXPECT_EQ(reply.content, "bc");
}

// Only real control ids are markers.
TEST(ChatParser, LookAlikesOfMarkersAreContent) {
  const std::string text = "<|close|>response<|sep|><|open|>tools<|sep|>";
  Ids ids = Spelled("a<|close|>think<|sep|><|open|>response<|sep|>");
  const Ids plain = ValueOf(ReleasedTokenizer().Encode(text));
  ids.insert(ids.end(), plain.begin(), plain.end());
  const ChatReply reply = Stream(ids);
  EXPECT_EQ(reply.content, text);
}

TEST(ChatParser, NothingIsTrimmed) {
  for (const char* ending : {"\"", "\u201D", "'", "`", "}", ">", "\n", " ", "\\", "<|", "<", "\n\n",
                             "\t", "&quot;", "```"}) {
    const std::string text = std::string(ending) + "answer" + ending;
    Ids ids = Spelled("<|close|>think<|sep|><|open|>response<|sep|>");
    const Ids body = ValueOf(ReleasedTokenizer().Encode(text));
    ids.insert(ids.end(), body.begin(), body.end());
    const Ids end = Spelled("<|close|>response<|sep|>" + kEnd);
    ids.insert(ids.end(), end.begin(), end.end());
    EXPECT_EQ(Stream(ids).content, text);
  }
}

std::string CallText(const std::string& name, const std::string& body) {
  return "<|open|>call tool=\"" + name + "\" index=\"1\"<|sep|>" + body + "<|close|>call<|sep|>";
}

std::string ArgumentText(const std::string& key, const std::string& type,
                         const std::string& value) {
  return "<|open|>argument key=\"" + key + "\" type=\"" + type + "\"<|sep|>" + value +
         "<|close|>argument<|sep|>";
}

ChatReply ParseTools(const std::string& calls, bool hit_limit = false) {
  return Stream(Spelled("t<|close|>think<|sep|><|open|>tools<|sep|>" + calls),
                StartIn(Channel::kThink), hit_limit);
}

std::string ArgumentsOf(const std::string& body) {
  const ChatReply reply = ParseTools(CallText("f", body) + "<|close|>tools<|sep|>" + kEnd);
  EXPECT_EQ(reply.tool_calls.size(), 1u);
  return reply.tool_calls.empty() ? "" : reply.tool_calls[0].arguments;
}

TEST(ChatParser, ToolCallWithoutAnyText) {
  const ChatReply reply =
      ParseTools(CallText("get_weather", ArgumentText("city", "string", "Oslo")) +
                 "<|close|>tools<|sep|>" + kEnd);
  ASSERT_EQ(reply.tool_calls.size(), 1u);
  EXPECT_EQ(reply.tool_calls[0].name, "get_weather");
  EXPECT_EQ(reply.tool_calls[0].arguments, R"({"city":"Oslo"})");
  EXPECT_TRUE(reply.tool_calls[0].id.starts_with("call_"));
  EXPECT_EQ(reply.content, "");
  EXPECT_EQ(reply.reasoning, "t");
  EXPECT_EQ(reply.finish_reason, FinishReason::kToolCalls);
}

TEST(ChatParser, ArgumentTypes) {
  EXPECT_EQ(ArgumentsOf(""), "{}");
  EXPECT_EQ(
      ArgumentsOf(ArgumentText("a", "number", "1e+16") + ArgumentText("b", "boolean", "true") +
                  ArgumentText("c", "null", "null") +
                  ArgumentText("d", "object", R"({"k": [1, "x"]})") +
                  ArgumentText("e", "array", "[]") + ArgumentText("f", "string", "a\"\\\n\x01")),
      R"({"a":1e+16,"b":true,"c":null,"d":{"k": [1, "x"]},"e":[],"f":"a\"\\\n\u0001"})");
  // What is no JSON stays a string; NaN is none.
  EXPECT_EQ(ArgumentsOf(ArgumentText("a", "number", "12 apples")), R"({"a":"12 apples"})");
  EXPECT_EQ(ArgumentsOf(ArgumentText("a", "number", "NaN")), R"({"a":"NaN"})");
  EXPECT_EQ(ArgumentsOf(ArgumentText("a", "array", std::string(1000, '['))),
            "{\"a\":\"" + std::string(1000, '[') + "\"}");
  EXPECT_EQ(ArgumentsOf("<|open|>argument key=\"a\"<|sep|>7<|close|>argument<|sep|>"),
            R"({"a":7})");
  EXPECT_EQ(ArgumentsOf(ArgumentText("q&quot;&amp;quot;", "string", "v")), R"({"q\"&quot;":"v"})");
  // No key: nothing to put it under.
  EXPECT_EQ(ArgumentsOf("<|open|>argument type=\"string\"<|sep|>7<|close|>argument<|sep|>"), "{}");
}

TEST(ChatParser, JsonElementCountsOnlyWithoutArguments) {
  EXPECT_EQ(ArgumentsOf("<|open|>json type=\"object\"<|sep|>{\"a\": 1}<|close|>json<|sep|>"),
            "{\"a\": 1}");
  EXPECT_EQ(ArgumentsOf("<|open|>json type=\"object\"<|sep|> <|close|>json<|sep|>"), "{}");
  EXPECT_EQ(ArgumentsOf("<|open|>json type=\"object\"<|sep|>{\"a\": 1}<|close|>json<|sep|>" +
                        ArgumentText("b", "number", "2")),
            "{\"b\":2}");
}

TEST(ChatParser, UnclosedArgumentIsClosedByWhatFollows) {
  EXPECT_EQ(ArgumentsOf("<|open|>argument key=\"a\" type=\"string\"<|sep|>x"
                        "<|open|>argument key=\"b\" type=\"number\"<|sep|>2"),
            R"({"a":"x","b":2})");
}

TEST(ChatParser, TruncatedCallsAreDropped) {
  const std::string whole = CallText("f", ArgumentText("a", "string", "x"));
  const Ids begin = Spelled("t<|close|>think<|sep|><|open|>tools<|sep|>");
  const Ids call = Spelled(whole);
  for (std::size_t length = 0; length < call.size(); ++length) {
    Ids ids = begin;
    ids.insert(ids.end(), call.begin(), call.begin() + static_cast<std::ptrdiff_t>(length));
    const ChatReply reply = Stream(ids, StartIn(Channel::kThink), true);
    ASSERT_TRUE(reply.tool_calls.empty()) << length;
    ASSERT_EQ(reply.finish_reason, FinishReason::kLength);
  }
  // One complete, one cut.
  ChatReply reply = ParseTools(whole + "<|open|>call tool=\"g\" index=\"2\"<|sep|>", true);
  ASSERT_EQ(reply.tool_calls.size(), 1u);
  EXPECT_EQ(reply.finish_reason, FinishReason::kLength);
  // An unfinished call is dropped by the next one, or by the end of the section.
  reply = ParseTools("<|open|>call tool=\"g\" index=\"1\"<|sep|>" + whole +
                     "<|close|>tools<|sep|>" + kEnd);
  ASSERT_EQ(reply.tool_calls.size(), 1u);
  EXPECT_EQ(reply.tool_calls[0].name, "f");
  reply = ParseTools("<|open|>call tool=\"g\" index=\"1\"<|sep|><|close|>tools<|sep|>" + kEnd);
  EXPECT_TRUE(reply.tool_calls.empty());
  EXPECT_EQ(reply.finish_reason, FinishReason::kStop);
  // A call without a tool's name is none.
  reply = ParseTools("<|open|>call index=\"1\"<|sep|>" + ArgumentText("a", "string", "x") +
                     "<|close|>call<|sep|>" + whole + "<|close|>tools<|sep|>" + kEnd);
  ASSERT_EQ(reply.tool_calls.size(), 1u);
  EXPECT_EQ(reply.tool_calls[0].name, "f");
}

TEST(ChatParser, SeveralCallsHaveTheirOwnIds) {
  const ChatReply reply = ParseTools(CallText("f", "") + CallText("f", "") + CallText("g", "") +
                                     "<|close|>tools<|sep|>" + kEnd);
  ASSERT_EQ(reply.tool_calls.size(), 3u);
  std::set<std::string> ids;
  for (const ToolCall& call : reply.tool_calls) ids.insert(call.id);
  EXPECT_EQ(ids.size(), 3u);
}

// A long argument must not arrive in one lump.
TEST(ChatParser, LongStringArgumentsStream) {
  std::string value;
  TestRandom random(43);
  while (value.size() < 50'000) {
    value += RandomText(random, 5) + "\"quote\" \\ back\n\x01\x1F \U0001F600";
  }
  Ids ids = Spelled(
      "<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"write\" index=\"1\""
      "<|sep|><|open|>argument key=\"text\" type=\"string\"<|sep|>");
  const Ids body = ValueOf(ReleasedTokenizer().Encode(value));
  ids.insert(ids.end(), body.begin(), body.end());
  ChatParser parser = ValueOf(ChatParser::Create(ReleasedTokenizer(), StartIn(Channel::kThink)));
  std::size_t num_deltas = 0;
  std::string joined;
  std::vector<ChatEvent> events;
  bool begun = false;
  const auto take = [&] {
    for (const ChatEvent& event : events) {
      if (event.kind == Kind::kToolCallBegin) {
        begun = true;
        EXPECT_EQ(event.text, "write");
        EXPECT_FALSE(event.tool_call_id.empty());
      }
      if (event.kind != Kind::kToolCallArguments) continue;
      EXPECT_TRUE(begun);
      ++num_deltas;
      joined += event.text;
    }
    events.clear();
  };
  for (const TokenId id : ids) {
    ASSERT_TRUE(parser.Push(id, events));
    take();
  }
  EXPECT_GT(num_deltas, 1000u);
  for (const TokenId id : Spelled("<|close|>argument<|sep|><|close|>call<|sep|>")) {
    ASSERT_TRUE(parser.Push(id, events));
    take();
  }
  EXPECT_EQ(nlohmann::json::parse(joined), (nlohmann::json{{"text", value}}));
  EXPECT_EQ(parser.Finish(false, events), FinishReason::kToolCalls);
}

TEST(ChatParser, StopsOnEitherEndTokenAndOnGivenIds) {
  for (const char* end : {"<|end_of_msg|>", "[EOS]"}) {
    EXPECT_EQ(Stream(Spelled(std::string("a") + end + "b")).reasoning, "a");
  }
  ChatParserOptions options = StartIn(Channel::kThink);
  options.stop_ids = {163593};
  EXPECT_EQ(Stream(Spelled("a[EOT]b"), options).reasoning, "a");
  ChatParser parser = ValueOf(ChatParser::Create(ReleasedTokenizer(), options));
  std::vector<ChatEvent> events;
  for (const TokenId id : Spelled("a<|close|>message<|sep|>")) ASSERT_TRUE(parser.Push(id, events));
  EXPECT_TRUE(parser.message_closed());
  EXPECT_FALSE(parser.finished());
  for (const TokenId id : Spelled("<|open|>response<|sep|>x<|end_of_msg|>")) {
    ASSERT_TRUE(parser.Push(id, events));
  }
  EXPECT_TRUE(parser.finished());
  EXPECT_EQ(events.size(), 1u);
}

TEST(ChatParser, OtherSpecialTokensAreHiddenOrShown) {
  const Ids ids = Spelled(
      "a[UNK]b<|close|>think<|sep|><|open|>response<|sep|>c<|reserved_token_163700|>d" + kEnd);
  ChatReply reply = Stream(ids);
  EXPECT_EQ(reply.reasoning, "ab");
  EXPECT_EQ(reply.content, "cd");
  ChatParserOptions options = StartIn(Channel::kThink);
  options.special = SpecialText::kShow;
  reply = Stream(ids, options);
  EXPECT_EQ(reply.reasoning, "a[UNK]b");
  EXPECT_EQ(reply.content, "c<|reserved_token_163700|>d");
}

TEST(ChatParser, InvalidBytesBecomeReplacementsInEveryChannel) {
  TestRandom random(47);
  for (int round = 0; round < 200; ++round) {
    const std::string bytes = RandomBytes(random, 1 + random.Below(20));
    const Ids raw = ValueOf(ReleasedTokenizer().EncodeBytes(bytes));
    const std::string want = RepairUtf8(bytes);
    Ids ids = raw;
    const auto add = [&ids](const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); };
    add(Spelled("<|close|>think<|sep|><|open|>response<|sep|>"));
    add(raw);
    add(
        Spelled("<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\"<|sep|><|open|>"
                "argument key=\"s\" type=\"string\"<|sep|>"));
    add(raw);
    add(Spelled("<|close|>argument<|sep|><|open|>argument key=\"o\" type=\"object\"<|sep|>?"));
    add(raw);
    add(Spelled("<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>" + kEnd));
    const ChatReply reply = Stream(ids);
    ASSERT_EQ(reply.reasoning, want);
    ASSERT_EQ(reply.content, want);
    ASSERT_EQ(reply.tool_calls.size(), 1u);
    ASSERT_EQ(nlohmann::json::parse(reply.tool_calls[0].arguments),
              (nlohmann::json{{"s", want}, {"o", "?" + want}}));
  }
}

TEST(ChatParser, StopStringsApplyToContentOnly) {
  ChatParserOptions options = StartIn(Channel::kThink);
  options.stop_strings = {"END", "zz"};
  const ChatReply reply =
      Stream(Spelled("think END<|close|>think<|sep|><|open|>response<|sep|>one END two"), options);
  EXPECT_EQ(reply.reasoning, "think END");
  EXPECT_EQ(reply.content, "one ");
  EXPECT_EQ(reply.finish_reason, FinishReason::kStop);
  // Held back at the end of the section, then given out.
  EXPECT_EQ(
      Stream(Spelled("<|close|>think<|sep|><|open|>response<|sep|>one EN<|close|>response<|sep|>" +
                     kEnd),
             options)
          .content,
      "one EN");
  EXPECT_EQ(
      Stream(Spelled("<|close|>think<|sep|><|open|>response<|sep|>one EN"), options, true).content,
      "one EN");
}

TEST(ChatParser, IdsOutsideTheVocabularyAreErrors) {
  ChatParser parser = ValueOf(ChatParser::Create(ReleasedTokenizer()));
  std::vector<ChatEvent> events;
  EXPECT_EQ(parser.Push(163840, events).error().code, ErrorCode::kOutOfRange);
  EXPECT_EQ(parser.Push(-1, events).error().code, ErrorCode::kOutOfRange);
}

TEST(FindOpenChannel, LastMarkerOfThePromptDecides) {
  const ControlTokens control = ValueOf(ReleasedTokenizer().FindControlTokens());
  const auto open_channel = [&control](const std::string& text) {
    return FindOpenChannel(ReleasedTokenizer(), control, Spelled(text));
  };
  EXPECT_EQ(open_channel(""), Channel::kNone);
  EXPECT_EQ(open_channel("plain"), Channel::kNone);
  EXPECT_EQ(open_channel("<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>"),
            Channel::kThink);
  EXPECT_EQ(open_channel("<|open|>think<|sep|>already thought"), Channel::kThink);
  EXPECT_EQ(open_channel("<|open|>think<|sep|>a<|close|>think<|sep|>"), Channel::kNone);
  EXPECT_EQ(open_channel("<|open|>response<|sep|>"), Channel::kResponse);
  EXPECT_EQ(open_channel("<|open|>think"), Channel::kNone);
}

TEST(ToolCallIds, NewOverTheWholeConversation) {
  const std::string first = ToolCallIds(9).Next();
  Message assistant = Message::Assistant("");
  assistant.tool_calls.push_back({first, "f", ""});
  ToolCallIds ids(9);
  ids.Exclude({assistant, Message::ToolResult("call_other", "r")});
  std::set<std::string> seen = {first};
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(seen.insert(ids.Next()).second);
  EXPECT_NE(ToolCallIds().Next(), ToolCallIds().Next());
}

}  // namespace
}  // namespace megalith::text
