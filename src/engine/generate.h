#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/result.h"
#include "engine/sampler.h"
#include "engine/sequence.h"

namespace megalith::engine {

enum class FinishReason {
  kStop,    ///< a stop token was chosen, or the callback asked to stop
  kLength,  ///< max_tokens or the end of the context
  kCancelled,
};
/// "stop", "length", "cancelled".
std::string_view FinishReasonName(FinishReason reason);

struct GenerateOptions {
  std::int64_t max_tokens = 0;  ///< >= 1
  SamplingOptions sampling;
  std::vector<std::int32_t> stop_ids;  ///< generation ends with the first of these, which is kept
  const CancelFlag* cancel = nullptr;
  Sequence::StepCallback on_prompt_step;
};

struct GenerateResult {
  std::vector<std::int32_t> ids;  ///< chosen tokens; a stop token is the last of them
  FinishReason finish_reason = FinishReason::kStop;
  std::size_t prompt_tokens = 0;
  std::size_t reused_tokens = 0;  ///< of the prompt, already in the sequence
  double prompt_seconds = 0.0;    ///< until the first token was chosen
  double decode_seconds = 0.0;    ///< all further tokens
};

/// Called with every token as it is chosen; false ends the generation.
using TokenCallback = std::function<bool(std::int32_t token)>;

/// Makes `prompt` the content of the sequence (reusing what it holds of it) and continues it. The
/// last chosen token is not run through the model. Errors: CheckSampling, Sequence::Append;
/// kNumeric for logits that are no distribution: the sequence is then empty.
Result<GenerateResult> Generate(Sequence& sequence, std::span<const std::int32_t> prompt,
                                const GenerateOptions& options, const TokenCallback& on_token);

}  // namespace megalith::engine
