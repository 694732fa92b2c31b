#include "serve/api/responses_call.h"

#include <limits>

#include "serve/api/json_build.h"
#include "text/base64.h"
#include "text/openai_chat.h"
#include "text/utf8.h"

namespace megalith::serve {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::string_view kPackedPrefix = "plain:";

// A string or a list of parts whose text counts.
Result<std::vector<std::string>> ReadParts(const JsonValue& value, const std::string& path) {
  if (value.is_string()) return std::vector<std::string>{value.text()};
  if (!value.is_array()) {
    return Fail(ErrorCode::kUsage, "{}: string or array of parts expected, {} found", path,
                Describe(value));
  }
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < value.items().size(); ++i) {
    const std::string part_path = fmt::format("{}[{}]", path, i);
    MEGALITH_ASSIGN_OR_RETURN(ObjectReader part, ObjectReader::Create(value.items()[i], part_path));
    MEGALITH_ASSIGN_OR_RETURN(const std::string type, part.RequireString("type"));
    const bool is_refusal = type == "refusal";
    if (!is_refusal && type != "input_text" && type != "output_text" && type != "text" &&
        type != "reasoning_text" && type != "summary_text") {
      return Fail(ErrorCode::kUnsupported,
                  "{}.type: \"{}\" is not supported here: this model reads text", part_path,
                  type.substr(0, 64));
    }
    MEGALITH_ASSIGN_OR_RETURN(std::string text,
                              part.RequireString(is_refusal ? "refusal" : "text"));
    texts.push_back(std::move(text));
  }
  return texts;
}

// What is no JSON at all goes back to the model as it is.
Status CheckArguments(const std::string& arguments, const std::string& path) {
  const auto json = text::ParseJson(arguments, text::JsonDialect::kPython);
  if (json && !json->is_object()) {
    return Fail(ErrorCode::kUsage, "{}: JSON object expected, {} found", path, Describe(*json));
  }
  if (!json && json.error().code == ErrorCode::kOutOfRange) {
    return Fail(ErrorCode::kOutOfRange, "{}: {}", path, json.error().message);
  }
  return {};
}

/// Items into messages: reasoning, text and calls that follow one another are one assistant turn.
class ItemReader {
 public:
  explicit ItemReader(MessageList& messages) : messages_(messages) {}

  Status Read(const JsonValue& item, const std::string& path) {
    path_ = path;
    MEGALITH_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(item, path));
    std::string type = "message";
    MEGALITH_RETURN_IF_ERROR(reader.String("type", type));
    if (type == "message") return ReadMessage(reader);
    if (type == "reasoning") return ReadReasoning(reader);
    if (type == "function_call") return ReadCall(reader);
    if (type == "function_call_output") return ReadOutput(reader);
    return Fail(ErrorCode::kUnsupported,
                "{}: message, reasoning, function_call or function_call_output expected, \"{}\" "
                "found",
                reader.PathOf("type"), type.substr(0, 64));
  }

  /// Behind the last item.
  void Flush() {
    if (has_turn_) messages_.Add(std::move(turn_), turn_path_);
    turn_ = text::Message::Assistant("");
    turn_.content.clear();
    has_turn_ = false;
  }

 private:
  Status ReadMessage(ObjectReader& reader) {
    MEGALITH_ASSIGN_OR_RETURN(const std::string role, reader.RequireString("role"));
    MEGALITH_ASSIGN_OR_RETURN(const JsonValue* content,
                              reader.Require("content", "string or array of parts"));
    MEGALITH_ASSIGN_OR_RETURN(std::vector<std::string> parts,
                              ReadParts(*content, reader.PathOf("content")));
    if (role == "assistant") {
      if (!turn_.content.empty() || !turn_.tool_calls.empty()) Flush();
      turn_.content = std::move(parts);
      BeginTurn();
      return {};
    }
    text::Message message;
    if (role == "user") {
      message.role = text::Role::kUser;
    } else if (role == "system" || role == "developer") {
      message.role = text::Role::kSystem;
    } else {
      return Fail(ErrorCode::kUsage,
                  "{}: user, assistant, system or developer expected, \"{}\" found",
                  reader.PathOf("role"), role.substr(0, 64));
    }
    message.content = std::move(parts);
    Flush();
    messages_.Add(std::move(message), path_);
    return {};
  }

  Status ReadReasoning(ObjectReader& reader) {
    std::vector<std::string> parts;
    // The text itself, else the packed one, else the summary that a client may have of another
    // server.
    if (const JsonValue* content = reader.Find("content"); content != nullptr) {
      MEGALITH_ASSIGN_OR_RETURN(parts, ReadParts(*content, reader.PathOf("content")));
    }
    std::optional<std::string> packed;
    MEGALITH_RETURN_IF_ERROR(reader.String("encrypted_content", packed));
    if (parts.empty() && packed) {
      MEGALITH_ASSIGN_OR_RETURN(std::string text,
                                UnpackReasoning(*packed, reader.PathOf("encrypted_content")));
      parts.push_back(std::move(text));
    }
    if (const JsonValue* summary = reader.Find("summary"); summary != nullptr && parts.empty()) {
      MEGALITH_ASSIGN_OR_RETURN(parts, ReadParts(*summary, reader.PathOf("summary")));
    }
    if (!turn_.content.empty() || !turn_.tool_calls.empty()) Flush();
    for (const std::string& part : parts) turn_.reasoning += part;
    BeginTurn();
    return {};
  }

  Status ReadCall(ObjectReader& reader) {
    text::ToolCall call;
    MEGALITH_ASSIGN_OR_RETURN(call.id, reader.RequireString("call_id"));
    MEGALITH_ASSIGN_OR_RETURN(call.name, reader.RequireString("name"));
    if (call.name.empty()) {
      return Fail(ErrorCode::kUsage, "{}: a name expected, an empty string found",
                  reader.PathOf("name"));
    }
    MEGALITH_ASSIGN_OR_RETURN(call.arguments, reader.RequireString("arguments"));
    MEGALITH_RETURN_IF_ERROR(CheckArguments(call.arguments, reader.PathOf("arguments")));
    turn_.tool_calls.push_back(std::move(call));
    BeginTurn();
    return {};
  }

  Status ReadOutput(ObjectReader& reader) {
    MEGALITH_ASSIGN_OR_RETURN(const std::string id, reader.RequireString("call_id"));
    MEGALITH_ASSIGN_OR_RETURN(const JsonValue* output,
                              reader.Require("output", "string or array of parts"));
    text::Message message = text::Message::ToolResult(id, "");
    MEGALITH_ASSIGN_OR_RETURN(message.content, ReadParts(*output, reader.PathOf("output")));
    Flush();
    messages_.Add(std::move(message), path_);
    return {};
  }

  void BeginTurn() {
    if (!has_turn_) turn_path_ = path_;
    has_turn_ = true;
  }

  MessageList& messages_;
  std::string path_;       // of the item that is being read
  std::string turn_path_;  // of the turn's first item
  text::Message turn_ = [] {
    text::Message message = text::Message::Assistant("");
    message.content.clear();
    return message;
  }();
  bool has_turn_ = false;
};

Status ReadInput(ObjectReader& reader, MessageList& messages) {
  std::optional<std::string> instructions;
  MEGALITH_RETURN_IF_ERROR(reader.String("instructions", instructions));
  if (instructions && !instructions->empty()) {
    messages.Add(text::Message::System(*instructions), "instructions");
  }
  MEGALITH_ASSIGN_OR_RETURN(const JsonValue* input, reader.Require("input", "text or items"));
  if (input->is_string()) {
    messages.Add(text::Message::User(input->text()), "input");
    return {};
  }
  if (!input->is_array() || input->items().empty()) {
    return Fail(ErrorCode::kUsage,
                "input: text or an array of at least one item expected, {} found",
                input->is_array() ? "an empty one" : Describe(*input));
  }
  ItemReader items(messages);
  for (std::size_t i = 0; i < input->items().size(); ++i) {
    MEGALITH_RETURN_IF_ERROR(items.Read(input->items()[i], fmt::format("input[{}]", i)));
  }
  items.Flush();
  return {};
}

// In the form of the chat API; null for a kind of tool that would run on the server.
Result<JsonValue> ReadTool(const JsonValue& json, const std::string& path,
                           std::vector<std::string>& warnings) {
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(json, path));
  MEGALITH_ASSIGN_OR_RETURN(const std::string type, reader.RequireString("type"));
  if (type != "function") {
    warnings.push_back(
        fmt::format("{}: ignored: \"{}\" is no function; the model is not told of it", path,
                    text::RepairUtf8(type.substr(0, 64))));
    return JsonValue();
  }
  MEGALITH_ASSIGN_OR_RETURN(const std::string name, reader.RequireString("name"));
  if (name.empty()) {
    return Fail(ErrorCode::kUsage, "{}: a name expected, an empty string found",
                reader.PathOf("name"));
  }
  MEGALITH_RETURN_IF_ERROR(text::CheckFunction(json, path));
  std::vector<JsonMember> function = {{"name", Json(name)}};
  for (const char* key : {"description", "parameters", "strict"}) {
    if (const JsonValue* value = reader.Find(key); value != nullptr) {
      function.push_back({key, *value});
    }
  }
  return JsonObject({{"type", Json("function")}, {"function", JsonObject(std::move(function))}});
}

Status ReadTools(ObjectReader& reader, ResponsesCall& call) {
  const JsonValue* tools = reader.Find("tools");
  call.tools = JsonArray();
  if (tools == nullptr) return {};
  MEGALITH_RETURN_IF_ERROR(CheckArray(*tools, "tools"));
  call.tools = *tools;
  std::vector<JsonValue> known;
  text::ToolNames names;
  for (std::size_t i = 0; i < tools->items().size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    MEGALITH_ASSIGN_OR_RETURN(JsonValue tool,
                              ReadTool(tools->items()[i], path, call.chat.warnings));
    if (tool.is_null()) continue;
    const std::string& name = tool.Find("function")->Find("name")->text();
    MEGALITH_RETURN_IF_ERROR(names.Add(name, path + ".name"));
    known.push_back(std::move(tool));
    call.chat.options.paths.parameters.push_back(path + ".parameters");
  }
  call.chat.options.tools = JsonArray(std::move(known));
  return {};
}

Status ReadToolChoice(ObjectReader& reader, ResponsesCall& call) {
  call.tool_choice = Json("auto");
  const JsonValue* choice = reader.Find("tool_choice");
  if (choice == nullptr) return {};
  call.tool_choice = *choice;
  text::ChatOptions& options = call.chat.options;
  if (choice->is_object()) {
    MEGALITH_ASSIGN_OR_RETURN(ObjectReader named, ObjectReader::Create(*choice, "tool_choice"));
    MEGALITH_ASSIGN_OR_RETURN(const std::string type, named.RequireString("type"));
    if (type != "function") {
      return Fail(ErrorCode::kUnsupported, "tool_choice.type: \"function\" expected, \"{}\" found",
                  type.substr(0, 64));
    }
    options.tool_choice = text::ToolChoice::kFunction;
    MEGALITH_ASSIGN_OR_RETURN(options.tool_choice_function, named.RequireString("name"));
    return CheckToolChoice(options, "tool_choice");
  }
  MEGALITH_ASSIGN_OR_RETURN(const std::string name, ReadString(*choice, "tool_choice"));
  if (name == "auto") {
    options.tool_choice = text::ToolChoice::kAuto;
  } else if (name == "none") {
    options.tool_choice = text::ToolChoice::kNone;
  } else if (name == "required") {
    options.tool_choice = text::ToolChoice::kRequired;
  } else {
    return Fail(ErrorCode::kUsage,
                "tool_choice: auto, none, required or a function object expected, \"{}\" found",
                name.substr(0, 64));
  }
  return CheckToolChoice(options, "tool_choice");
}

Status ReadReasoningOptions(ObjectReader& reader, text::ChatOptions& options) {
  const JsonValue* value = reader.Find("reasoning");
  if (value == nullptr) return {};
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader reasoning, ObjectReader::Create(*value, "reasoning"));
  std::optional<std::string> effort;
  std::optional<std::string> summary;
  MEGALITH_RETURN_IF_ERROR(reasoning.String("effort", effort));
  // The reasoning itself is given, which is more than any summary.
  MEGALITH_RETURN_IF_ERROR(reasoning.String("summary", summary));
  MEGALITH_RETURN_IF_ERROR(reasoning.String("generate_summary", summary));
  if (effort) {
    MEGALITH_ASSIGN_OR_RETURN(options.effort, ReadEffort(*effort, "reasoning.effort"));
  }
  if (const auto unread = reasoning.Unread(); !unread.empty()) {
    return Fail(ErrorCode::kUsage, "{}: effort or summary expected",
                reasoning.PathOf(unread.front().substr(0, 64)));
  }
  return {};
}

Status ReadTextOptions(ObjectReader& reader, text::ChatOptions& options) {
  const JsonValue* value = reader.Find("text");
  if (value == nullptr) return {};
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader text, ObjectReader::Create(*value, "text"));
  std::optional<std::string> verbosity;
  MEGALITH_RETURN_IF_ERROR(text.String("verbosity", verbosity));
  const JsonValue* format = text.Find("format");
  if (const auto unread = text.Unread(); !unread.empty()) {
    return Fail(ErrorCode::kUsage, "{}: format or verbosity expected",
                text.PathOf(unread.front().substr(0, 64)));
  }
  if (format == nullptr) return {};
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader form, ObjectReader::Create(*format, "text.format"));
  MEGALITH_ASSIGN_OR_RETURN(const std::string type, form.RequireString("type"));
  if (type == "json_object") {
    options.response_format = text::ResponseFormat::kJsonObject;
  } else if (type == "json_schema") {
    MEGALITH_ASSIGN_OR_RETURN(const JsonValue* schema, form.Require("schema", "object"));
    if (!schema->is_object()) {
      return Fail(ErrorCode::kUsage, "text.format.schema: object expected, {} found",
                  Describe(*schema));
    }
    options.response_format = text::ResponseFormat::kJsonSchema;
    options.response_schema = *schema;
    options.paths.response_schema = "text.format.schema";
  } else if (type != "text") {
    return Fail(ErrorCode::kUsage,
                "text.format.type: text, json_object or json_schema expected, \"{}\" found",
                type.substr(0, 64));
  }
  return {};
}

Status ReadInclude(ObjectReader& reader, ResponsesCall& call) {
  const JsonValue* include = reader.Find("include");
  if (include == nullptr) return {};
  MEGALITH_RETURN_IF_ERROR(CheckArray(*include, "include"));
  for (std::size_t i = 0; i < include->items().size(); ++i) {
    const std::string path = fmt::format("include[{}]", i);
    MEGALITH_ASSIGN_OR_RETURN(const std::string name, ReadString(include->items()[i], path));
    if (name != "reasoning.encrypted_content") {
      return Fail(ErrorCode::kUnsupported, "{}: reasoning.encrypted_content expected, \"{}\" found",
                  path, name.substr(0, 64));
    }
    call.include_encrypted_reasoning = true;
  }
  return {};
}

// Members that ask for a memory this server does not have.
Status RefuseState(ObjectReader& reader) {
  std::optional<std::string> previous;
  MEGALITH_RETURN_IF_ERROR(reader.String("previous_response_id", previous));
  if (previous) {
    return Fail(ErrorCode::kUnsupported,
                "previous_response_id: not supported: nothing is stored; send the whole "
                "conversation as input");
  }
  bool background = false;
  MEGALITH_RETURN_IF_ERROR(reader.Boolean("background", background));
  if (background) {
    return Fail(ErrorCode::kUnsupported,
                "background: not supported: nothing is stored; answers are given at once");
  }
  return {};
}

Status ReadStreamOptions(ObjectReader& reader) {
  const JsonValue* value = reader.Find("stream_options");
  if (value == nullptr) return {};
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader options, ObjectReader::Create(*value, "stream_options"));
  bool obfuscation = false;  // padding; there is none
  MEGALITH_RETURN_IF_ERROR(options.Boolean("include_obfuscation", obfuscation));
  if (const auto unread = options.Unread(); !unread.empty()) {
    return Fail(ErrorCode::kUsage, "{}: include_obfuscation expected",
                options.PathOf(unread.front().substr(0, 64)));
  }
  return {};
}

}  // namespace

std::string PackReasoning(const std::string& reasoning) {
  return std::string(kPackedPrefix) + text::EncodeBase64(reasoning);
}

Result<std::string> UnpackReasoning(const std::string& packed, std::string_view path) {
  std::string reasoning;
  if (!packed.starts_with(kPackedPrefix) ||
      !text::DecodeBase64(std::string_view(packed).substr(kPackedPrefix.size()), reasoning) ||
      text::FindInvalidUtf8(reasoning)) {
    return Fail(ErrorCode::kUsage, "{}: a text that this server made expected", path);
  }
  return reasoning;
}

Result<ResponsesCall> ReadResponsesCall(const text::JsonValue& body,
                                        const text::Tokenizer& tokenizer) {
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(body, ""));
  ResponsesCall call;
  ChatCall& chat = call.chat;
  MEGALITH_RETURN_IF_ERROR(reader.String("model", chat.model));
  MEGALITH_RETURN_IF_ERROR(RefuseState(reader));
  MessageList messages(chat);
  MEGALITH_RETURN_IF_ERROR(ReadInput(reader, messages));
  MEGALITH_RETURN_IF_ERROR(ReadTools(reader, call));
  MEGALITH_RETURN_IF_ERROR(ReadToolChoice(reader, call));
  MEGALITH_RETURN_IF_ERROR(ReadReasoningOptions(reader, chat.options));
  MEGALITH_RETURN_IF_ERROR(ReadTextOptions(reader, chat.options));
  MEGALITH_RETURN_IF_ERROR(ReadInclude(reader, call));
  MEGALITH_RETURN_IF_ERROR(
      reader.Integer("max_output_tokens", {1, kMaxTokens}, chat.generation.max_tokens));
  MEGALITH_RETURN_IF_ERROR(ReadSampling(reader, tokenizer, chat.generation));
  std::int64_t top_logprobs = 0;
  MEGALITH_RETURN_IF_ERROR(reader.Integer("top_logprobs", {0, 0}, top_logprobs));
  MEGALITH_RETURN_IF_ERROR(reader.Boolean("stream", chat.generation.stream));
  MEGALITH_RETURN_IF_ERROR(ReadStreamOptions(reader));
  MEGALITH_RETURN_IF_ERROR(reader.Boolean("parallel_tool_calls", chat.parallel_tool_calls));
  chat.unread = reader.Unread();
  return call;
}

}  // namespace megalith::serve
