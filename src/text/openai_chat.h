#pragma once

// OpenAI-style request JSON into a Conversation and ChatOptions. Every error names the member it is
// about ("messages[2].content[0].type: ..."): kUsage for what no client should send, kUnsupported
// for what exists elsewhere but not here (images, other kinds of tools).

#include <set>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/chat.h"

namespace megalith::text {

/// The `messages` array. Roles system, developer (taken as system), user, assistant, tool; any
/// order, any repetition. `content`: a string or an array of parts {"type":"text","text":...};
/// for assistant and tool messages also null or absent, which is the same as empty. Assistant:
/// `reasoning_content` or, if that is absent or empty, `reasoning`; `tool_calls`, whose
/// `arguments` may be a JSON text, an object, null or absent. Tool: `tool_call_id` or `id`, `tool`,
/// `name`. System: `tools`. Other members are ignored.
Result<Conversation> ParseMessages(const JsonValue& messages);

/// What servers decide for themselves about a request's chat options.
struct ChatRequestRules {
  ChatOptions defaults;
  /// The format's text names an effort `medium` that its encoder refuses: on, it means high.
  bool medium_effort_is_high = false;
};

/// The members of a request that change the prompt: `tools`, `tool_choice`, `response_format`,
/// `reasoning_effort`, and `thinking` ({"type": "enabled"|"disabled", "effort", "keep"}). Absent
/// and null ones keep the defaults.
Result<ChatOptions> ParseChatOptions(const JsonValue& request, const ChatRequestRules& rules = {});

/// What may stand beside the name of a function: `description` a string, `strict` a boolean, and
/// under `parameters_key` the schema of an object. `path`: of `function`. kUsage.
Status CheckFunction(const JsonValue& function, std::string_view path,
                     std::string_view parameters_key = "parameters");

/// The names of a request's tools, each of which may come once.
class ToolNames {
 public:
  /// kUsage, beginning with `path`, if the name has come before.
  Status Add(const std::string& name, std::string_view path);

 private:
  std::set<std::string> names_;
};

/// "low", "high", "max"; "" and "none" for kOmitted. Everything else, "medium" included, is kUsage.
Result<Effort> ParseEffort(std::string_view effort);

}  // namespace megalith::text
