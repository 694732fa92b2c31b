#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/draft_controller.h"
#include "engine/draft_options.h"
#include "engine/engine.h"
#include "engine/generator.h"
#include "engine/logit_adjuster.h"
#include "exec/executor.h"

namespace megalith::engine {

/// One sequence on its way from a prompt to an answer: says what to run next and takes what came of
/// it. Runs nothing itself, so that one step can serve many of them. Whatever was drafted and
/// however steps were cut, it ends as if each token had been decoded alone; the last chosen token
/// is not run.
class Generation {
 public:
  /// Called with every token as it is chosen; false ends the generation.
  using TokenSink = std::function<bool(const GeneratedToken& token)>;

  /// What any engine refuses: kUsage, kOutOfRange naming the field, or both numbers for a prompt
  /// that leaves no room for a token.
  static Status Check(const GenerationRequest& request, const DraftOptions& drafting,
                      const Engine& engine);

  /// REQUIRES Check. `engine` must outlive it.
  Generation(Engine& engine, GenerationRequest request, DraftOptions drafting, TokenSink on_token,
             TokenSink on_prompt_token = {});

  /// The first `length` tokens of the prompt, fewer than all, are in the sequence already. Before
  /// the first step.
  void Resume(std::size_t length) { length_ = length; }

  /// A run of the next step.
  struct Plan {
    exec::Run run;
    std::span<const std::int32_t> tokens;  ///< of the run
    bool wants_all_logits = false;         ///< those of every row are to be asked for as well
  };
  /// Within a step of the engine's draft_experience, like Take. What to run next in `slot`: at most
  /// `max_rows` tokens, >= 1, and of the prompt none beyond `stop_at`. Valid until Take. REQUIRES
  /// !finished().
  Plan Next(std::int32_t slot, std::int32_t max_rows, std::size_t stop_at);

  /// What came of the plan. `first_logits`: the row of `step` with the logits of the run's first
  /// row, if they were wanted.
  /// Afterwards the sequence has length() tokens: if the slot has more, it is to be truncated.
  /// Errors: kNumeric if the logits are no distribution; the generation cannot go on.
  Status Take(const exec::StepOutput& step, const exec::RunOutput& output,
              std::int64_t first_logits);

  /// Ends it.
  void Finish(FinishReason reason) { finish_reason_ = reason; }

  bool finished() const { return finish_reason_.has_value(); }
  FinishReason finish_reason() const { return *finish_reason_; }
  bool in_prompt() const { return length_ < prompt_size_; }
  const GenerationRequest& request() const { return request_; }
  std::size_t prompt_size() const { return prompt_size_; }
  /// Prompt and chosen tokens.
  std::span<const std::int32_t> tokens() const { return tokens_; }
  /// Tokens that have been run through the model: the sequence.
  std::size_t length() const { return length_; }
  std::span<const std::int32_t> generated() const { return tokens().subspan(prompt_size_); }
  const DraftStatistics& drafting() const { return controller_.statistics(); }

 private:
  void PlanPrompt(std::int32_t max_rows, std::size_t stop_at);
  void PlanRound(std::int32_t max_rows);
  void AskProposer();
  Status TakePromptLogits(const exec::StepOutput& step, std::int64_t first_logits);
  Status TakeTokens(const exec::StepOutput& step, const exec::RunOutput& output);
  Status NoDistribution(const exec::StepOutput& step, const exec::RunOutput& output,
                        std::size_t index) const;
  void GoOnAfter(const GeneratedToken& token);
  GeneratedToken Describe(std::int32_t token, std::span<const float> logits) const;

  Engine& engine_;
  GenerationRequest request_;
  DraftOptions drafting_;
  TokenSink on_token_;
  TokenSink on_prompt_token_;
  std::size_t prompt_size_;
  std::vector<std::int32_t> tokens_;
  std::size_t length_ = 0;
  DraftController controller_;
  LogitAdjuster adjuster_;
  // To follow the newest token.
  DraftProposal by_drafter_;
  DraftProposal by_proposer_;
  std::vector<std::int32_t> row_tokens_;
  exec::Run run_;
  std::optional<FinishReason> finish_reason_;
};

}  // namespace megalith::engine
