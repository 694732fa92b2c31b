#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/api/chat_format.h"
#include "serve/api/completion_call.h"
#include "serve/api/generation_job.h"
#include "text/stop_strings.h"
#include "text/stream_decoder.h"

namespace megalith::serve {

/// Answers of POST /v1/completions. Choice p * n + i is answer i to prompt p.
class CompletionJob : public GenerationJob {
 public:
  CompletionJob(std::shared_ptr<http::Exchange> exchange, JobContext context,
                const text::Tokenizer& tokenizer, const CompletionCall& call, AnswerHead head,
                std::vector<text::StopStringFilter> stop_filters,
                std::vector<text::TokenId> stop_ids);

 private:
  /// The lists of the API's logprobs object.
  struct Logprobs {
    std::vector<JsonValue> tokens;
    std::vector<JsonValue> token_logprobs;
    std::vector<JsonValue> top_logprobs;
    std::vector<JsonValue> text_offset;
  };
  struct Choice {
    text::StreamDecoder decoder;
    text::StopStringFilter stop_filter;
    std::size_t num_characters = 0;  // decoded so far, the echoed prompt included
    std::string text;                // not yet sent
    Logprobs logprobs;               // not yet sent
    std::int64_t num_tokens = 0;
    std::string finish_reason;
  };

  void OnStreamBegin() override;
  void OnPromptProgress(std::size_t idx, const engine::PromptProgress& progress) override;
  void OnPromptToken(std::size_t idx, const engine::GeneratedToken& token) override;
  bool OnToken(std::size_t idx, const engine::GeneratedToken& token) override;
  void OnFinish(std::size_t idx, const engine::GenerationSummary& summary) override;
  void OnComplete() override;
  void OnStreamError(const ApiError& error) override;

  void EchoText(Choice& choice, const std::vector<text::TokenId>& prompt);
  void AddLogprob(Choice& choice, const engine::GeneratedToken& token) const;
  bool IsStopId(text::TokenId id) const;
  JsonValue ChoiceJson(std::size_t idx, JsonValue finish_reason);
  std::vector<JsonMember> Head(JsonValue choices);
  void SendNew(std::size_t idx);

  const text::Tokenizer tokenizer_;
  const AnswerHead head_;
  const std::vector<text::TokenId> stop_ids_;
  const std::int64_t n_;
  const bool generates_;  // max_tokens > 0
  const bool logprobs_;
  const bool include_usage_;
  const bool return_progress_;
  bool warned_ = false;
  std::vector<Choice> choices_;
  Usage usage_;
  Timings timings_;
};

}  // namespace megalith::serve
