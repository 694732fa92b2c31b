#include "text/openai_chat.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/chat_render.h"
#include "text/json_nlohmann.h"
#include "text/text_test_util.h"

namespace megalith::text {
namespace {

JsonValue Json(std::string_view text) { return ValueOf(ParseJson(text)); }

Conversation Messages(std::string_view json) { return ValueOf(ParseMessages(Json(json))); }

std::vector<TokenId> RenderIds(std::string_view json) {
  return ValueOf(RenderChat(ReleasedTokenizer(), Messages(json))).ids;
}

Error MessagesError(std::string_view json) {
  const auto conversation = ParseMessages(Json(json));
  EXPECT_FALSE(conversation) << json;
  return conversation ? Error{ErrorCode::kInternal, ""} : conversation.error();
}

TEST(ParseMessages, EveryRoleAndField) {
  const Conversation conversation = Messages(R"([
    {"role":"developer","content":"d"},
    {"role":"system","content":"ignored","tools":[{"type":"function","function":{"name":"t"}}]},
    {"role":"user","content":[{"type":"text","text":"alpha "},{"type":"text","text":"beta"}],"name":"bob"},
    {"role":"assistant","content":null,"reasoning_content":"why","tool_calls":[
      {"id":"call_x","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},
      {"id":"functions.g:1","function":{"name":"g","arguments":{"z":1.0,"a":[1,2]}}},
      {"function":{"name":"h","arguments":null}},
      {"function":{"name":"i"}}]},
    {"role":"tool","tool_call_id":"call_x","content":[{"type":"text","text":"r"}]},
    {"role":"tool","id":"functions.g:1","tool":"g","name":"n","content":null}])");
  ASSERT_EQ(conversation.size(), 6u);
  EXPECT_EQ(conversation[0], Message::System("d"));
  EXPECT_EQ(conversation[1].tools.items().size(), 1u);
  EXPECT_EQ(conversation[2].content, (std::vector<std::string>{"alpha ", "beta"}));
  EXPECT_EQ(conversation[2].name, "bob");
  EXPECT_EQ(conversation[3].reasoning, "why");
  EXPECT_EQ(conversation[3].tool_calls,
            (std::vector<ToolCall>{{"call_x", "f", "{\"a\":1}"},
                                   {"functions.g:1", "g", "{\"z\": 1.0, \"a\": [1, 2]}"},
                                   {"", "h", ""},
                                   {"", "i", ""}}));
  EXPECT_EQ(conversation[4].tool_call_id, "call_x");
  EXPECT_EQ(conversation[5].tool_call_id, "functions.g:1");
  EXPECT_EQ(conversation[5].tool, "g");
  EXPECT_EQ(conversation[5].name, "n");
  EXPECT_TRUE(conversation[5].content.empty());
}

TEST(ParseMessages, NullAbsentAndEmptyAssistantContentAreTheSamePrompt) {
  const auto body = [](const std::string& content) {
    return R"([{"role":"user","content":"q"},{"role":"assistant",)" + content +
           R"("tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]},)"
           R"({"role":"tool","tool_call_id":"1","content":"r"}])";
  };
  const auto want = RenderIds(body(R"("content":"",)"));
  for (const char* content : {R"("content":null,)", "", R"("content":[],)"}) {
    EXPECT_EQ(RenderIds(body(content)), want) << content;
  }
}

TEST(ParseMessages, ReasoningUnderEitherName) {
  const auto reasoning = [](const std::string& members) {
    return Messages(R"([{"role":"assistant","content":"a")" + members + "}]")[0].reasoning;
  };
  EXPECT_EQ(reasoning(R"(,"reasoning_content":"x","reasoning":"y")"), "x");
  EXPECT_EQ(reasoning(R"(,"reasoning":"y")"), "y");
  EXPECT_EQ(reasoning(R"(,"reasoning_content":null,"reasoning":"y")"), "y");
  EXPECT_EQ(reasoning(R"(,"reasoning_content":"","reasoning":"y")"), "y");
  EXPECT_EQ(reasoning(R"(,"reasoning":null)"), "");
}

TEST(ParseMessages, AnyOrderOfRolesIsAnswered) {
  for (const char* roles :
       {"user,user", "system,system,user", "user,system,user", "user,assistant,system", "assistant",
        "assistant,assistant", "system"}) {
    std::string body = "[";
    for (std::string rest = std::string(roles) + ","; !rest.empty();
         rest = rest.substr(rest.find(',') + 1)) {
      body += (body.size() > 1 ? "," : "") + std::string(R"({"content":"t","role":")") +
              rest.substr(0, rest.find(',')) + "\"}";
    }
    EXPECT_FALSE(RenderIds(body + "]").empty()) << roles;
  }
}

TEST(ParseMessages, ErrorsNameTheField) {
  const struct {
    const char* json;
    ErrorCode code;
    const char* named;
  } cases[] = {
      {R"({})", ErrorCode::kUsage, "messages:"},
      {R"([])", ErrorCode::kUsage, "messages:"},
      {R"([7])", ErrorCode::kUsage, "messages[0]: object expected, number found"},
      {R"([{"content":"a"}])", ErrorCode::kUsage, "messages[0].role: "},
      {R"([{"role":"user","content":"a"},{"role":"narrator","content":"a"}])", ErrorCode::kUsage,
       "messages[1].role: system, developer, user, assistant or tool expected, \"narrator\""},
      {R"([{"role":"user"}])", ErrorCode::kUsage, "messages[0].content: "},
      {R"([{"role":"user","content":null}])", ErrorCode::kUsage, "null found"},
      {R"([{"role":"user","content":7}])", ErrorCode::kUsage, "number found"},
      {R"([{"role":"user","content":["a"]}])", ErrorCode::kUsage, "messages[0].content[0]"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", ErrorCode::kUsage,
       "messages[0].content[0].text"},
      {R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}]}])",
       ErrorCode::kUnsupported,
       "messages[0].content[1].type: \"text\" expected, \"image_url\" found"},
      {R"([{"role":"user","content":[{"text":"a"}]}])", ErrorCode::kUsage, "content[0].type"},
      {R"([{"role":"user","content":"a","name":7}])", ErrorCode::kUsage, "messages[0].name"},
      {R"([{"role":"assistant","reasoning":[]}])", ErrorCode::kUsage, "messages[0].reasoning"},
      {R"([{"role":"assistant","tool_calls":{}}])", ErrorCode::kUsage, "messages[0].tool_calls:"},
      {R"([{"role":"assistant","tool_calls":["x"]}])", ErrorCode::kUsage, "tool_calls[0]: object"},
      {R"([{"role":"assistant","tool_calls":[{"type":"custom"}]}])", ErrorCode::kUnsupported,
       "messages[0].tool_calls[0].type"},
      {R"([{"role":"assistant","tool_calls":[{}]}])", ErrorCode::kUsage, "tool_calls[0].function:"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":""}}]}])", ErrorCode::kUsage,
       "tool_calls[0].function.name"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":[1]}}]}])",
       ErrorCode::kUsage, "tool_calls[0].function.arguments"},
      {R"([{"role":"tool","content":"a","tool_call_id":7}])", ErrorCode::kUsage, "tool_call_id"},
      {R"([{"role":"system","tools":[{"type":"function"}]}])", ErrorCode::kUsage,
       "messages[0].tools[0].function"}};
  for (const auto& c : cases) {
    const Error error = MessagesError(c.json);
    EXPECT_EQ(error.code, c.code) << c.json;
    EXPECT_NE(error.message.find(c.named), std::string::npos) << c.json << ": " << error.message;
  }
}

ChatOptions Options(std::string_view json, const ChatRequestRules& rules = {}) {
  return ValueOf(ParseChatOptions(Json(json), rules));
}

TEST(ParseChatOptions, AbsentAndNullMembersKeepTheDefaults) {
  for (const char* json :
       {"{}", R"({"tools":null,"tool_choice":null,"response_format":null,"thinking":null,)"
              R"("reasoning_effort":null})"}) {
    const ChatOptions options = Options(json);
    EXPECT_TRUE(options.thinking);
    EXPECT_EQ(options.effort, Effort::kMax);
    EXPECT_TRUE(options.tools.is_null());
    EXPECT_EQ(options.tool_choice, ToolChoice::kAuto);
    EXPECT_EQ(options.response_format, ResponseFormat::kText);
  }
  ChatRequestRules rules;
  rules.defaults.thinking = false;
  EXPECT_FALSE(Options("{}", rules).thinking);
}

TEST(ParseChatOptions, EffortAndThinking) {
  EXPECT_EQ(Options(R"({"reasoning_effort":"low"})").effort, Effort::kLow);
  EXPECT_EQ(Options(R"({"reasoning_effort":"none"})").effort, Effort::kOmitted);
  EXPECT_EQ(Options(R"({"thinking":{"type":"enabled","effort":"high","keep":"all"}})").effort,
            Effort::kHigh);
  EXPECT_FALSE(Options(R"({"thinking":{"type":"disabled"}})").thinking);
  EXPECT_FALSE(Options(R"({"thinking":{"keep":"none"}})").keep_reasoning);
  ChatRequestRules rules;
  rules.medium_effort_is_high = true;
  EXPECT_EQ(Options(R"({"reasoning_effort":"medium"})", rules).effort, Effort::kHigh);
}

TEST(ParseChatOptions, ToolsChoiceAndFormat) {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  ChatOptions options = Options("{" + tools + R"(,"tool_choice":"required"})");
  EXPECT_EQ(options.tools.items().size(), 1u);
  EXPECT_EQ(options.tool_choice, ToolChoice::kRequired);
  options = Options("{" + tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}}})");
  EXPECT_EQ(options.tool_choice, ToolChoice::kFunction);
  EXPECT_EQ(options.tool_choice_function, "f");
  EXPECT_EQ(Options(R"({"response_format":{"type":"json_object"}})").response_format,
            ResponseFormat::kJsonObject);
  options =
      Options(R"({"response_format":{"type":"json_schema","json_schema":)"
              R"({"name":"x","description":null,"strict":true,"schema":{"type":"object"}}}})");
  EXPECT_EQ(options.response_format, ResponseFormat::kJsonSchema);
  EXPECT_EQ(options.response_schema, Json(R"({"type":"object"})"));
}

TEST(ParseChatOptions, ErrorsNameTheField) {
  const struct {
    const char* json;
    ErrorCode code;
    const char* named;
  } cases[] = {
      {R"({"reasoning_effort":"medium"})", ErrorCode::kUsage, "reasoning_effort: low, high or max"},
      {R"({"reasoning_effort":7})", ErrorCode::kUsage, "reasoning_effort"},
      {R"({"thinking":true})", ErrorCode::kUsage, "thinking:"},
      {R"({"thinking":{"type":"auto"}})", ErrorCode::kUsage, "thinking.type"},
      {R"({"thinking":{"effort":"huge"}})", ErrorCode::kUsage, "thinking.effort"},
      {R"({"thinking":{"keep":"some"}})", ErrorCode::kUsage, "thinking.keep"},
      {R"({"tools":{}})", ErrorCode::kUsage, "tools: array"},
      {R"({"tools":[1]})", ErrorCode::kUsage, "tools[0]"},
      {R"({"tools":[{"type":"web_search"}]})", ErrorCode::kUnsupported, "\"web_search\" found"},
      {R"({"tools":[{"type":"function","function":{}}]})", ErrorCode::kUsage,
       "tools[0].function.name"},
      {R"({"tool_choice":"maybe"})", ErrorCode::kUsage, "tool_choice"},
      {R"({"tool_choice":7})", ErrorCode::kUsage, "tool_choice"},
      {R"({"tool_choice":"required"})", ErrorCode::kUsage, "needs tools"},
      {R"({"tool_choice":{"type":"function","function":{"name":"f"}}})", ErrorCode::kUsage,
       "one of tools"},
      {R"({"tool_choice":{"type":"custom"}})", ErrorCode::kUnsupported, "tool_choice.type"},
      {R"({"response_format":"json"})", ErrorCode::kUsage, "response_format:"},
      {R"({"response_format":{"type":"xml"}})", ErrorCode::kUsage, "response_format.type"},
      {R"({"response_format":{"type":"json_schema"}})", ErrorCode::kUsage,
       "response_format.json_schema"},
      {R"({"response_format":{"type":"json_schema","json_schema":{}}})", ErrorCode::kUsage,
       "response_format.json_schema.schema: object expected, nothing found"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"name":"x"}}})",
       ErrorCode::kUsage, "response_format.json_schema.schema: object expected, nothing found"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"schema":5}}})",
       ErrorCode::kUsage, "response_format.json_schema.schema: object expected, number found"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"name":5,"schema":{}}}})",
       ErrorCode::kUsage, "response_format.json_schema.name: string"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"strict":5,"schema":{}}}})",
       ErrorCode::kUsage, "response_format.json_schema.strict: boolean"}};
  for (const auto& c : cases) {
    const auto options = ParseChatOptions(Json(c.json));
    ASSERT_FALSE(options) << c.json;
    EXPECT_EQ(options.error().code, c.code) << c.json;
    EXPECT_NE(options.error().message.find(c.named), std::string::npos)
        << c.json << ": " << options.error().message;
  }
}

TEST(FromNlohmann, SameValueAsParsing) {
  const std::string text =
      R"({"b":[1,-2,18446744073709551615,1.5,1e16,true,null,"é\n"],"a":{"z":{},"y":[]}})";
  EXPECT_EQ(ValueOf(FromNlohmann(nlohmann::ordered_json::parse(text))), Json(text));
  EXPECT_EQ(WriteCompactSortedJson(ValueOf(FromNlohmann(nlohmann::json::parse(text)))),
            WriteCompactSortedJson(Json(text)));
  EXPECT_EQ(ToNlohmann(Json(text)), nlohmann::json::parse(text));
}

TEST(FromNlohmann, DeepAndBinaryValuesAreRefused) {
  nlohmann::json json;
  for (int i = 0; i < kMaxJsonDepth + 1; ++i) json = nlohmann::json::array({json});
  EXPECT_EQ(FromNlohmann(json).error().code, ErrorCode::kOutOfRange);
  EXPECT_TRUE(FromNlohmann(json[0]));
  EXPECT_EQ(FromNlohmann(nlohmann::json::binary({1, 2})).error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace megalith::text
