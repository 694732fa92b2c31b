#include "serve/api/messages_call.h"

#include <limits>

#include "serve/api/json_build.h"
#include "text/openai_chat.h"

namespace megalith::serve {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

// Budgets in tokens below which thinking is asked to be low, or high rather than max.
constexpr std::int64_t kLowBudget = 4096;
constexpr std::int64_t kHighBudget = 16384;

tl::unexpected<Error> UnsupportedBlock(const std::string& path, const std::string& type) {
  return Fail(ErrorCode::kUnsupported,
              "{}.type: \"{}\" is not supported here: this model reads text", path,
              type.substr(0, 64));
}

// A string, or a list of blocks of type text. Members beside type and text (cache_control) mean
// nothing here.
Result<std::vector<std::string>> ReadTexts(const JsonValue& value, const std::string& path) {
  if (value.is_string()) return std::vector<std::string>{value.text()};
  if (!value.is_array()) {
    return Fail(ErrorCode::kUsage, "{}: string or array of blocks expected, {} found", path,
                Describe(value));
  }
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < value.items().size(); ++i) {
    const std::string block_path = fmt::format("{}[{}]", path, i);
    MEGALITH_ASSIGN_OR_RETURN(ObjectReader block,
                              ObjectReader::Create(value.items()[i], block_path));
    MEGALITH_ASSIGN_OR_RETURN(const std::string type, block.RequireString("type"));
    if (type != "text") return UnsupportedBlock(block_path, type);
    MEGALITH_ASSIGN_OR_RETURN(std::string text, block.RequireString("text"));
    texts.push_back(std::move(text));
  }
  return texts;
}

Result<text::Message> ReadToolResult(ObjectReader& block) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string id, block.RequireString("tool_use_id"));
  text::Message message = text::Message::ToolResult(id, "");
  if (const JsonValue* content = block.Find("content"); content != nullptr) {
    MEGALITH_ASSIGN_OR_RETURN(message.content, ReadTexts(*content, block.PathOf("content")));
  }
  bool is_error = false;
  MEGALITH_RETURN_IF_ERROR(block.Boolean("is_error", is_error));
  // The model's format has no mark for it.
  if (is_error) message.content.insert(message.content.begin(), "Error: ");
  return message;
}

Result<text::ToolCall> ReadToolUse(ObjectReader& block) {
  text::ToolCall call;
  MEGALITH_ASSIGN_OR_RETURN(call.id, block.RequireString("id"));
  MEGALITH_ASSIGN_OR_RETURN(call.name, block.RequireString("name"));
  if (call.name.empty()) {
    return Fail(ErrorCode::kUsage, "{}: a name expected, an empty string found",
                block.PathOf("name"));
  }
  MEGALITH_ASSIGN_OR_RETURN(const JsonValue* input, block.Require("input", "object"));
  if (!input->is_object()) {
    return Fail(ErrorCode::kUsage, "{}: object expected, {} found", block.PathOf("input"),
                Describe(*input));
  }
  call.arguments = WritePythonJson(*input);
  return call;
}

// Blocks of a user's message: results of tools are messages of their own, texts between them too.
Status ReadUserBlocks(const JsonValue& blocks, const std::string& path, MessageList& messages) {
  text::Message user = text::Message::User("");
  user.content.clear();
  const auto flush = [&] {
    if (!user.content.empty()) messages.Add(user, path);
    user.content.clear();
  };
  for (std::size_t i = 0; i < blocks.items().size(); ++i) {
    const std::string block_path = fmt::format("{}[{}]", path, i);
    MEGALITH_ASSIGN_OR_RETURN(ObjectReader block,
                              ObjectReader::Create(blocks.items()[i], block_path));
    MEGALITH_ASSIGN_OR_RETURN(const std::string type, block.RequireString("type"));
    if (type == "text") {
      MEGALITH_ASSIGN_OR_RETURN(std::string text, block.RequireString("text"));
      user.content.push_back(std::move(text));
    } else if (type == "tool_result") {
      flush();
      MEGALITH_ASSIGN_OR_RETURN(text::Message result, ReadToolResult(block));
      messages.Add(std::move(result), block_path);
    } else {
      return UnsupportedBlock(block_path, type);
    }
  }
  if (!user.content.empty() || blocks.items().empty()) messages.Add(user, path);
  return {};
}

Status ReadAssistantBlocks(const JsonValue& blocks, const std::string& path,
                           MessageList& messages) {
  text::Message message = text::Message::Assistant("");
  message.content.clear();
  for (std::size_t i = 0; i < blocks.items().size(); ++i) {
    const std::string block_path = fmt::format("{}[{}]", path, i);
    MEGALITH_ASSIGN_OR_RETURN(ObjectReader block,
                              ObjectReader::Create(blocks.items()[i], block_path));
    MEGALITH_ASSIGN_OR_RETURN(const std::string type, block.RequireString("type"));
    if (type == "text") {
      MEGALITH_ASSIGN_OR_RETURN(std::string text, block.RequireString("text"));
      message.content.push_back(std::move(text));
    } else if (type == "thinking") {
      MEGALITH_ASSIGN_OR_RETURN(const std::string text, block.RequireString("thinking"));
      message.reasoning += text;
    } else if (type == "tool_use") {
      MEGALITH_ASSIGN_OR_RETURN(text::ToolCall call, ReadToolUse(block));
      message.tool_calls.push_back(std::move(call));
    } else if (type != "redacted_thinking") {  // another model's, unreadable
      return UnsupportedBlock(block_path, type);
    }
  }
  messages.Add(std::move(message), path);
  return {};
}

Status ReadMessage(const JsonValue& json, const std::string& path, MessageList& messages) {
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(json, path));
  MEGALITH_ASSIGN_OR_RETURN(const std::string role, reader.RequireString("role"));
  MEGALITH_ASSIGN_OR_RETURN(const JsonValue* content,
                            reader.Require("content", "string or array of blocks"));
  const std::string content_path = reader.PathOf("content");
  if (role != "user" && role != "assistant" && role != "system") {
    return Fail(ErrorCode::kUsage, "{}: user, assistant or system expected, \"{}\" found",
                reader.PathOf("role"), role.substr(0, 64));
  }
  if (content->is_array() && role == "user") {
    return ReadUserBlocks(*content, content_path, messages);
  }
  if (content->is_array() && role == "assistant") {
    return ReadAssistantBlocks(*content, content_path, messages);
  }
  MEGALITH_ASSIGN_OR_RETURN(std::vector<std::string> texts, ReadTexts(*content, content_path));
  text::Message message;
  message.role = role == "user"        ? text::Role::kUser
                 : role == "assistant" ? text::Role::kAssistant
                                       : text::Role::kSystem;
  message.content = std::move(texts);
  messages.Add(std::move(message), path);
  return {};
}

Status ReadConversation(ObjectReader& reader, MessageList& list) {
  if (const JsonValue* system = reader.Find("system"); system != nullptr) {
    text::Message message = text::Message::System("");
    MEGALITH_ASSIGN_OR_RETURN(message.content, ReadTexts(*system, "system"));
    if (!message.content.empty()) list.Add(std::move(message), "system");
  }
  MEGALITH_ASSIGN_OR_RETURN(const JsonValue* messages,
                            reader.Require("messages", "array of at least one message"));
  if (!messages->is_array() || messages->items().empty()) {
    return Fail(ErrorCode::kUsage, "messages: array of at least one message expected, {} found",
                messages->is_array() ? "an empty one" : Describe(*messages));
  }
  for (std::size_t i = 0; i < messages->items().size(); ++i) {
    MEGALITH_RETURN_IF_ERROR(
        ReadMessage(messages->items()[i], fmt::format("messages[{}]", i), list));
  }
  return {};
}

// In OpenAI's form, which is the one the model knows.
Result<JsonValue> ReadTool(const JsonValue& json, const std::string& path) {
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(json, path));
  std::string type = "custom";
  MEGALITH_RETURN_IF_ERROR(reader.String("type", type));
  if (type != "custom") {
    return Fail(ErrorCode::kUnsupported, "{}: \"custom\" expected, \"{}\" found",
                reader.PathOf("type"), type.substr(0, 64));
  }
  MEGALITH_ASSIGN_OR_RETURN(const std::string name, reader.RequireString("name"));
  if (name.empty()) {
    return Fail(ErrorCode::kUsage, "{}: a name expected, an empty string found",
                reader.PathOf("name"));
  }
  std::vector<JsonMember> function = {{"name", Json(name)}};
  std::optional<std::string> description;
  MEGALITH_RETURN_IF_ERROR(reader.String("description", description));
  if (description) function.push_back({"description", Json(*description)});
  MEGALITH_ASSIGN_OR_RETURN(const JsonValue* schema, reader.Require("input_schema", "object"));
  if (!schema->is_object()) {
    return Fail(ErrorCode::kUsage, "{}: object expected, {} found", reader.PathOf("input_schema"),
                Describe(*schema));
  }
  MEGALITH_RETURN_IF_ERROR(text::CheckFunction(json, path, "input_schema"));
  function.push_back({"parameters", *schema});
  return JsonObject({{"type", Json("function")}, {"function", JsonObject(std::move(function))}});
}

Status ReadTools(ObjectReader& reader, text::ChatOptions& options) {
  const JsonValue* tools = reader.Find("tools");
  if (tools == nullptr) return {};
  MEGALITH_RETURN_IF_ERROR(CheckArray(*tools, "tools"));
  std::vector<JsonValue> items;
  text::ToolNames names;
  for (std::size_t i = 0; i < tools->items().size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    MEGALITH_ASSIGN_OR_RETURN(JsonValue tool, ReadTool(tools->items()[i], path));
    const std::string& name = tool.Find("function")->Find("name")->text();
    MEGALITH_RETURN_IF_ERROR(names.Add(name, path + ".name"));
    items.push_back(std::move(tool));
    options.paths.parameters.push_back(path + ".input_schema");
  }
  options.tools = JsonArray(std::move(items));
  return {};
}

Status ReadToolChoice(ObjectReader& reader, ChatCall& call) {
  const JsonValue* value = reader.Find("tool_choice");
  if (value == nullptr) return {};
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader choice, ObjectReader::Create(*value, "tool_choice"));
  MEGALITH_ASSIGN_OR_RETURN(const std::string type, choice.RequireString("type"));
  text::ChatOptions& options = call.options;
  if (type == "auto") {
    options.tool_choice = text::ToolChoice::kAuto;
  } else if (type == "none") {
    options.tool_choice = text::ToolChoice::kNone;
  } else if (type == "any") {
    options.tool_choice = text::ToolChoice::kRequired;
  } else if (type == "tool") {
    options.tool_choice = text::ToolChoice::kFunction;
    MEGALITH_ASSIGN_OR_RETURN(options.tool_choice_function, choice.RequireString("name"));
  } else {
    return Fail(ErrorCode::kUsage,
                "tool_choice.type: auto, any, tool or none expected, \"{}\" found",
                type.substr(0, 64));
  }
  MEGALITH_RETURN_IF_ERROR(CheckToolChoice(options, "tool_choice"));
  bool no_parallel = false;
  MEGALITH_RETURN_IF_ERROR(choice.Boolean("disable_parallel_tool_use", no_parallel));
  call.parallel_tool_calls = !no_parallel;
  return {};
}

// Off unless asked for, as clients of this API expect.
Status ReadThinking(ObjectReader& reader, text::ChatOptions& options) {
  options.thinking = false;
  const JsonValue* value = reader.Find("thinking");
  if (value == nullptr) return {};
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader thinking, ObjectReader::Create(*value, "thinking"));
  MEGALITH_ASSIGN_OR_RETURN(const std::string type, thinking.RequireString("type"));
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return Fail(ErrorCode::kUsage,
                "thinking.type: enabled, disabled or adaptive expected, \"{}\" found",
                type.substr(0, 64));
  }
  options.thinking = type != "disabled";
  std::optional<std::int64_t> budget;
  MEGALITH_RETURN_IF_ERROR(thinking.Integer("budget_tokens", {1, kMaxInt64}, budget));
  if (budget) {
    options.effort = *budget < kLowBudget    ? text::Effort::kLow
                     : *budget < kHighBudget ? text::Effort::kHigh
                                             : text::Effort::kMax;
  }
  return {};
}

Status ReadOutputConfig(ObjectReader& reader, text::ChatOptions& options) {
  const JsonValue* value = reader.Find("output_config");
  if (value == nullptr) return {};
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader config, ObjectReader::Create(*value, "output_config"));
  std::optional<std::string> effort;
  MEGALITH_RETURN_IF_ERROR(config.String("effort", effort));
  if (effort) {
    MEGALITH_ASSIGN_OR_RETURN(options.effort, ReadEffort(*effort, "output_config.effort"));
  }
  if (const auto unread = config.Unread(); !unread.empty()) {
    return Fail(ErrorCode::kUnsupported, "{}: not supported; effort is",
                config.PathOf(unread.front().substr(0, 64)));
  }
  return {};
}

}  // namespace

Result<ChatCall> ReadMessagesCall(const text::JsonValue& body, const text::Tokenizer& tokenizer) {
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(body, ""));
  ChatCall call;
  MEGALITH_RETURN_IF_ERROR(reader.String("model", call.model));
  MessageList messages(call);
  MEGALITH_RETURN_IF_ERROR(ReadConversation(reader, messages));
  MEGALITH_RETURN_IF_ERROR(ReadTools(reader, call.options));
  MEGALITH_RETURN_IF_ERROR(ReadToolChoice(reader, call));
  MEGALITH_RETURN_IF_ERROR(ReadThinking(reader, call.options));
  MEGALITH_RETURN_IF_ERROR(ReadOutputConfig(reader, call.options));
  GenerationFields& generation = call.generation;
  MEGALITH_RETURN_IF_ERROR(reader.Integer("max_tokens", {1, kMaxTokens}, generation.max_tokens));
  MEGALITH_RETURN_IF_ERROR(ReadSampling(reader, tokenizer, generation));
  if (const JsonValue* stops = reader.Find("stop_sequences"); stops != nullptr) {
    MEGALITH_RETURN_IF_ERROR(CheckArray(*stops, "stop_sequences"));
    MEGALITH_ASSIGN_OR_RETURN(generation.stop, ReadStops(*stops, "stop_sequences"));
  }
  MEGALITH_RETURN_IF_ERROR(reader.Boolean("stream", generation.stream));
  call.unread = reader.Unread();
  return call;
}

}  // namespace megalith::serve
