#pragma once

// What a request asks of the form of a reply.

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/chat.h"
#include "text/json_value.h"

namespace megalith::text::grammar {

/// A function that may be called.
struct ReplyTool {
  std::string name;
  /// Schema of the arguments' object; null: it takes none.
  JsonValue parameters;
  std::string path;  ///< of `parameters`, for messages
  /// A schema that cannot be enforced is an error; otherwise the arguments of this function are
  /// then bound only to the format.
  bool strict = false;
};

struct ReplyFormat {
  /// The whole answer is JSON text that satisfies this schema; empty: any text.
  std::optional<JsonValue> content_schema;
  std::string content_path;  ///< of the schema, for messages

  enum class Calls {
    kForbidden,
    kAllowed,
    kRequired,  ///< at least one
    kOnly,      ///< exactly one, and no answer beside it
  };
  Calls calls = Calls::kForbidden;
  std::vector<ReplyTool> tools;     ///< those that may be called
  bool parallel_tool_calls = true;  ///< off: at most one call

  /// Reasoning is never restricted, and so it may also end the reply without an answer. Off: within
  /// the reasoning all ordinary tokens may come and those that begin its end, but not those that
  /// end the reply at once.
  bool free_reasoning = false;
};

/// What these options ask for; empty if the reply needs no restriction: text without tools, or
/// tools that may be called freely, none of them strict. `parallel_tool_calls`: the request's
/// member of that name. REQUIRES options as ParseChatOptions makes them.
std::optional<ReplyFormat> FindReplyFormat(const ChatOptions& options,
                                           bool parallel_tool_calls = true);

}  // namespace megalith::text::grammar
