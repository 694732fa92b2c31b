#pragma once

// What a chat request's generations brought, ready to be written in any API's form.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/generator.h"
#include "serve/api/json_build.h"
#include "text/chat_parser.h"
#include "text/tokenizer.h"

namespace megalith::serve {

/// Token counts of a whole request.
struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t reasoning_tokens = 0;
};

/// {"prompt_tokens", "completion_tokens", "total_tokens", and details of both}.
JsonValue UsageJson(const Usage& usage);

/// Where the time went. Of several choices: the longest waits, all tokens.
struct Timings {
  double queue_seconds = 0.0;
  double prompt_seconds = 0.0;
  double decode_seconds = 0.0;
  std::int64_t prompt_tokens = 0;  ///< run, not cached
  std::int64_t decode_tokens = 0;  ///< but for each choice's first, which the prompt brings
  engine::DraftStatistics drafting;

  void Add(const engine::GenerationSummary& summary);
};
JsonValue TimingsJson(const Timings& timings);

/// The member prompt_progress of a stream's chunk. `seconds`: since the request arrived.
JsonValue ProgressJson(std::size_t choice, const engine::PromptProgress& progress, double seconds);

struct ChoiceResult {
  text::ChatReply reply;
  /// Logprob objects of the answer's and of the reasoning's tokens.
  std::vector<JsonValue> content_logprobs;
  std::vector<JsonValue> reasoning_logprobs;
  std::optional<std::string> matched_stop;  ///< the stop string that ended the answer
};

struct ChatResult {
  std::vector<ChoiceResult> choices;
  Usage usage;
  Timings timings;
};

/// A finite logarithm: impossible tokens have -9999.
double FiniteLogprob(float logprob);
/// {"token", "logprob", "bytes", "top_logprobs": [...]} as the chat API spells it. Bytes that are
/// no valid UTF-8 appear as U+FFFD in "token".
JsonValue ChatLogprobJson(const text::Tokenizer& tokenizer, const engine::GeneratedToken& token);

}  // namespace megalith::serve
