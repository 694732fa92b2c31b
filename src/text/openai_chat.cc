#include "text/openai_chat.h"

#include <algorithm>

namespace megalith::text {
namespace {

// A member that is absent or null.
bool IsMissing(const JsonValue* value) { return value == nullptr || value->is_null(); }

std::string_view FoundName(const JsonValue* value) {
  return value == nullptr ? "nothing" : JsonKindName(value->kind());
}

// Absent or null: empty.
Result<std::string> ReadOptionalString(const JsonValue& object, std::string_view key,
                                       std::string_view path) {
  const JsonValue* value = object.Find(key);
  if (IsMissing(value)) return std::string();
  if (!value->is_string()) {
    return Fail(ErrorCode::kUsage, "{}.{}: string expected, {} found", path, key, FoundName(value));
  }
  return value->text();
}

Status CheckOptionalBoolean(const JsonValue& object, std::string_view key, std::string_view path) {
  const JsonValue* value = object.Find(key);
  if (IsMissing(value) || value->is_boolean()) return {};
  return Fail(ErrorCode::kUsage, "{}.{}: boolean expected, {} found", path, key, FoundName(value));
}

Result<std::string> ReadName(const JsonValue& object, std::string_view key, std::string_view path) {
  const JsonValue* value = object.Find(key);
  if (value == nullptr || !value->is_string() || value->text().empty()) {
    return Fail(ErrorCode::kUsage, "{}.{}: non-empty string expected, {} found", path, key,
                value != nullptr && value->is_string() ? "an empty one" : FoundName(value));
  }
  return value->text();
}

Status CheckObject(const JsonValue& value, std::string_view path) {
  if (value.is_object()) return {};
  return Fail(ErrorCode::kUsage, "{}: object expected, {} found", path, JsonKindName(value.kind()));
}

Result<std::vector<std::string>> ReadParts(const JsonValue& parts, std::string_view path) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < parts.items().size(); ++i) {
    const JsonValue& part = parts.items()[i];
    const std::string part_path = fmt::format("{}[{}]", path, i);
    MEGALITH_RETURN_IF_ERROR(CheckObject(part, part_path));
    MEGALITH_ASSIGN_OR_RETURN(const std::string type, ReadName(part, "type", part_path));
    if (type != "text") {
      return Fail(ErrorCode::kUnsupported,
                  "{}.type: \"text\" expected, \"{}\" found: this model "
                  "reads text only",
                  part_path, type);
    }
    const JsonValue* text = part.Find("text");
    if (text == nullptr || !text->is_string()) {
      return Fail(ErrorCode::kUsage, "{}.text: string expected, {} found", part_path,
                  FoundName(text));
    }
    texts.push_back(text->text());
  }
  return texts;
}

Result<std::vector<std::string>> ReadContent(const JsonValue& message, Role role,
                                             std::string_view message_path) {
  const JsonValue* content = message.Find("content");
  const std::string path = fmt::format("{}.content", message_path);
  if (IsMissing(content)) {
    if (role == Role::kAssistant || role == Role::kTool) return std::vector<std::string>();
  } else if (content->is_string()) {
    return std::vector<std::string>{content->text()};
  } else if (content->is_array()) {
    return ReadParts(*content, path);
  }
  return Fail(ErrorCode::kUsage, "{}: string or array of parts expected, {} found", path,
              FoundName(content));
}

Result<ToolCall> ReadToolCall(const JsonValue& json, const std::string& path) {
  MEGALITH_RETURN_IF_ERROR(CheckObject(json, path));
  ToolCall call;
  MEGALITH_ASSIGN_OR_RETURN(call.id, ReadOptionalString(json, "id", path));
  MEGALITH_ASSIGN_OR_RETURN(const std::string type, ReadOptionalString(json, "type", path));
  if (!type.empty() && type != "function") {
    return Fail(ErrorCode::kUnsupported, "{}.type: \"function\" expected, \"{}\" found", path,
                type);
  }
  const std::string function_path = path + ".function";
  const JsonValue* function = json.Find("function");
  if (function == nullptr || !function->is_object()) {
    return Fail(ErrorCode::kUsage, "{}: object expected, {} found", function_path,
                FoundName(function));
  }
  MEGALITH_ASSIGN_OR_RETURN(call.name, ReadName(*function, "name", function_path));
  const JsonValue* arguments = function->Find("arguments");
  if (IsMissing(arguments)) return call;
  if (arguments->is_string()) {
    call.arguments = arguments->text();
  } else if (arguments->is_object()) {
    call.arguments = WritePythonJson(*arguments);
  } else {
    return Fail(ErrorCode::kUsage, "{}.arguments: JSON text or object expected, {} found",
                function_path, FoundName(arguments));
  }
  return call;
}

Result<std::vector<ToolCall>> ReadToolCalls(const JsonValue& message, std::string_view path) {
  std::vector<ToolCall> calls;
  const JsonValue* json = message.Find("tool_calls");
  if (IsMissing(json)) return calls;
  if (!json->is_array()) {
    return Fail(ErrorCode::kUsage, "{}.tool_calls: array expected, {} found", path,
                FoundName(json));
  }
  for (std::size_t i = 0; i < json->items().size(); ++i) {
    MEGALITH_ASSIGN_OR_RETURN(
        ToolCall call, ReadToolCall(json->items()[i], fmt::format("{}.tool_calls[{}]", path, i)));
    calls.push_back(std::move(call));
  }
  return calls;
}

Result<Role> ReadRole(const JsonValue& message, std::string_view path) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string name, ReadName(message, "role", path));
  if (name == "developer") return Role::kSystem;
  for (const Role role : {Role::kSystem, Role::kUser, Role::kAssistant, Role::kTool}) {
    if (name == RoleName(role)) return role;
  }
  return Fail(ErrorCode::kUsage,
              "{}.role: system, developer, user, assistant or tool expected, \"{}\" found", path,
              name);
}

// An array of {"type": "function", "function": {"name": ...}}; null if missing.
Result<JsonValue> ReadTools(const JsonValue* tools, std::string_view path) {
  if (IsMissing(tools)) return JsonValue();
  if (!tools->is_array()) {
    return Fail(ErrorCode::kUsage, "{}: array expected, {} found", path, FoundName(tools));
  }
  ToolNames names;
  for (std::size_t i = 0; i < tools->items().size(); ++i) {
    const JsonValue& tool = tools->items()[i];
    const std::string tool_path = fmt::format("{}[{}]", path, i);
    MEGALITH_RETURN_IF_ERROR(CheckObject(tool, tool_path));
    MEGALITH_ASSIGN_OR_RETURN(const std::string type, ReadName(tool, "type", tool_path));
    if (type != "function") {
      return Fail(ErrorCode::kUnsupported, "{}.type: \"function\" expected, \"{}\" found",
                  tool_path, type);
    }
    const JsonValue* function = tool.Find("function");
    if (function == nullptr || !function->is_object()) {
      return Fail(ErrorCode::kUsage, "{}.function: object expected, {} found", tool_path,
                  FoundName(function));
    }
    const std::string function_path = tool_path + ".function";
    MEGALITH_ASSIGN_OR_RETURN(const std::string name, ReadName(*function, "name", function_path));
    MEGALITH_RETURN_IF_ERROR(names.Add(name, function_path + ".name"));
    MEGALITH_RETURN_IF_ERROR(CheckFunction(*function, function_path));
  }
  return *tools;
}

Result<Message> ReadMessage(const JsonValue& json, const std::string& path) {
  MEGALITH_RETURN_IF_ERROR(CheckObject(json, path));
  Message message;
  MEGALITH_ASSIGN_OR_RETURN(message.role, ReadRole(json, path));
  if (message.role == Role::kSystem) {
    MEGALITH_ASSIGN_OR_RETURN(message.tools, ReadTools(json.Find("tools"), path + ".tools"));
    if (!message.tools.items().empty()) return message;
  }
  MEGALITH_ASSIGN_OR_RETURN(message.content, ReadContent(json, message.role, path));
  MEGALITH_ASSIGN_OR_RETURN(message.name, ReadOptionalString(json, "name", path));
  if (message.role == Role::kAssistant) {
    MEGALITH_ASSIGN_OR_RETURN(message.reasoning,
                              ReadOptionalString(json, "reasoning_content", path));
    if (message.reasoning.empty()) {
      MEGALITH_ASSIGN_OR_RETURN(message.reasoning, ReadOptionalString(json, "reasoning", path));
    }
    MEGALITH_ASSIGN_OR_RETURN(message.tool_calls, ReadToolCalls(json, path));
  }
  if (message.role == Role::kTool) {
    MEGALITH_ASSIGN_OR_RETURN(message.tool_call_id, ReadOptionalString(json, "tool_call_id", path));
    if (message.tool_call_id.empty()) {
      MEGALITH_ASSIGN_OR_RETURN(message.tool_call_id, ReadOptionalString(json, "id", path));
    }
    MEGALITH_ASSIGN_OR_RETURN(message.tool, ReadOptionalString(json, "tool", path));
  }
  return message;
}

Result<Effort> ReadEffort(const std::string& effort, const ChatRequestRules& rules,
                          std::string_view path) {
  if (effort == "medium" && rules.medium_effort_is_high) return Effort::kHigh;
  auto parsed = ParseEffort(effort);
  if (!parsed) return Fail(ErrorCode::kUsage, "{}: {}", path, parsed.error().message);
  return parsed;
}

// Moonshot's form: {"type": "enabled"|"disabled", "effort": ..., "keep": "all"|"none"}.
Status ReadThinking(const JsonValue& thinking, const ChatRequestRules& rules,
                    ChatOptions& options) {
  MEGALITH_RETURN_IF_ERROR(CheckObject(thinking, "thinking"));
  MEGALITH_ASSIGN_OR_RETURN(const std::string type,
                            ReadOptionalString(thinking, "type", "thinking"));
  if (type == "disabled") {
    options.thinking = false;
  } else if (type == "enabled") {
    options.thinking = true;
  } else if (!type.empty()) {
    return Fail(ErrorCode::kUsage, "thinking.type: enabled or disabled expected, \"{}\" found",
                type);
  }
  if (!IsMissing(thinking.Find("effort"))) {
    MEGALITH_ASSIGN_OR_RETURN(const std::string effort,
                              ReadOptionalString(thinking, "effort", "thinking"));
    MEGALITH_ASSIGN_OR_RETURN(options.effort, ReadEffort(effort, rules, "thinking.effort"));
  }
  MEGALITH_ASSIGN_OR_RETURN(const std::string keep,
                            ReadOptionalString(thinking, "keep", "thinking"));
  if (keep == "all" || keep == "none") {
    options.keep_reasoning = keep == "all";
  } else if (!keep.empty()) {
    return Fail(ErrorCode::kUsage, "thinking.keep: all or none expected, \"{}\" found", keep);
  }
  return {};
}

bool HasTool(const JsonValue& tools, const std::string& name) {
  return std::any_of(tools.items().begin(), tools.items().end(), [&name](const JsonValue& tool) {
    return tool.Find("function")->Find("name")->text() == name;
  });
}

bool IsObjectType(const JsonValue& type) {
  if (type.is_string()) return type.text() == "object";
  return std::any_of(type.items().begin(), type.items().end(), [](const JsonValue& item) {
    return item.is_string() && item.text() == "object";
  });
}

Status ReadToolChoice(const JsonValue& choice, ChatOptions& options) {
  if (choice.is_object()) {
    MEGALITH_ASSIGN_OR_RETURN(const std::string type, ReadName(choice, "type", "tool_choice"));
    if (type != "function") {
      return Fail(ErrorCode::kUnsupported, "tool_choice.type: \"function\" expected, \"{}\" found",
                  type);
    }
    const JsonValue* function = choice.Find("function");
    if (function == nullptr || !function->is_object()) {
      return Fail(ErrorCode::kUsage, "tool_choice.function: object expected, {} found",
                  FoundName(function));
    }
    MEGALITH_ASSIGN_OR_RETURN(options.tool_choice_function,
                              ReadName(*function, "name", "tool_choice.function"));
    if (!HasTool(options.tools, options.tool_choice_function)) {
      return Fail(ErrorCode::kUsage,
                  "tool_choice.function.name: one of tools expected, \"{}\" found",
                  options.tool_choice_function);
    }
    options.tool_choice = ToolChoice::kFunction;
    return {};
  }
  const std::string& name = choice.text();
  if (choice.is_string() && name == "auto") {
    options.tool_choice = ToolChoice::kAuto;
  } else if (choice.is_string() && name == "none") {
    options.tool_choice = ToolChoice::kNone;
  } else if (choice.is_string() && name == "required") {
    options.tool_choice = ToolChoice::kRequired;
  } else {
    return Fail(ErrorCode::kUsage,
                "tool_choice: auto, none, required or a function object expected, {} found",
                choice.is_string() ? "\"" + name + "\"" : std::string(FoundName(&choice)));
  }
  return {};
}

Status ReadResponseFormat(const JsonValue& format, ChatOptions& options) {
  MEGALITH_RETURN_IF_ERROR(CheckObject(format, "response_format"));
  MEGALITH_ASSIGN_OR_RETURN(const std::string type, ReadName(format, "type", "response_format"));
  if (type == "text") {
    options.response_format = ResponseFormat::kText;
    return {};
  }
  if (type == "json_object") {
    options.response_format = ResponseFormat::kJsonObject;
    return {};
  }
  if (type != "json_schema") {
    return Fail(ErrorCode::kUsage,
                "response_format.type: text, json_object or json_schema expected, \"{}\" found",
                type);
  }
  const JsonValue* schema = format.Find("json_schema");
  if (schema == nullptr || !schema->is_object()) {
    return Fail(ErrorCode::kUsage, "response_format.json_schema: object expected, {} found",
                FoundName(schema));
  }
  const std::string path = "response_format.json_schema";
  MEGALITH_RETURN_IF_ERROR(ReadOptionalString(*schema, "name", path));
  MEGALITH_RETURN_IF_ERROR(ReadOptionalString(*schema, "description", path));
  MEGALITH_RETURN_IF_ERROR(CheckOptionalBoolean(*schema, "strict", path));
  const JsonValue* inner = schema->Find("schema");
  if (IsMissing(inner) || !(inner->is_object() || inner->is_boolean())) {
    return Fail(ErrorCode::kUsage, "{}.schema: object expected, {} found", path,
                IsMissing(inner) ? "nothing" : FoundName(inner));
  }
  options.response_format = ResponseFormat::kJsonSchema;
  options.response_schema = *inner;
  return {};
}

}  // namespace

Status CheckFunction(const JsonValue& function, std::string_view path,
                     std::string_view parameters_key) {
  MEGALITH_RETURN_IF_ERROR(ReadOptionalString(function, "description", path));
  MEGALITH_RETURN_IF_ERROR(CheckOptionalBoolean(function, "strict", path));
  const JsonValue* parameters = function.Find(parameters_key);
  if (IsMissing(parameters)) return {};
  const std::string parameters_path = fmt::format("{}.{}", path, parameters_key);
  MEGALITH_RETURN_IF_ERROR(CheckObject(*parameters, parameters_path));
  if (const JsonValue* type = parameters->Find("type"); type != nullptr && !IsObjectType(*type)) {
    return Fail(ErrorCode::kUsage, "{}.type: \"object\" expected, {} found", parameters_path,
                type->is_string() ? "\"" + type->text().substr(0, 64) + "\""
                                  : std::string(FoundName(type)));
  }
  return {};
}

Status ToolNames::Add(const std::string& name, std::string_view path) {
  if (names_.insert(name).second) return {};
  return Fail(ErrorCode::kUsage,
              "{}: a name of its own expected, that of another tool (\"{}\") found", path,
              name.substr(0, 64));
}

Result<Effort> ParseEffort(std::string_view effort) {
  if (effort.empty() || effort == "none") return Effort::kOmitted;
  if (effort == "low") return Effort::kLow;
  if (effort == "high") return Effort::kHigh;
  if (effort == "max") return Effort::kMax;
  return Fail(ErrorCode::kUsage, "low, high or max expected, \"{}\" found", effort);
}

Result<Conversation> ParseMessages(const JsonValue& messages) {
  if (!messages.is_array() || messages.items().empty()) {
    return Fail(ErrorCode::kUsage, "messages: array of at least one message expected, {} found",
                messages.is_array() ? "an empty one" : JsonKindName(messages.kind()));
  }
  Conversation conversation;
  for (std::size_t i = 0; i < messages.items().size(); ++i) {
    MEGALITH_ASSIGN_OR_RETURN(Message message,
                              ReadMessage(messages.items()[i], fmt::format("messages[{}]", i)));
    conversation.push_back(std::move(message));
  }
  return conversation;
}

Result<ChatOptions> ParseChatOptions(const JsonValue& request, const ChatRequestRules& rules) {
  ChatOptions options = rules.defaults;
  if (!IsMissing(request.Find("tools"))) {
    MEGALITH_ASSIGN_OR_RETURN(options.tools, ReadTools(request.Find("tools"), "tools"));
  }
  if (const JsonValue* choice = request.Find("tool_choice"); !IsMissing(choice)) {
    MEGALITH_RETURN_IF_ERROR(ReadToolChoice(*choice, options));
  }
  if (options.tool_choice == ToolChoice::kRequired && options.tools.items().empty()) {
    return Fail(ErrorCode::kUsage, "tool_choice: required needs tools, none found");
  }
  if (const JsonValue* format = request.Find("response_format"); !IsMissing(format)) {
    MEGALITH_RETURN_IF_ERROR(ReadResponseFormat(*format, options));
  }
  if (const JsonValue* thinking = request.Find("thinking"); !IsMissing(thinking)) {
    MEGALITH_RETURN_IF_ERROR(ReadThinking(*thinking, rules, options));
  }
  if (!IsMissing(request.Find("reasoning_effort"))) {
    MEGALITH_ASSIGN_OR_RETURN(const std::string effort,
                              ReadOptionalString(request, "reasoning_effort", "request"));
    MEGALITH_ASSIGN_OR_RETURN(options.effort, ReadEffort(effort, rules, "reasoning_effort"));
  }
  return options;
}

}  // namespace megalith::text
