// POST /v1/responses.
#include "serve/testing/service_test_util.h"
#include "text/chat_render.h"
#include "text/stream_decoder.h"

namespace megalith::serve {
namespace {

constexpr char kPath[] = "/v1/responses";

class ResponsesServiceTest : public ServiceTest {
 protected:
  /// The final response of a stream, checked against the events before it.
  static json Join(const std::vector<testing::StreamEvent>& events) {
    json output = json::array();
    json last;
    int number = 0;
    std::string text;
    for (const auto& event : events) {
      const json data = json::parse(event.data);
      EXPECT_EQ(event.name, data["type"]);
      EXPECT_EQ(data["sequence_number"], number++);
      const std::string type = data["type"];
      if (type == "response.output_item.added") {
        text.clear();
      } else if (type.ends_with(".delta")) {
        text += data["delta"].get<std::string>();
      } else if (type == "response.output_text.done" || type == "response.reasoning_text.done") {
        EXPECT_EQ(data["text"], text);
      } else if (type == "response.function_call_arguments.done") {
        EXPECT_EQ(data["arguments"], text);
      } else if (type == "response.output_item.done") {
        const bool is_dropped_call =
            data["item"]["type"] == "function_call" && data["item"]["status"] == "incomplete";
        if (!is_dropped_call) output.push_back(data["item"]);
      }
      last = data;
    }
    EXPECT_EQ(json::parse(events.front().data)["type"], "response.created");
    EXPECT_EQ(json::parse(events.front().data)["response"]["status"], "in_progress");
    EXPECT_EQ(last["response"]["output"], output);
    EXPECT_EQ(last["type"], "response." + last["response"]["status"].get<std::string>());
    return last["response"];
  }

  /// Asks both ways and compares; the whole answer.
  json AskBoth(const json& body) {
    const json answer = Ask(kPath, body);
    json stream = body;
    stream["stream"] = true;
    json joined = Join(ReadStream(Post(kPath, stream)));
    json expected = answer;
    for (json* response : {&joined, &expected}) {
      response->erase("id");
      response->erase("created_at");
      response->erase("timings");
      for (json& item : (*response)["output"]) {
        item.erase("id");
        item.erase("call_id");
      }
    }
    EXPECT_EQ(joined, expected);
    return answer;
  }
};

const json kTools = json::parse(
    R"([{"type":"function","name":"f","description":"d","parameters":{"type":"object"}}])");

TEST_F(ResponsesServiceTest, OutputIsAListOfItems) {
  generator_->Play(std::vector<Script>{
      {Spelled(Answer("hm", "look:", Tools(Call("f", Argument("n", "number", "1"))))), 4}});
  const json answer = AskBoth({{"input", "hi"}, {"tools", kTools}, {"model", "nano"}});
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["status"], "completed");
  EXPECT_EQ(answer["tools"], kTools);
  EXPECT_EQ(answer["tool_choice"], "auto");
  EXPECT_EQ(answer["store"], false);
  const json& output = answer["output"];
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0]["content"], json::parse(R"([{"type":"reasoning_text","text":"hm"}])"));
  EXPECT_FALSE(output[0].contains("encrypted_content"));
  EXPECT_EQ(output[1]["content"][0]["text"], "look:");
  EXPECT_EQ(output[2]["name"], "f");
  EXPECT_EQ(output[2]["arguments"], "{\"n\":1}");
  EXPECT_FALSE(output[2]["call_id"].get<std::string>().empty());
  EXPECT_EQ(answer["usage"]["input_tokens"], generator_->request(0).prompt.size());
  EXPECT_EQ(answer["usage"]["input_tokens_details"]["cached_tokens"], 4);
  EXPECT_EQ(answer["usage"]["output_tokens_details"]["reasoning_tokens"], Spelled("hm").size());
  text::ChatOptions options;
  options.tools = text::ValueOf(text::ParseJson(
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}])"));
  EXPECT_EQ(
      generator_->request(0).prompt,
      text::ValueOf(text::RenderChat(text::NanoTokenizer(), {text::Message::User("hi")}, options))
          .ids);
}

TEST_F(ResponsesServiceTest, CutAnswerIsIncomplete) {
  generator_->Play(Spelled("words and words and words"));
  const json answer = AskBoth({{"input", "hi"}, {"max_output_tokens", 2}});
  EXPECT_EQ(answer["status"], "incomplete");
  EXPECT_EQ(answer["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(answer["output"].back()["type"], "reasoning");
  EXPECT_EQ(answer["output"].back()["status"], "incomplete");
  const std::string text = "hm" + kEndThink + kOpenResponse + "words";
  generator_->Play(Spelled(text));
  const json in_text = AskBoth({{"input", "hi"}, {"max_output_tokens", Spelled(text).size()}});
  ASSERT_EQ(in_text["output"].size(), 2u);
  EXPECT_EQ(in_text["output"][0]["status"], "completed");
  EXPECT_EQ(in_text["output"][1]["status"], "incomplete");
  // A call that is cut is no part of the output.
  const std::string spelling =
      "x" + kEndThink + "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>";
  generator_->Play(Spelled(spelling));
  const json cut = AskBoth({{"input", "hi"}, {"max_output_tokens", Spelled(spelling).size()}});
  EXPECT_EQ(cut["output"].size(), 1u);
  EXPECT_EQ(cut["output"][0]["status"], "completed");
  EXPECT_EQ(cut["status"], "incomplete");
}

TEST_F(ResponsesServiceTest, ItemsBecomeTheModelsMessages) {
  const json input = json::parse(R"([
    {"role":"developer","content":"dev"},
    {"type":"message","role":"user","content":[{"type":"input_text","text":"a"},
                                               {"type":"input_text","text":"b"}]},
    {"type":"reasoning","id":"rs","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
    {"type":"message","role":"assistant","content":[{"type":"output_text","text":"calling"}]},
    {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"k\":1}"},
    {"type":"function_call","call_id":"c2","name":"g","arguments":""},
    {"type":"function_call_output","call_id":"c1","output":"one"},
    {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"two"}]},
    {"type":"reasoning","summary":[],"encrypted_content":"plain:aG0y"},
    {"role":"assistant","content":"done"},
    {"role":"user","content":"end"}])");
  generator_->Play(Spelled(Answer("", "x")));
  Ask(kPath, {{"input", input}, {"instructions", "be brief"}});
  text::Message user = text::Message::User("");
  user.content = {"a", "b"};
  text::Message call = text::Message::Assistant("calling", "hm");
  call.tool_calls = {{"c1", "f", R"({"k":1})"}, {"c2", "g", ""}};
  EXPECT_EQ(generator_->request(0).prompt,
            text::ValueOf(
                text::RenderChat(
                    text::NanoTokenizer(),
                    {text::Message::System("be brief"), text::Message::System("dev"), user, call,
                     text::Message::ToolResult("c1", "one"), text::Message::ToolResult("c2", "two"),
                     text::Message::Assistant("done", "hm2"), text::Message::User("end")}))
                .ids);
}

TEST_F(ResponsesServiceTest, OutputSentBackIsReplayedThroughPackedReasoning) {
  Ids ids = ByteIds("h\u00e9");
  const auto add = [&ids](const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  add(Spelled(kEndThink + kOpenResponse));
  add(ByteIds("hello world"));
  add(Spelled(kEndResponse + kEndMessage));
  generator_->Play(ids);
  json body = {{"input", {{{"role", "user"}, {"content", "hi"}}}},
               {"include", {"reasoning.encrypted_content"}},
               {"store", false}};
  const json answer = Ask(kPath, body);
  for (json item : answer["output"]) {
    // As clients do that do not keep the text of reasoning.
    if (item["type"] == "reasoning") item.erase("content");
    body["input"].push_back(item);
  }
  body["input"].push_back({{"role", "user"}, {"content", "and?"}});
  Ask(kPath, body);
  Ids turn = generator_->request(0).prompt;
  turn.insert(turn.end(), ids.begin(), ids.end());
  const Ids next = generator_->request(1).prompt;
  ASSERT_GT(next.size(), turn.size());
  EXPECT_TRUE(std::equal(turn.begin(), turn.end(), next.begin()));
}

TEST_F(ResponsesServiceTest, ServerSideToolsAreIgnoredWithAWarning) {
  generator_->Play(Spelled(Answer("", "x")));
  json tools = kTools;
  tools.push_back({{"type", "web_search"}});
  const json answer = AskBoth({{"input", "hi"}, {"tools", tools}, {"user", "me"}});
  ASSERT_EQ(answer["warnings"].size(), 2u);
  EXPECT_TRUE(answer["warnings"][0].get<std::string>().starts_with("tools[1]: ignored"));
}

TEST_F(ResponsesServiceTest, WrongMembersAreRefusedByName) {
  const auto refused = [this](const json& more, const std::string& param,
                              const std::string& code = "invalid_value") {
    json body = {{"input", "hi"}};
    body.update(more);
    ExpectRefused(kPath, body, param, code);
  };
  const auto item = [](const json& value) { return json{{"input", json::array({value})}}; };
  refused({{"input", nullptr}}, "input");
  refused({{"input", 1}}, "input");
  refused({{"input", json::array()}}, "input");
  refused(item(1), "input[0]");
  refused(item({{"type", 1}}), "input[0].type");
  refused(item({{"type", "item_reference"}}), "input[0].type", "unsupported");
  refused(item({{"role", "x"}, {"content", "x"}}), "input[0].role");
  refused(item({{"role", "user"}}), "input[0].content");
  refused(item({{"role", "user"}, {"content", 1}}), "input[0].content");
  refused(item({{"role", "user"}, {"content", {1}}}), "input[0].content[0]");
  refused(item({{"role", "user"}, {"content", {{{"type", "input_image"}}}}}),
          "input[0].content[0].type", "unsupported");
  refused(item({{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", 1}}}}}),
          "input[0].content[0].text");
  refused(item({{"type", "function_call"}, {"name", "f"}, {"arguments", "{}"}}),
          "input[0].call_id");
  refused(item({{"type", "function_call"}, {"call_id", "c"}, {"name", ""}, {"arguments", "{}"}}),
          "input[0].name");
  refused(item({{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", {}}}),
          "input[0].arguments");
  refused(item({{"type", "function_call_output"}, {"call_id", "c"}}), "input[0].output");
  refused({{"instructions", "i"},
           {"input",
            {{{"role", "user"}, {"content", "x"}},
             {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", ""}},
             {{"type", "function_call_output"}, {"call_id", "c"}, {"output", "y"}},
             {{"type", "function_call_output"}, {"call_id", "d"}, {"output", "z"}}}}},
          "input[3]");
  refused({{"input",
            {{{"role", "assistant"}, {"content", "x"}},
             {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "[1]"}}}}},
          "input[1].arguments");
  refused(item({{"type", "reasoning"}, {"encrypted_content", "gAAAA"}}),
          "input[0].encrypted_content");
  refused(item({{"type", "reasoning"}, {"encrypted_content", "plain:/w=="}}),
          "input[0].encrypted_content");
  refused({{"previous_response_id", "resp_1"}}, "previous_response_id", "unsupported");
  refused({{"background", true}}, "background", "unsupported");
  refused({{"conversation", "c"}}, "conversation", "unsupported");
  refused({{"prompt", {{"id", "p"}}}}, "prompt", "unsupported");
  refused({{"instructions", 1}}, "instructions");
  refused({{"tools", {1}}}, "tools[0]");
  refused({{"tools", {{{"type", "function"}}}}}, "tools[0].name");
  const auto tool = [](const char* key, const json& value) {
    return json{{"type", "function"}, {"name", "f"}, {key, value}};
  };
  refused({{"tools", {tool("strict", "yes")}}}, "tools[0].strict");
  refused({{"tools", {tool("description", 5)}}}, "tools[0].description");
  refused({{"tools", {tool("parameters", true)}}}, "tools[0].parameters");
  refused({{"tools", {kTools[0], {{"type", "web_search"}}, tool("strict", true)}}},
          "tools[2].name");
  json impossible = tool("parameters", {{"properties", {{"a", false}}}, {"required", {"a"}}});
  refused({{"tools", {{{"type", "web_search"}}, impossible}}, {"tool_choice", "required"}},
          "tools[1].parameters");
  refused({{"tool_choice", "x"}}, "tool_choice");
  refused({{"tool_choice", 1}}, "tool_choice");
  refused({{"tool_choice", "required"}}, "tool_choice");
  refused({{"tool_choice", {{"type", "function"}, {"name", "g"}}}, {"tools", kTools}},
          "tool_choice");
  refused({{"reasoning", {{"effort", "x"}}}}, "reasoning.effort");
  refused({{"reasoning", {{"x", 1}}}}, "reasoning.x");
  refused({{"text", {{"format", {{"type", "x"}}}}}}, "text.format.type");
  refused({{"text", {{"format", {{"type", "json_schema"}}}}}}, "text.format.schema");
  refused(
      {{"text", {{"format", {{"type", "json_schema"}, {"schema", {{"enum", json::array()}}}}}}}},
      "text.format.schema");
  refused({{"text", {{"x", 1}}}}, "text.x");
  refused({{"include", {"x"}}}, "include[0]", "unsupported");
  refused({{"max_output_tokens", 0}}, "max_output_tokens");
  refused({{"top_logprobs", 1}}, "top_logprobs");
  refused({{"stream", "x"}}, "stream");
  refused({{"n", 2}}, "n", "unknown_parameter");
  EXPECT_TRUE(generator_->requests().empty());
}

TEST_F(ResponsesServiceTest, FailureEndsTheStreamWithAFailedResponse) {
  Script script{Spelled("abc")};
  script.failure = Error{ErrorCode::kNumeric, "NaN"};
  generator_->Play(std::vector<Script>{script});
  EXPECT_EQ(Ask(kPath, {{"input", "hi"}}, 500)["error"]["code"], "numeric_error");
  const auto events = ReadStream(Post(kPath, {{"input", "hi"}, {"stream", true}}));
  const json last = json::parse(events.back().data);
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["status"], "failed");
  EXPECT_EQ(last["response"]["error"]["code"], "numeric_error");
}

}  // namespace
}  // namespace megalith::serve
