#include "engine/generation.h"

#include <algorithm>
#include <cmath>

#include "engine/logprobs.h"
#include "engine/no_token.h"

namespace megalith::engine {
namespace {

Status CheckPrompt(std::span<const std::int32_t> prompt, const Engine& engine) {
  if (prompt.empty()) return Fail(ErrorCode::kUsage, "prompt: at least one token expected");
  if (static_cast<std::int64_t>(prompt.size()) > engine.max_positions()) {
    return Fail(ErrorCode::kOutOfRange, "prompt: {} tokens do not fit a context of {}",
                prompt.size(), engine.max_positions());
  }
  const auto vocab_size = engine.model().vocab_size;
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] >= 0 && prompt[i] < vocab_size) continue;
    return Fail(ErrorCode::kOutOfRange, "token {} of the prompt: an id below {} expected, {} found",
                i, vocab_size, prompt[i]);
  }
  return {};
}

Status CheckDrafting(const DraftOptions& drafting, const exec::ExecutorLimits& limits) {
  if (drafting.max_drafts < 0 || drafting.max_drafts > limits.max_drafts ||
      drafting.always.value_or(0) < 0 || drafting.always.value_or(0) > drafting.max_drafts) {
    return Fail(ErrorCode::kUsage,
                "drafts: 0 to {} expected, as the engine was loaded for, {} given",
                limits.max_drafts, std::max(drafting.max_drafts, drafting.always.value_or(0)));
  }
  const bool has_drafter = drafting.drafter && limits.max_next_drafts > 0;
  if (drafting.max_drafts > 0 && !drafting.proposer && !has_drafter) {
    return Fail(ErrorCode::kUsage, "drafts: the engine was loaded without a drafter");
  }
  return {};
}

/// The drafts that may be verified.
DraftBlock FirstOf(const DraftProposal& proposal, std::int64_t most) {
  const auto count = static_cast<std::int64_t>(proposal.drafts.size());
  return {std::span(proposal.drafts)
              .first(static_cast<std::size_t>(std::clamp<std::int64_t>(most, 0, count))),
          proposal.confidence};
}

}  // namespace

Status Generation::Check(const GenerationRequest& request, const DraftOptions& drafting,
                         const Engine& engine) {
  MEGALITH_RETURN_IF_ERROR(kernels::CheckSampling(request.sampling));
  const auto vocab_size = engine.model().vocab_size;
  MEGALITH_RETURN_IF_ERROR(CheckLogitChanges(request.logits, vocab_size));
  if (request.max_tokens < 1) {
    return Fail(ErrorCode::kUsage, "max tokens: at least 1 expected, {} given", request.max_tokens);
  }
  if (request.num_logprobs.value_or(0) < 0 || request.num_logprobs.value_or(0) > vocab_size) {
    return Fail(ErrorCode::kUsage, "logprobs: 0 to {} expected, {} given", vocab_size,
                *request.num_logprobs);
  }
  MEGALITH_RETURN_IF_ERROR(CheckDrafting(drafting, engine.executor().limits()));
  return CheckPrompt(request.prompt, engine);
}

Generation::Generation(Engine& engine, GenerationRequest request, DraftOptions drafting,
                       TokenSink on_token, TokenSink on_prompt_token)
    : engine_(engine),
      request_(std::move(request)),
      drafting_(std::move(drafting)),
      on_token_(std::move(on_token)),
      on_prompt_token_(std::move(on_prompt_token)),
      prompt_size_(request_.prompt.size()),
      tokens_(request_.prompt),
      controller_(
          {.max_drafts = drafting_.max_drafts,
           .max_requests = drafting_.drafter ? engine.executor().limits().max_next_drafts : 0,
           .fixed_drafts = drafting_.always},
          engine.draft_experience()),
      adjuster_(request_.logits, request_.constraint, request_.prompt, engine.model().vocab_size) {}

Generation::Plan Generation::Next(std::int32_t slot, std::int32_t max_rows, std::size_t stop_at) {
  run_ = {};
  run_.slot = slot;
  run_.first_position = static_cast<std::int32_t>(length_);
  run_.sampling = request_.sampling;
  if (in_prompt()) {
    PlanPrompt(max_rows, stop_at);
  } else {
    PlanRound(max_rows);
  }
  run_.count = static_cast<std::int32_t>(row_tokens_.size());
  const bool wants_all_logits = in_prompt() && request_.prompt_logprobs;
  return {run_, row_tokens_, wants_all_logits};
}

void Generation::PlanPrompt(std::int32_t max_rows, std::size_t stop_at) {
  const std::size_t limit = stop_at > length_ ? std::min(stop_at, prompt_size_) : prompt_size_;
  const std::size_t count = std::min(limit - length_, static_cast<std::size_t>(max_rows));
  const auto rows = std::span(request_.prompt).subspan(length_, count);
  row_tokens_.assign(rows.begin(), rows.end());
  if (length_ + count < prompt_size_) return;
  run_.wants_token = true;
  run_.next_drafts = controller_.Plan({}, {}).request;
  run_.adjustments = adjuster_.Prepare({});
}

/// The newest token and drafts of what follows it.
void Generation::PlanRound(std::int32_t max_rows) {
  if (drafting_.proposer) AskProposer();
  // Not beyond the tokens that are still wanted, nor the context.
  const std::int64_t useful =
      std::min({request_.max_tokens - static_cast<std::int64_t>(generated().size()),
                engine_.max_positions() - static_cast<std::int64_t>(length_),
                std::int64_t{max_rows}}) -
      1;
  const DraftBlock by_drafter = FirstOf(by_drafter_, useful);
  const DraftBlock by_proposer = FirstOf(by_proposer_, useful);
  const DraftPlan plan = controller_.Plan(by_drafter, by_proposer);
  const auto drafts = (plan.from_text ? by_proposer : by_drafter).drafts;
  run_.wants_token = true;
  run_.next_drafts = plan.request;
  run_.adjustments = adjuster_.Prepare(drafts.first(static_cast<std::size_t>(plan.verify)));
  run_.num_drafts = static_cast<std::int32_t>(adjuster_.num_drafts());
  row_tokens_.assign(1, tokens_.back());
  row_tokens_.insert(row_tokens_.end(), drafts.begin(), drafts.begin() + run_.num_drafts);
}

void Generation::AskProposer() {
  by_proposer_.drafts.clear();
  by_proposer_.confidence.clear();
  drafting_.proposer(tokens_, drafting_.max_drafts, &by_proposer_);
  std::vector<std::int32_t>& drafts = by_proposer_.drafts;
  const auto vocab_size = engine_.model().vocab_size;
  const auto impossible =
      std::find_if(drafts.begin(), drafts.end(),
                   [vocab_size](std::int32_t token) { return token < 0 || token >= vocab_size; });
  drafts.erase(impossible, drafts.end());
}

Status Generation::Take(const exec::StepOutput& step, const exec::RunOutput& output,
                        std::int64_t first_logits) {
  const bool was_in_prompt = in_prompt();
  if (was_in_prompt && request_.prompt_logprobs) {
    MEGALITH_RETURN_IF_ERROR(TakePromptLogits(step, first_logits));
  }
  length_ += static_cast<std::size_t>(run_.count - run_.num_drafts + output.num_accepted);
  if (!run_.wants_token) return {};
  const std::size_t num_before = tokens_.size();
  MEGALITH_RETURN_IF_ERROR(TakeTokens(step, output));
  // Accepted drafts behind the end are not kept, and do not count.
  if (!was_in_prompt) {
    controller_.Record({.num_drafts = run_.num_drafts,
                        .next_drafts = run_.next_drafts,
                        .tokens = tokens().subspan(num_before)});
  }
  return {};
}

/// The logits of a row tell how likely the token after it is.
Status Generation::TakePromptLogits(const exec::StepOutput& step, std::int64_t first_logits) {
  if (length_ == 0) on_prompt_token_({request_.prompt.front()});
  for (std::int64_t row = 0; row < run_.count; ++row) {
    const std::size_t next = length_ + static_cast<std::size_t>(row) + 1;
    if (next == prompt_size_) break;
    const auto logits = step.Row(first_logits + row);
    const auto bad = std::find_if(logits.begin(), logits.end(),
                                  [](float logit) { return !(logit < HUGE_VALF); });
    if (bad != logits.end()) {
      return Fail(ErrorCode::kNumeric,
                  "logits for position {}: token {} has {}, a finite number expected", next,
                  bad - logits.begin(), *bad);
    }
    on_prompt_token_(Describe(request_.prompt[next], logits));
  }
  return {};
}

/// Hands out the accepted drafts and the token after them, in order. If it ends before the last of
/// them, the sequence has the length that decoding alone would have given it.
Status Generation::TakeTokens(const exec::StepOutput& step, const exec::RunOutput& output) {
  const auto accepted = static_cast<std::size_t>(output.num_accepted);
  const std::size_t end = length_;
  for (std::size_t i = 0; i <= accepted; ++i) {
    length_ = end - accepted + i;
    const std::int32_t token = output.tokens[i];
    if (token < 0) return NoDistribution(step, output, i);
    MEGALITH_RETURN_IF_ERROR(adjuster_.Accept(token));
    const auto row = output.first_logit_row + static_cast<std::int64_t>(i);
    GoOnAfter(request_.num_logprobs ? Describe(token, step.Row(row)) : GeneratedToken{token});
    if (finished()) return {};
  }
  by_drafter_.drafts.assign(output.drafts.begin(), output.drafts.end());
  by_drafter_.confidence.assign(output.confidence.begin(), output.confidence.end());
  return {};
}

Status Generation::NoDistribution(const exec::StepOutput& step, const exec::RunOutput& output,
                                  std::size_t index) const {
  const kernels::LogitAdjustment adjustment =
      run_.adjustments.empty() ? kernels::LogitAdjustment{} : run_.adjustments[index];
  return tl::unexpected(
      ExplainNoToken(step.Row(output.first_logit_row + static_cast<std::int64_t>(index)),
                     request_.sampling, static_cast<std::int64_t>(length_), adjustment));
}

GeneratedToken Generation::Describe(std::int32_t token, std::span<const float> logits) const {
  return WithLogprobs(token, logits, request_.num_logprobs.value_or(0));
}

void Generation::GoOnAfter(const GeneratedToken& token) {
  tokens_.push_back(token.token);
  const bool wanted = !on_token_ || on_token_(token);
  const std::vector<std::int32_t>& stops = request_.stop_ids;
  if (!wanted || std::find(stops.begin(), stops.end(), token.token) != stops.end()) {
    Finish(FinishReason::kStop);
  } else if (finished()) {
    return;  // the sink has ended it
  } else if (static_cast<std::int64_t>(generated().size()) >= request_.max_tokens ||
             static_cast<std::int64_t>(length_) >= engine_.max_positions()) {
    Finish(FinishReason::kLength);
  }
}

}  // namespace megalith::engine
