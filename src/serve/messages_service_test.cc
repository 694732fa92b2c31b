// POST /v1/messages and its count_tokens.
#include "serve/testing/service_test_util.h"
#include "text/chat_render.h"
#include "text/stream_decoder.h"

namespace megalith::serve {
namespace {

constexpr char kPath[] = "/v1/messages";
constexpr char kCountPath[] = "/v1/messages/count_tokens";

json Message(const json& more = json::object()) {
  json body = {{"model", "nano"},
               {"max_tokens", 1000},
               {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(more);
  return body;
}
const json kThinking = {{"thinking", {{"type", "enabled"}, {"budget_tokens", 2000}}}};

class MessagesServiceTest : public ServiceTest {
 protected:
  /// The message that a client puts together from a stream.
  static json Join(const std::vector<testing::StreamEvent>& events) {
    json message;
    std::vector<std::string> inputs;
    bool stopped = false;
    int open = -1;
    for (const auto& event : events) {
      const json data = json::parse(event.data);
      EXPECT_EQ(event.name, data["type"]);
      EXPECT_FALSE(stopped);
      const std::string type = data["type"];
      if (type == "message_start") {
        message = data["message"];
      } else if (type == "content_block_start") {
        EXPECT_EQ(open, -1);
        open = data["index"];
        EXPECT_EQ(message["content"].size(), data["index"]);
        message["content"].push_back(data["content_block"]);
        inputs.emplace_back();
      } else if (type == "content_block_delta") {
        EXPECT_EQ(open, data["index"]);
        json& block = message["content"].back();
        for (const char* key : {"text", "thinking", "signature"}) {
          if (data["delta"].contains(key)) {
            block[key] = block[key].get<std::string>() + data["delta"][key].get<std::string>();
          }
        }
        inputs.back() += data["delta"].value("partial_json", "");
      } else if (type == "content_block_stop") {
        EXPECT_EQ(open, data["index"]);
        open = -1;
        if (!inputs.back().empty()) message["content"].back()["input"] = json::parse(inputs.back());
      } else if (type == "message_delta") {
        message.update(data["delta"]);
        message["usage"] = data["usage"];
        message["timings"] = data["timings"];
      } else if (type == "message_stop") {
        stopped = true;
      } else {
        EXPECT_EQ(type, "ping");
      }
    }
    EXPECT_TRUE(stopped);
    EXPECT_EQ(open, -1);
    return message;
  }

  /// Asks both ways and compares; the whole answer.
  json AskBoth(const json& body) {
    const json answer = Ask(kPath, body);
    json stream = body;
    stream["stream"] = true;
    json joined = Join(ReadStream(Post(kPath, stream)));
    json expected = answer;
    for (json* message : {&joined, &expected}) {
      message->erase("id");
      message->erase("timings");
      for (json& block : (*message)["content"]) block.erase("id");
    }
    EXPECT_EQ(joined, expected);
    return answer;
  }

  std::string LastPrompt() {
    return text::ValueOf(text::DecodeText(
        text::NanoTokenizer(), generator_->requests().back().prompt, text::SpecialText::kShow));
  }
  /// The prompt of a conversation that was read elsewhere.
  static Ids Render(const text::Conversation& conversation, const text::ChatOptions& options) {
    return text::ValueOf(text::RenderChat(text::NanoTokenizer(), conversation, options)).ids;
  }
};

TEST_F(MessagesServiceTest, ThinkingTextAndToolUseAreBlocks) {
  generator_->Play(std::vector<Script>{
      {Spelled(
           Answer("hm", "look:",
                  Tools(Call("f", Argument("n", "number", "1") + Argument("s", "string", "a\"b")) +
                        Call("g", "")))),
       4}});
  const json tools = {{{"name", "f"}, {"description", "d"}, {"input_schema", {{"type", "object"}}}},
                      {{"name", "g"}, {"input_schema", json::object()}}};
  json body = Message(kThinking);
  body["tools"] = tools;
  const json answer = AskBoth(body);
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["role"], "assistant");
  ASSERT_EQ(answer["content"].size(), 4u);
  EXPECT_EQ(answer["content"][0]["thinking"], "hm");
  EXPECT_EQ(answer["content"][1], (json{{"type", "text"}, {"text", "look:"}}));
  EXPECT_EQ(answer["content"][2]["name"], "f");
  EXPECT_EQ(answer["content"][2]["input"], (json{{"n", 1}, {"s", "a\"b"}}));
  EXPECT_EQ(answer["content"][3]["input"], json::object());
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  const auto num_prompt = generator_->request(0).prompt.size();
  EXPECT_EQ(answer["usage"]["input_tokens"], num_prompt - 4);
  EXPECT_EQ(answer["usage"]["cache_read_input_tokens"], 4);
  EXPECT_NE(LastPrompt().find("[{\"function\":{\"description\":\"d\",\"name\":\"f\",\"parameters\":"
                              "{\"type\":\"object\"}},\"type\":\"function\"}"),
            std::string::npos);
  EXPECT_NE(LastPrompt().find("thinking_effort=low"), std::string::npos);
  EXPECT_EQ(Ask(kCountPath, body)["input_tokens"], num_prompt);
}

TEST_F(MessagesServiceTest, ThinkingIsOffUnlessAskedFor) {
  generator_->Play(Spelled("plain answer" + kEndResponse + kEndMessage));
  const json answer = AskBoth(Message());
  EXPECT_EQ(answer["content"], json::parse(R"([{"type":"text","text":"plain answer"}])"));
  EXPECT_EQ(answer["stop_reason"], "end_turn");
  EXPECT_TRUE(answer["stop_sequence"].is_null());
  EXPECT_TRUE(LastPrompt().ends_with("<|open|>response<|sep|>"));
  Ask(kPath,
      Message({{"thinking", {{"type", "adaptive"}}}, {"output_config", {{"effort", "high"}}}}));
  EXPECT_NE(LastPrompt().find("thinking_effort=high"), std::string::npos);
}

TEST_F(MessagesServiceTest, StopSequenceAndLimit) {
  generator_->Play(Spelled("one STOP two"));
  const json stopped = AskBoth(Message({{"stop_sequences", {"x", "STOP"}}}));
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "STOP");
  EXPECT_EQ(stopped["content"][0]["text"], "one ");
  const json cut = AskBoth(Message({{"max_tokens", 2}}));
  EXPECT_EQ(cut["stop_reason"], "max_tokens");
  EXPECT_EQ(cut["usage"]["output_tokens"], 2);
}

TEST_F(MessagesServiceTest, BlocksBecomeTheModelsMessages) {
  json body = Message(kThinking);
  body["system"] = json::parse(R"([{"type":"text","text":"be","cache_control":{"type":"ephemeral"}},
                                   {"type":"text","text":" brief"}])");
  body["messages"] = json::parse(R"([
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
    {"role":"assistant","content":[
      {"type":"thinking","thinking":"hm","signature":"x"},
      {"type":"text","text":"calling"},
      {"type":"tool_use","id":"toolu_1","name":"f","input":{"k":[1,"x"]}},
      {"type":"tool_use","id":"toolu_2","name":"g","input":{}}]},
    {"role":"user","content":[
      {"type":"tool_result","tool_use_id":"toolu_2","content":[{"type":"text","text":"second"}]},
      {"type":"tool_result","tool_use_id":"toolu_1","content":"first","is_error":true},
      {"type":"text","text":"go on"}]},
    {"role":"assistant","content":"ok"},
    {"role":"user","content":"end"}])");
  generator_->Play(Spelled(Answer("", "x")));
  Ask(kPath, body);

  text::Message call = text::Message::Assistant("calling", "hm");
  call.tool_calls = {{"toolu_1", "f", R"({"k": [1, "x"]})"}, {"toolu_2", "g", "{}"}};
  text::Message first = text::Message::ToolResult("toolu_1", "");
  first.content = {"Error: ", "first"};
  text::Message system = text::Message::System("");
  system.content = {"be", " brief"};
  text::Message user = text::Message::User("");
  user.content = {"a", "b"};
  text::ChatOptions options;
  options.effort = text::Effort::kLow;
  EXPECT_EQ(generator_->request(0).prompt,
            Render({system, user, call, text::Message::ToolResult("toolu_2", "second"), first,
                    text::Message::User("go on"), text::Message::Assistant("ok"),
                    text::Message::User("end")},
                   options));
}

TEST_F(MessagesServiceTest, WrongMembersAreRefusedByNameInAnthropicsForm) {
  const auto refused = [this](const json& more, const std::string& param,
                              const std::string& code = "invalid_value") {
    const json answer = Ask(kPath, Message(more), 400);
    EXPECT_EQ(answer["type"], "error");
    EXPECT_EQ(answer["error"]["type"], "invalid_request_error");
    EXPECT_EQ(answer["error"]["param"], param) << answer;
    EXPECT_EQ(answer["error"]["code"], code) << answer;
  };
  const auto content = [](const json& value, const char* role = "user") {
    return json{{"messages", {{{"role", role}, {"content", value}}}}};
  };
  for (const json& value : {json(1), json("x"), json(true), json::array({1})}) {
    refused({{"max_tokens", value == 1 ? json(0) : value}}, "max_tokens");
  }
  refused({{"messages", json::array()}}, "messages");
  refused({{"messages", nullptr}}, "messages");
  refused({{"messages", {1}}}, "messages[0]");
  refused({{"messages", {{{"content", "x"}}}}}, "messages[0].role");
  refused(content("x", "tool"), "messages[0].role");
  refused(content(1), "messages[0].content");
  refused(content(nullptr), "messages[0].content");
  refused(content(json::array({1})), "messages[0].content[0]");
  refused(content(json::array({json::object()})), "messages[0].content[0].type");
  refused(content(json::array({{{"type", "text"}}})), "messages[0].content[0].text");
  refused(content(json::array({{{"type", "image"}}})), "messages[0].content[0].type",
          "unsupported");
  refused(content(json::array({{{"type", "tool_result"}}})), "messages[0].content[0].tool_use_id");
  refused(content({{{"type", "tool_result"}, {"tool_use_id", "x"}, {"content", 1}}}),
          "messages[0].content[0].content");
  refused(
      content({{{"type", "tool_use"}, {"id", "x"}, {"name", "f"}, {"input", "x"}}}, "assistant"),
      "messages[0].content[0].input");
  refused(content({{{"type", "tool_use"}, {"id", "x"}, {"name", ""}, {"input", {}}}}, "assistant"),
          "messages[0].content[0].name");
  refused(content({{{"type", "thinking"}, {"thinking", 1}}}, "assistant"),
          "messages[0].content[0].thinking");
  const json orphan = {{"type", "tool_result"}, {"tool_use_id", "x"}, {"content", "y"}};
  json late = {{{"role", "user"}, {"content", "a"}},
               {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "b"}}, orphan}}}};
  refused({{"system", "s"}, {"messages", late}}, "messages[1].content[1]");
  refused({{"system", 1}}, "system");
  refused({{"system", {{{"type", "x"}}}}}, "system[0].type", "unsupported");
  refused({{"tools", 1}}, "tools");
  refused({{"tools", {1}}}, "tools[0]");
  refused({{"tools", {{{"name", "f"}}}}}, "tools[0].input_schema");
  refused({{"tools", {{{"name", "f"}, {"input_schema", 1}}}}}, "tools[0].input_schema");
  const auto tool = [](const json& schema) {
    return json{{"name", "f"}, {"input_schema", schema}};
  };
  refused({{"tools", {tool({{"type", "string"}})}}}, "tools[0].input_schema.type");
  refused({{"tools", {tool({{"type", "object"}}), tool({{"type", "object"}})}}}, "tools[1].name");
  refused({{"tools", {tool({{"properties", {{"a", false}}}, {"required", {"a"}}})}},
           {"tool_choice", {{"type", "any"}}}},
          "tools[0].input_schema");
  refused({{"tools", {{{"type", "web_search_1"}, {"name", "f"}}}}}, "tools[0].type", "unsupported");
  refused({{"tool_choice", "auto"}}, "tool_choice");
  refused({{"tool_choice", {{"type", "x"}}}}, "tool_choice.type");
  refused({{"tool_choice", {{"type", "any"}}}}, "tool_choice");
  refused({{"tool_choice", {{"type", "tool"}, {"name", "f"}}}}, "tool_choice");
  refused({{"thinking", true}}, "thinking");
  refused({{"thinking", {{"type", "on"}}}}, "thinking.type");
  refused({{"thinking", {{"type", "enabled"}, {"budget_tokens", 0}}}}, "thinking.budget_tokens");
  refused({{"output_config", {{"format", 1}}}}, "output_config.format", "unsupported");
  refused({{"stop_sequences", "x"}}, "stop_sequences");
  refused({{"stop_sequences", {""}}}, "stop_sequences");
  refused({{"temperature", "x"}}, "temperature");
  refused({{"stream", 1}}, "stream");
  refused({{"n", 2}}, "n", "unknown_parameter");
  refused({{"mcp_servers", {1}}}, "mcp_servers", "unsupported");
  EXPECT_EQ(Ask(kPath, Message({{"model", "claude"}}), 404)["error"]["type"], "not_found_error");
  EXPECT_TRUE(generator_->requests().empty());
}

TEST_F(MessagesServiceTest, MetadataIsIgnoredWithAWarning) {
  generator_->Play(Spelled("x" + kEndResponse + kEndMessage));
  EXPECT_EQ(AskBoth(Message({{"metadata", {{"user_id", "me"}}}}))["warnings"].size(), 1u);
}

TEST_F(MessagesServiceTest, FailureIsAnErrorEvent) {
  Script script{Spelled("abc")};
  script.failure = Error{ErrorCode::kNumeric, "NaN"};
  generator_->Play(std::vector<Script>{script});
  EXPECT_EQ(Ask(kPath, Message(), 500)["error"]["type"], "api_error");
  const auto events = ReadStream(Post(kPath, Message({{"stream", true}})));
  EXPECT_EQ(events.back().name, "error");
  EXPECT_EQ(json::parse(events.back().data)["error"]["code"], "numeric_error");
}

TEST_F(MessagesServiceTest, QuietStreamIsPingedInItsOwnForm) {
  ServiceOptions options;
  options.ping_interval = std::chrono::milliseconds(2);
  Restart(options);
  generator_->Play(Spelled("x" + kEndResponse + kEndMessage));
  generator_->Pause();
  const auto recording = Post(kPath, Message({{"stream", true}}));
  recording->WaitForPieces(3);
  generator_->Resume();
  Join(ReadStream(recording));
  EXPECT_EQ(recording->pieces()[1], "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

TEST_F(MessagesServiceTest, GeneratedTurnIsReplayed) {
  Ids ids = ByteIds("hm");
  const auto add = [&ids](const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  add(Spelled(kEndThink + kOpenResponse));
  add(ByteIds("hello world"));
  add(Spelled(kEndResponse + kEndMessage));
  generator_->Play(ids);
  json body = Message(kThinking);
  const json answer = Ask(kPath, body);
  body["messages"].push_back({{"role", "assistant"}, {"content", answer["content"]}});
  body["messages"].push_back({{"role", "user"}, {"content", "and?"}});
  Ask(kPath, body);
  Ids turn = generator_->request(0).prompt;
  turn.insert(turn.end(), ids.begin(), ids.end());
  const Ids next = generator_->request(1).prompt;
  ASSERT_GT(next.size(), turn.size());
  EXPECT_TRUE(std::equal(turn.begin(), turn.end(), next.begin()));
}

}  // namespace
}  // namespace megalith::serve
