#include "serve/api/chat_call.h"

#include <algorithm>
#include <limits>

#include "text/openai_chat.h"

namespace megalith::serve {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxTopLogprobs = 20;

Status ReadMaxTokens(ObjectReader& reader, GenerationFields& fields) {
  MEGALITH_RETURN_IF_ERROR(reader.Integer("max_tokens", {1, kMaxTokens}, fields.max_tokens));
  // The newer name wins if a client sends both.
  return reader.Integer("max_completion_tokens", {1, kMaxTokens}, fields.max_tokens);
}

Status ReadLogprobs(ObjectReader& reader, ChatCall& call) {
  bool logprobs = false;
  std::optional<std::int64_t> top;
  MEGALITH_RETURN_IF_ERROR(reader.Boolean("logprobs", logprobs));
  MEGALITH_RETURN_IF_ERROR(reader.Integer("top_logprobs", {0, kMaxTopLogprobs}, top));
  if (top.value_or(0) > 0 && !logprobs) {
    return Fail(ErrorCode::kUsage, "top_logprobs: expected only together with logprobs: true");
  }
  if (logprobs) call.num_logprobs = static_cast<std::int32_t>(top.value_or(0));
  return {};
}

Status ReadModalities(ObjectReader& reader) {
  const text::JsonValue* modalities = reader.Find("modalities");
  if (modalities == nullptr) return {};
  MEGALITH_RETURN_IF_ERROR(CheckArray(*modalities, "modalities"));
  for (const text::JsonValue& item : modalities->items()) {
    MEGALITH_ASSIGN_OR_RETURN(const std::string name, ReadString(item, "modalities"));
    if (name != "text") {
      return Fail(ErrorCode::kUnsupported, "modalities: this model writes text only");
    }
  }
  return {};
}

// The template's own switches, as other servers pass them.
Status ReadTemplateArguments(ObjectReader& reader, text::ChatOptions& options) {
  const text::JsonValue* value = reader.Find("chat_template_kwargs");
  if (value == nullptr) return {};
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader arguments,
                            ObjectReader::Create(*value, "chat_template_kwargs"));
  MEGALITH_RETURN_IF_ERROR(arguments.Boolean("thinking", options.thinking));
  MEGALITH_RETURN_IF_ERROR(arguments.Boolean("enable_thinking", options.thinking));
  MEGALITH_RETURN_IF_ERROR(arguments.Boolean("preserve_thinking", options.keep_reasoning));
  for (const char* key : {"thinking_effort", "reasoning_effort"}) {
    std::optional<std::string> effort;
    MEGALITH_RETURN_IF_ERROR(arguments.String(key, effort));
    if (!effort) continue;
    MEGALITH_ASSIGN_OR_RETURN(options.effort, ReadEffort(*effort, arguments.PathOf(key)));
  }
  if (const auto unread = arguments.Unread(); !unread.empty()) {
    return Fail(ErrorCode::kUsage,
                "{}: thinking, enable_thinking, preserve_thinking, thinking_effort or "
                "reasoning_effort expected",
                arguments.PathOf(unread.front().substr(0, 64)));
  }
  return {};
}

// All that shapes the prompt behind the messages. text::ParseChatOptions reads the members that are
// part of the model's format; effort has further spellings here.
Status ReadChatOptions(ObjectReader& reader, const text::JsonValue& body,
                       text::ChatOptions& options) {
  std::vector<text::JsonMember> members;
  for (const text::JsonMember& member : body.members()) {
    if (member.key != "reasoning_effort") members.push_back(member);
  }
  text::ChatRequestRules rules;
  rules.medium_effort_is_high = true;
  MEGALITH_ASSIGN_OR_RETURN(
      options, text::ParseChatOptions(text::JsonValue::Object(std::move(members)), rules));
  for (const char* key : {"tools", "tool_choice", "response_format", "thinking"}) reader.Find(key);
  std::optional<std::string> effort;
  MEGALITH_RETURN_IF_ERROR(reader.String("reasoning_effort", effort));
  if (effort) {
    MEGALITH_ASSIGN_OR_RETURN(options.effort, ReadEffort(*effort, "reasoning_effort"));
  }
  return ReadTemplateArguments(reader, options);
}

}  // namespace

Result<text::Effort> ReadEffort(const std::string& effort, std::string_view path) {
  if (effort == "minimal") return text::Effort::kLow;
  if (effort == "medium") return text::Effort::kHigh;
  if (effort == "xhigh") return text::Effort::kMax;
  auto parsed = text::ParseEffort(effort);
  if (!parsed) {
    return Fail(ErrorCode::kUsage,
                "{}: none, minimal, low, medium, high, xhigh or max expected, \"{}\" found", path,
                effort.substr(0, 32));
  }
  return parsed;
}

Status CheckToolChoice(const text::ChatOptions& options, std::string_view path) {
  const auto& tools = options.tools.items();
  if (options.tool_choice == text::ToolChoice::kRequired && tools.empty()) {
    return Fail(ErrorCode::kUsage, "{}: a choice that needs tools, none found", path);
  }
  if (options.tool_choice != text::ToolChoice::kFunction) return {};
  const std::string& name = options.tool_choice_function;
  const bool known = std::any_of(tools.begin(), tools.end(), [&name](const text::JsonValue& tool) {
    return tool.Find("function")->Find("name")->text() == name;
  });
  if (known) return {};
  return Fail(ErrorCode::kUsage, "{}: the name of one of tools expected, \"{}\" found", path,
              name.substr(0, 64));
}

Result<ChatCall> ReadChatCompletion(const text::JsonValue& body, const text::Tokenizer& tokenizer,
                                    const GenerationDefaults& defaults) {
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(body, ""));
  ChatCall call;
  MEGALITH_RETURN_IF_ERROR(reader.String("model", call.model));
  MEGALITH_ASSIGN_OR_RETURN(const text::JsonValue* messages,
                            reader.Require("messages", "array of at least one message"));
  MEGALITH_ASSIGN_OR_RETURN(call.conversation, text::ParseMessages(*messages));
  MEGALITH_RETURN_IF_ERROR(ReadChatOptions(reader, body, call.options));
  MEGALITH_RETURN_IF_ERROR(ReadGenerationFields(reader, tokenizer, defaults, call.generation));
  MEGALITH_RETURN_IF_ERROR(ReadMaxTokens(reader, call.generation));
  MEGALITH_RETURN_IF_ERROR(ReadLogprobs(reader, call));
  MEGALITH_RETURN_IF_ERROR(reader.Boolean("parallel_tool_calls", call.parallel_tool_calls));
  MEGALITH_RETURN_IF_ERROR(ReadModalities(reader));
  call.unread = reader.Unread();
  return call;
}

}  // namespace megalith::serve
