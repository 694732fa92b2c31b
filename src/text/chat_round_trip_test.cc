// Properties of renderer and parser together, on random conversations and random id sequences.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/chat_parser.h"
#include "text/chat_render.h"
#include "text/text_test_util.h"

namespace megalith::text {
namespace {

using Ids = std::vector<TokenId>;
using Kind = ChatEvent::Kind;

const Tokenizer& Vocabulary4k() { return NanoTokenizer(); }

JsonValue RandomJson(TestRandom& random, int depth) {
  switch (random.Below(depth > 0 ? 7 : 5)) {
    case 0:
      return JsonValue();
    case 1:
      return JsonValue::Boolean(random.Below(2) == 0);
    case 2:
      return JsonValue::Integer(static_cast<std::int64_t>(random.Next()));
    case 3:
      return JsonValue::Double(static_cast<double>(random.Below(100000)) / 64.0);
    case 4:
      return JsonValue::String(RandomText(random, random.Below(12)));
    case 5: {
      std::vector<JsonValue> items;
      for (std::size_t n = random.Below(4); n > 0; --n)
        items.push_back(RandomJson(random, depth - 1));
      return JsonValue::Array(std::move(items));
    }
    default: {
      std::vector<JsonMember> members;
      for (std::size_t n = random.Below(4); n > 0; --n) {
        members.push_back({RandomText(random, 1 + random.Below(5)), RandomJson(random, depth - 1)});
      }
      return JsonValue::Object(std::move(members));
    }
  }
}

Message RandomAssistant(TestRandom& random, bool thinking) {
  // "x" in front: blank reasoning is not rendered.
  Message message = Message::Assistant(
      RandomText(random, random.Below(30)),
      thinking && random.Below(4) > 0 ? "x" + RandomText(random, random.Below(30)) : "");
  for (std::size_t n = random.Below(4); n > 0; --n) {
    std::vector<JsonMember> members;
    for (std::size_t m = random.Below(4); m > 0; --m) {
      members.push_back({RandomText(random, 1 + random.Below(6)), RandomJson(random, 2)});
    }
    message.tool_calls.push_back({"call_" + std::to_string(n),
                                  "f" + RandomText(random, random.Below(5)),
                                  WritePythonJson(JsonValue::Object(std::move(members)))});
  }
  return message;
}

TEST(ChatRoundTrip, RenderedAssistantTurnParsesBackAndRendersTheSame) {
  TestRandom random(53);
  for (int round = 0; round < 400; ++round) {
    ChatOptions options;
    options.thinking = random.Below(2) == 0;
    const Message sent = RandomAssistant(random, options.thinking);
    const Ids prompt = ValueOf(RenderChat(Vocabulary4k(), {Message::User("q")}, options)).ids;
    options.generation_prefix = false;
    const Ids history =
        ValueOf(RenderChat(Vocabulary4k(), {Message::User("q"), sent}, options)).ids;
    ASSERT_TRUE(std::equal(prompt.begin(), prompt.end(), history.begin()));
    const Ids generated(history.begin() + static_cast<std::ptrdiff_t>(prompt.size()),
                        history.end());

    ChatParserOptions parser_options;
    parser_options.start =
        FindOpenChannel(Vocabulary4k(), ValueOf(Vocabulary4k().FindControlTokens()), prompt);
    const ChatReply reply = ValueOf(ParseReply(Vocabulary4k(), generated, parser_options));
    ASSERT_EQ(reply.reasoning, sent.reasoning) << "seed 53, round " << round;
    ASSERT_EQ(reply.content, sent.content[0]) << "seed 53, round " << round;
    ASSERT_EQ(reply.tool_calls.size(), sent.tool_calls.size());
    for (std::size_t i = 0; i < sent.tool_calls.size(); ++i) {
      ASSERT_EQ(reply.tool_calls[i].name, sent.tool_calls[i].name);
      ASSERT_EQ(ValueOf(ParseJson(reply.tool_calls[i].arguments)),
                ValueOf(ParseJson(sent.tool_calls[i].arguments)))
          << "seed 53, round " << round;
    }
    ASSERT_EQ(reply.finish_reason,
              sent.tool_calls.empty() ? FinishReason::kStop : FinishReason::kToolCalls);
    // The client sends the reply back: the next prompt must begin with what was generated.
    ASSERT_EQ(
        ValueOf(RenderChat(Vocabulary4k(), {Message::User("q"), reply.ToMessage()}, options)).ids,
        history)
        << "seed 53, round " << round;
  }
}

// A random sequence out of the pieces that generations are made of, well-formed or not.
Ids RandomGeneration(TestRandom& random) {
  static const std::vector<Ids> pieces = [] {
    std::vector<Ids> list;
    for (const char* text : {"<|open|>",
                             "<|close|>",
                             "<|sep|>",
                             "<|close|>think<|sep|>",
                             "<|open|>response<|sep|>",
                             "<|close|>response<|sep|>",
                             "<|open|>tools<|sep|>",
                             "<|close|>tools<|sep|>",
                             "<|open|>call tool=\"f\" index=\"1\"<|sep|>",
                             "<|close|>call<|sep|>",
                             "<|open|>argument key=\"a\" type=\"string\"<|sep|>",
                             "<|open|>argument key=\"n\" type=\"number\"<|sep|>",
                             "<|close|>argument<|sep|>",
                             "<|open|>json type=\"object\"<|sep|>{}<|close|>json<|sep|>",
                             "<|close|>message<|sep|>",
                             "<|open|>think<|sep|>",
                             "[UNK]",
                             "think",
                             "response",
                             "call tool=\"",
                             "12",
                             "[1, 2]"}) {
      list.push_back(ValueOf(Vocabulary4k().EncodeWithSpecials(text)));
    }
    return list;
  }();
  Ids ids;
  for (std::size_t n = random.Below(30); n > 0; --n) {
    Ids piece;
    switch (random.Below(4)) {
      case 0:
        piece = ValueOf(Vocabulary4k().Encode(RandomText(random, 1 + random.Below(8))));
        break;
      case 1:
        piece = ValueOf(Vocabulary4k().EncodeBytes(RandomBytes(random, 1 + random.Below(8))));
        break;
      default:
        piece = random.Pick(pieces);
    }
    ids.insert(ids.end(), piece.begin(), piece.end());
  }
  if (random.Below(2) == 0) ids.push_back(3842);
  return ids;
}

// Every run of begin, arguments, end must be in order and the arguments valid JSON.
void CheckEvents(const std::vector<ChatEvent>& events) {
  std::optional<std::size_t> open;
  std::string arguments;
  std::size_t num_begun = 0;
  for (const ChatEvent& event : events) {
    ASSERT_FALSE(FindInvalidUtf8(event.text));
    switch (event.kind) {
      case Kind::kReasoning:
      case Kind::kContent:
        ASSERT_FALSE(event.text.empty());
        break;
      case Kind::kToolCallBegin:
        ASSERT_FALSE(open);
        ASSERT_EQ(event.tool_call_idx, num_begun++);
        open = event.tool_call_idx;
        arguments.clear();
        break;
      case Kind::kToolCallArguments:
        ASSERT_EQ(open, event.tool_call_idx);
        arguments += event.text;
        break;
      case Kind::kToolCallEnd:
        ASSERT_EQ(open, event.tool_call_idx);
        ASSERT_TRUE(nlohmann::json::accept(arguments)) << arguments;
        open.reset();
        break;
      case Kind::kToolCallDropped:
        ASSERT_EQ(open, event.tool_call_idx);
        open.reset();
        break;
    }
  }
  ASSERT_FALSE(open);
}

TEST(ChatRoundTrip, AnyIdSequenceStreamsToTheSameReplyWithoutMarkers) {
  TestRandom random(59);
  for (int round = 0; round < 3000; ++round) {
    const Ids ids = RandomGeneration(random);
    ChatParserOptions options;
    options.start = random.Below(2) == 0 ? Channel::kThink : Channel::kResponse;
    options.tool_call_ids = ToolCallIds(static_cast<std::uint64_t>(round));
    if (random.Below(2) == 0) options.stop_strings = {"12", "ab", "\n\n"};
    const bool hit_limit = random.Below(2) == 0;

    ChatParser parser = ValueOf(ChatParser::Create(Vocabulary4k(), options));
    ChatReplyBuilder builder;
    std::vector<ChatEvent> all;
    std::vector<ChatEvent> batch;
    for (const TokenId id : ids) {
      ASSERT_TRUE(parser.Push(id, batch));
      if (random.Below(3) == 0) {  // events are taken at random borders
        all.insert(all.end(), batch.begin(), batch.end());
        batch.clear();
      }
    }
    const FinishReason reason = parser.Finish(hit_limit, batch);
    all.insert(all.end(), batch.begin(), batch.end());
    for (const ChatEvent& event : all) builder.Add(event);
    const ChatReply streamed = std::move(builder).Build(reason);
    CheckEvents(all);
    if (HasFatalFailure()) FAIL() << "seed 59, round " << round;

    const ChatReply whole = ValueOf(ParseReply(Vocabulary4k(), ids, options, hit_limit));
    ASSERT_EQ(streamed.reasoning, whole.reasoning) << "seed 59, round " << round;
    ASSERT_EQ(streamed.content, whole.content) << "seed 59, round " << round;
    ASSERT_EQ(streamed.tool_calls, whole.tool_calls) << "seed 59, round " << round;
    ASSERT_EQ(streamed.finish_reason, whole.finish_reason);
    for (const std::string* text : {&whole.reasoning, &whole.content}) {
      for (const char* marker : {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"}) {
        ASSERT_EQ(text->find(marker), std::string::npos);
      }
    }
  }
}

// Generations in the format, with text channels of every kind; the expected reply is known.
TEST(ChatRoundTrip, RecordedNanoRepliesAreLossFree) {
  const auto golden = nlohmann::json::parse(ReadTestFile(NanoDir() / "golden.json"));
  const ControlTokens control = ValueOf(Vocabulary4k().FindControlTokens());
  int num_chats = 0;
  for (const auto& prompt : golden["prompts"]) {
    if (!prompt["kind"].get<std::string>().starts_with("chat/")) continue;
    ++num_chats;
    const Ids ids = prompt["tokens"].get<Ids>();
    ChatParserOptions options;
    options.start = FindOpenChannel(Vocabulary4k(), control, prompt["ids"].get<Ids>());
    const ChatReply reply = ValueOf(ParseReply(Vocabulary4k(), ids, options));
    // Everything up to the first marker belongs to the channel that the prompt opened.
    const auto first = std::find_if(ids.begin(), ids.end(),
                                    [](TokenId id) { return Vocabulary4k().IsSpecial(id); });
    const std::string want = ValueOf(DecodeText(Vocabulary4k(), Ids(ids.begin(), first)));
    EXPECT_EQ(options.start == Channel::kThink ? reply.reasoning : reply.content, want);
    EXPECT_FALSE(want.empty());
  }
  EXPECT_EQ(num_chats, 5);
}

}  // namespace
}  // namespace megalith::text
