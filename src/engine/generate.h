#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "base/result.h"
#include "engine/draft_controller.h"
#include "engine/draft_options.h"
#include "engine/generator.h"
#include "engine/sequence.h"
#include "kernels/sampling.h"

namespace megalith::engine {

struct GenerateOptions {
  std::int64_t max_tokens = 0;  ///< >= 1
  kernels::SamplingOptions sampling;
  std::vector<std::int32_t> stop_ids;  ///< generation ends with the first of these, which is kept
  DraftOptions drafting;
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
  DraftStatistics drafting;
};

/// Called with every token as it is chosen; false ends the generation.
using TokenCallback = std::function<bool(std::int32_t token)>;

/// Makes `prompt` the content of the sequence (reusing what it holds of it) and continues it. The
/// last chosen token is not run through the model: whatever was drafted, the sequence ends as if
/// each token had been decoded alone. Errors: Generation::Check, Executor::Step; kCancelled during
/// the prompt, kNumeric if the logits are no distribution. After an error the sequence is empty.
Result<GenerateResult> Generate(Sequence& sequence, std::span<const std::int32_t> prompt,
                                const GenerateOptions& options, const TokenCallback& on_token);

}  // namespace megalith::engine
