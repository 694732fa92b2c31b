#include "engine/generate.h"

#include <algorithm>

#include "base/clock.h"

namespace megalith::engine {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "?";
}

Result<GenerateResult> Generate(Sequence& sequence, std::span<const std::int32_t> prompt,
                                const GenerateOptions& options, const TokenCallback& on_token) {
  MEGALITH_RETURN_IF_ERROR(CheckSampling(options.sampling));
  if (options.max_tokens < 1) {
    return Fail(ErrorCode::kUsage, "max tokens: at least 1 expected, {} given", options.max_tokens);
  }
  if (prompt.empty()) return Fail(ErrorCode::kUsage, "prompt: at least one token expected");
  Sampler sampler(options.sampling);
  GenerateResult result;
  result.prompt_tokens = prompt.size();

  const std::int64_t start = NowNs();
  MEGALITH_ASSIGN_OR_RETURN(const std::size_t to_run, sequence.Rewind(prompt));
  result.reused_tokens = prompt.size() - to_run;
  MEGALITH_ASSIGN_OR_RETURN(
      std::span<const float> logits,
      sequence.Append(prompt.last(to_run), options.cancel, options.on_prompt_step));
  std::int64_t decode_start = start;
  while (true) {
    auto token = sampler.Sample(logits, static_cast<std::int64_t>(sequence.tokens().size()));
    if (!token) {
      // What made these logits may be in the state: nothing of it is kept.
      MEGALITH_RETURN_IF_ERROR(sequence.Reset());
      return tl::unexpected(std::move(token).error());
    }
    if (result.ids.empty()) {
      result.prompt_seconds = SecondsSince(start);
      decode_start = NowNs();
    }
    result.ids.push_back(*token);
    const bool go_on = !on_token || on_token(*token);
    const bool is_stop = std::find(options.stop_ids.begin(), options.stop_ids.end(), *token) !=
                         options.stop_ids.end();
    if (is_stop || !go_on) break;
    if (options.cancel != nullptr && options.cancel->IsCancelled()) {
      result.finish_reason = FinishReason::kCancelled;
      break;
    }
    if (static_cast<std::int64_t>(result.ids.size()) >= options.max_tokens ||
        sequence.room() == 0) {
      result.finish_reason = FinishReason::kLength;
      break;
    }
    MEGALITH_ASSIGN_OR_RETURN(logits, sequence.Append({&result.ids.back(), 1}));
  }
  result.decode_seconds = SecondsSince(decode_start);
  return result;
}

}  // namespace megalith::engine
