#pragma once

// A chat request as the service handles it. The readers of the endpoints /v1/chat/completions,
// /v1/messages and /v1/responses all produce this, so that there is one path behind them.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "serve/api/generation_fields.h"
#include "text/chat.h"

namespace megalith::serve {

struct ChatCall {
  std::string model;  ///< as the client named it; empty: the one that is served
  text::Conversation conversation;
  text::ChatOptions options;
  GenerationFields generation;
  std::optional<std::int32_t> num_logprobs;  ///< beside each token
  bool parallel_tool_calls = true;           ///< off: the answer ends with the first call
  std::vector<std::string> warnings;         ///< about what was read and has no effect
  std::vector<std::string> unread;           ///< members that the reader does not know
};

/// The messages of a call, each with the place in the request that it was read from.
class MessageList {
 public:
  /// `call` must outlive it.
  explicit MessageList(ChatCall& call)
      : conversation_(call.conversation), paths_(call.options.paths.messages) {}

  void Add(text::Message message, std::string path) {
    conversation_.push_back(std::move(message));
    paths_.push_back(std::move(path));
  }

 private:
  text::Conversation& conversation_;
  std::vector<std::string>& paths_;
};

/// The body of POST /v1/chat/completions.
Result<ChatCall> ReadChatCompletion(const text::JsonValue& body, const text::Tokenizer& tokenizer,
                                    const GenerationDefaults& defaults);

/// The spellings of reasoning_effort that others use beside low, high and max: medium means high,
/// minimal means low, xhigh means max.
Result<text::Effort> ReadEffort(const std::string& effort, std::string_view path);

/// For readers of tool choices: kUsage, beginning with `path`, if a call is asked for and there is
/// no tool, or none of that name. `options.tools` are in OpenAI's form.
Status CheckToolChoice(const text::ChatOptions& options, std::string_view path);

}  // namespace megalith::serve
