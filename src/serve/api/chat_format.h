#pragma once

// How one API spells a chat answer. The job (chat_job.h) brings the same calls for every API:
// either Whole, or Begin, Delta..., ChoiceEnd for each choice, End. All on one thread at a time.

#include <memory>
#include <string>
#include <vector>

#include "serve/api/chat_result.h"
#include "serve/api/errors.h"
#include "serve/api/event_stream.h"

namespace megalith::serve {

/// What every answer of a request says about itself.
struct AnswerHead {
  std::string id;  ///< without the API's prefix
  std::string model;
  std::int64_t created = 0;  ///< seconds of Unix time
  std::int64_t num_prompt_tokens = 0;
  std::size_t num_choices = 1;
  std::vector<std::string> warnings;
};

/// Logprob objects that came since the last call for the choice.
struct NewLogprobs {
  std::vector<JsonValue> content;
  std::vector<JsonValue> reasoning;
  bool empty() const { return content.empty() && reasoning.empty(); }
};

class ChatFormat {
 public:
  virtual ~ChatFormat() = default;

  virtual JsonValue Whole(const ChatResult& result) = 0;

  virtual void Begin(EventStream& stream) = 0;
  virtual void Progress(EventStream& /*stream*/, std::size_t /*choice*/,
                        const engine::PromptProgress& /*progress*/, double /*seconds*/) {}
  virtual void Delta(EventStream& stream, std::size_t choice, const text::ChatEvent& event,
                     NewLogprobs logprobs) = 0;
  /// `logprobs`: of tokens that brought no text.
  virtual void ChoiceEnd(EventStream& stream, std::size_t choice, const ChoiceResult& result,
                         NewLogprobs logprobs) = 0;
  virtual void End(EventStream& stream, const ChatResult& result) = 0;
  virtual void Error(EventStream& stream, const ApiError& error) = 0;
  virtual void Ping(EventStream& stream) { stream.Comment("ping"); }
  virtual ErrorStyle error_style() const { return ErrorStyle::kOpenAi; }
};

struct OpenAiChatOptions {
  bool logprobs = false;
  bool include_usage = false;
};
std::unique_ptr<ChatFormat> MakeOpenAiChatFormat(AnswerHead head, OpenAiChatOptions options);

}  // namespace megalith::serve
