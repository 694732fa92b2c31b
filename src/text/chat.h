#pragma once

// A conversation and what a request asks of its next turn, as plain data.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/json_value.h"

namespace megalith::text {

enum class Role { kSystem, kUser, kAssistant, kTool };

/// "system", "user", "assistant", "tool".
std::string_view RoleName(Role role);

struct ToolCall {
  std::string id;         ///< any form; empty if there is none
  std::string name;       ///< of the function
  std::string arguments;  ///< JSON text, kept as it came; blank means no arguments
  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

struct Message {
  Role role = Role::kUser;
  /// Text parts in order. None at all, and one empty part, both mean empty content.
  std::vector<std::string> content;
  /// user, system: participant's name, put into the message's attributes if not empty.
  /// tool: a tool name to fall back on.
  std::string name;
  std::string reasoning;             ///< assistant: earlier thinking, sent back
  std::vector<ToolCall> tool_calls;  ///< assistant
  std::string tool_call_id;          ///< tool: id of the call this is the result of
  std::string tool;                  ///< tool: the tool's name, if the client gave it
  /// system: array of tools that become available here; if not empty, content is ignored.
  JsonValue tools;

  static Message System(std::string text) { return WithText(Role::kSystem, std::move(text)); }
  static Message User(std::string text) { return WithText(Role::kUser, std::move(text)); }
  static Message Assistant(std::string text, std::string thinking = "") {
    Message message = WithText(Role::kAssistant, std::move(text));
    message.reasoning = std::move(thinking);
    return message;
  }
  static Message ToolResult(std::string call_id, std::string text) {
    Message message = WithText(Role::kTool, std::move(text));
    message.tool_call_id = std::move(call_id);
    return message;
  }

  friend bool operator==(const Message&, const Message&) = default;

 private:
  static Message WithText(Role role, std::string text) {
    Message message;
    message.role = role;
    message.content.push_back(std::move(text));
    return message;
  }
};

using Conversation = std::vector<Message>;

/// How much the model is told to think. kOmitted: the prompt says nothing about it.
enum class Effort { kOmitted, kLow, kHigh, kMax };

enum class ToolChoice {
  kAuto,
  kNone,
  kRequired,
  kFunction,  ///< one function by name; adds nothing to the prompt
};

enum class ResponseFormat { kText, kJsonObject, kJsonSchema };

/// Where a request holds what a conversation and its options were read from, for the messages of
/// errors. The defaults are the chat API's.
struct MemberPaths {
  std::vector<std::string> messages;  ///< of each message; those beyond: messages[i]
  /// Of the schema of each tool's arguments; those beyond: tools[i].function.parameters.
  std::vector<std::string> parameters;
  std::string response_schema = "response_format.json_schema.schema";
};

struct ChatOptions {
  bool thinking = true;  ///< off: instruct mode, no think element anywhere
  Effort effort = Effort::kMax;
  /// Array of OpenAI tool objects; null or empty: none.
  JsonValue tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_choice_function;  ///< for kFunction
  ResponseFormat response_format = ResponseFormat::kText;
  JsonValue response_schema;  ///< for kJsonSchema: the schema itself
  /// Off: earlier reasoning is left out (an empty think element stays). The model expects it, and
  /// reuse of a cached prefix ends where it is missing.
  bool keep_reasoning = true;
  /// A content made of several text parts is tokenized part by part, as the reference does, so its
  /// ids may differ from those of the joined text at the seams. On: parts are joined first.
  bool join_text_parts = false;
  /// Off: ends after the last message instead of opening the assistant's turn.
  bool generation_prefix = true;
  MemberPaths paths;
};

}  // namespace megalith::text
