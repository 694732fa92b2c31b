#include "serve/api/chat_result.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "engine/draft_report.h"
#include "text/utf8.h"

namespace megalith::serve {
namespace {

double Rate(std::int64_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

std::vector<JsonMember> LogprobMembers(const text::Tokenizer& tokenizer, text::TokenId id,
                                       float logprob) {
  const std::string_view token = tokenizer.TokenBytes(id);
  std::vector<JsonValue> bytes;
  for (const char byte : token) bytes.push_back(Json(int{static_cast<std::uint8_t>(byte)}));
  return {{"token", Json(text::RepairUtf8(token))},
          {"logprob", Json(FiniteLogprob(logprob))},
          {"bytes", JsonArray(std::move(bytes))}};
}

JsonValue DraftingJson(const engine::DraftStatistics& drafting) {
  if (!engine::CanDraft(drafting)) return JsonValue();
  std::vector<JsonMember> members;
  engine::ForEachDraftField(drafting, [&members](const char* name, const auto& value) {
    if constexpr (std::is_same_v<decltype(value), const std::vector<std::int64_t>&>) {
      std::vector<JsonValue> counts;
      for (const std::int64_t count : value) counts.push_back(Json(count));
      members.push_back({name, JsonArray(std::move(counts))});
    } else {
      members.push_back({name, Json(value)});
    }
  });
  return JsonObject(std::move(members));
}

}  // namespace

JsonValue UsageJson(const Usage& usage) {
  return JsonObject(
      {{"prompt_tokens", Json(usage.prompt_tokens)},
       {"completion_tokens", Json(usage.completion_tokens)},
       {"total_tokens", Json(usage.prompt_tokens + usage.completion_tokens)},
       {"prompt_tokens_details", JsonObject({{"cached_tokens", Json(usage.cached_tokens)}})},
       {"completion_tokens_details",
        JsonObject({{"reasoning_tokens", Json(usage.reasoning_tokens)}})}});
}

void Timings::Add(const engine::GenerationSummary& summary) {
  queue_seconds = std::max(queue_seconds, summary.queue_seconds);
  prompt_seconds = std::max(prompt_seconds, summary.prompt_seconds);
  decode_seconds = std::max(decode_seconds, summary.decode_seconds);
  prompt_tokens += static_cast<std::int64_t>(summary.prompt.total - summary.prompt.cached);
  decode_tokens += std::max<std::int64_t>(summary.generated_tokens - 1, 0);
  engine::AddTo(&drafting, summary.drafting);
}

JsonValue TimingsJson(const Timings& timings) {
  return JsonObject(
      {{"queue_seconds", Json(timings.queue_seconds)},
       {"prompt_seconds", Json(timings.prompt_seconds)},
       {"decode_seconds", Json(timings.decode_seconds)},
       {"prompt_tokens_per_second", Json(Rate(timings.prompt_tokens, timings.prompt_seconds))},
       {"decode_tokens_per_second", Json(Rate(timings.decode_tokens, timings.decode_seconds))},
       {"drafted_tokens", Json(timings.drafting.drafted)},
       {"accepted_tokens", Json(timings.drafting.accepted)},
       {"drafting", DraftingJson(timings.drafting)}});
}

JsonValue ProgressJson(std::size_t choice, const engine::PromptProgress& progress, double seconds) {
  return JsonObject({{"index", Json(choice)},
                     {"total", Json(progress.total)},
                     {"cached", Json(progress.cached)},
                     {"processed", Json(progress.done)},
                     {"seconds", Json(seconds)}});
}

double FiniteLogprob(float logprob) {
  constexpr double kImpossible = -9999.0;
  return std::isfinite(logprob) ? std::max(static_cast<double>(logprob), kImpossible) : kImpossible;
}

JsonValue ChatLogprobJson(const text::Tokenizer& tokenizer, const engine::GeneratedToken& token) {
  std::vector<JsonMember> members =
      LogprobMembers(tokenizer, token.token, token.logprob.value_or(-INFINITY));
  std::vector<JsonValue> top;
  for (const engine::TokenLogprob& other : token.top) {
    top.push_back(JsonObject(LogprobMembers(tokenizer, other.token, other.logprob)));
  }
  members.push_back({"top_logprobs", JsonArray(std::move(top))});
  return JsonObject(std::move(members));
}

}  // namespace megalith::serve
