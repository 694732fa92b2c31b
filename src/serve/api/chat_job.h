#pragma once

#include <memory>
#include <vector>

#include "serve/api/chat_call.h"
#include "serve/api/chat_format.h"
#include "serve/api/generation_job.h"
#include "serve/replay.h"
#include "text/chat_parser.h"

namespace megalith::serve {

/// What a chat job is made of. The replay store outlives the job.
struct ChatJobParts {
  text::Tokenizer tokenizer;
  std::vector<text::ChatParser> parsers;  ///< one per choice
  std::unique_ptr<ChatFormat> format;
  ReplayStore* replay = nullptr;
  std::vector<std::string> stops;
  std::int64_t num_prompt_tokens = 0;
  bool stream = false;
  bool return_progress = false;
  bool logprobs = false;
  bool thinking = true;
  bool ends_with_message = true;  ///< off: only the limit or a stop string ends an answer
  bool parallel_tool_calls = true;
};

/// Generated ids of every choice through the output parser into one API's form. A stream that is
/// joined and a whole answer come from the same events.
class ChatJob : public GenerationJob {
 public:
  ChatJob(std::shared_ptr<http::Exchange> exchange, JobContext context, ChatJobParts parts);

 private:
  struct Choice {
    text::ChatParser parser;
    text::ChatReplyBuilder builder;
    std::vector<text::TokenId> ids;
    NewLogprobs new_logprobs;  // since the last event that was streamed
    std::int64_t num_reasoning_tokens = 0;
    bool call_ends_it = false;
    ChoiceResult result;
  };

  void OnStreamBegin() override;
  void OnPromptProgress(std::size_t idx, const engine::PromptProgress& progress) override;
  bool OnToken(std::size_t idx, const engine::GeneratedToken& token) override;
  void OnFinish(std::size_t idx, const engine::GenerationSummary& summary) override;
  void OnComplete() override;
  void OnStreamError(const ApiError& error) override;
  void OnPing() override;

  void TakeEvents(std::size_t idx, const std::vector<text::ChatEvent>& events);
  /// Before the token is pushed: whether it is text of this channel.
  bool IsTextOf(const Choice& choice, text::Channel channel, text::TokenId id) const;
  void CountAndScore(Choice& choice, const engine::GeneratedToken& token);
  /// The model has ended the answer, or what the request allows of it.
  bool AtEnd(const Choice& choice) const;
  /// `has_stop_id`: the last id is one.
  void KeepForReplay(const Choice& choice, bool has_stop_id, bool hit_limit);

  ChatJobParts parts_;
  std::vector<Choice> choices_;
  Usage usage_;
  Timings timings_;
};

}  // namespace megalith::serve
