#include "engine/sequence.h"

#include <algorithm>

#include "engine/no_token.h"

namespace megalith::engine {

Sequence::~Sequence() { static_cast<void>(Reset()); }

Status Sequence::Reset() {
  tokens_.clear();
  return engine_.executor().ReleaseSlot(slot_);
}

Result<std::size_t> Sequence::Rewind(std::span<const std::int32_t> prompt) {
  const bool extends =
      prompt.size() > tokens_.size() && std::equal(tokens_.begin(), tokens_.end(), prompt.begin());
  if (!extends) MEGALITH_RETURN_IF_ERROR(Reset());
  return prompt.size() - tokens_.size();
}

Status Sequence::Truncate(std::size_t length) {
  MEGALITH_RETURN_IF_ERROR(engine_.executor().Truncate(slot_, static_cast<std::int32_t>(length)));
  tokens_.resize(length);
  return {};
}

Status Sequence::CheckTokens(std::span<const std::int32_t> tokens) const {
  if (tokens.empty()) return Fail(ErrorCode::kUsage, "prompt: at least one token expected");
  if (static_cast<std::int64_t>(tokens.size()) > room()) {
    return Fail(ErrorCode::kOutOfRange, "prompt: {} tokens do not fit a context of {}",
                tokens_.size() + tokens.size(), engine_.max_positions());
  }
  const auto vocab_size = engine_.model().vocab_size;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size) {
      return Fail(ErrorCode::kOutOfRange,
                  "token {} of the prompt: an id below {} expected, {} found", i, vocab_size,
                  tokens[i]);
    }
  }
  return {};
}

Result<exec::RunOutput> Sequence::Append(std::span<const std::int32_t> tokens,
                                         const Continuation& continuation, const CancelFlag* cancel,
                                         const StepCallback& on_step) {
  MEGALITH_RETURN_IF_ERROR(CheckTokens(tokens));
  const auto rows_per_step = static_cast<std::size_t>(engine_.rows_per_step());
  for (std::size_t done = 0;;) {
    const std::size_t count = std::min(tokens.size() - done, rows_per_step);
    const bool is_last = done + count == tokens.size();
    auto output = CheckCancelled(cancel, "prompt").and_then([&] {
      return RunStep(tokens.subspan(done, count), is_last ? &continuation : nullptr);
    });
    if (!output) {
      MEGALITH_RETURN_IF_ERROR(Reset());
      return output;
    }
    done += count;
    if (on_step) on_step(done, tokens.size());
    if (is_last) return output;
  }
}

Result<exec::StepOutput> Sequence::Step(const exec::Run& run,
                                        std::span<const std::int32_t> tokens) {
  MEGALITH_ASSIGN_OR_RETURN(const exec::StepOutput step,
                            engine_.executor().Step({{&run, 1}, tokens, {}}));
  const std::int32_t rejected = run.num_drafts - step.runs().front().num_accepted;
  const std::size_t kept = tokens.size() - static_cast<std::size_t>(rejected);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(kept));
  return step;
}

/// `continuation` null: more tokens follow, nothing is chosen.
Result<exec::RunOutput> Sequence::RunStep(std::span<const std::int32_t> tokens,
                                          const Continuation* continuation) {
  exec::Run run;
  run.slot = slot_;
  run.first_position = static_cast<std::int32_t>(tokens_.size());
  run.count = static_cast<std::int32_t>(tokens.size());
  if (continuation != nullptr) {
    run.wants_token = true;
    run.num_drafts = continuation->num_drafts;
    run.next_drafts = continuation->next_drafts;
    run.sampling = continuation->sampling;
  }
  MEGALITH_ASSIGN_OR_RETURN(const exec::StepOutput step, Step(run, tokens));
  const exec::RunOutput& output = step.runs().front();
  if (continuation != nullptr && output.tokens[static_cast<std::size_t>(output.num_accepted)] < 0) {
    return tl::unexpected(ExplainNoToken(step.Row(output.first_logit_row + output.num_accepted),
                                         continuation->sampling,
                                         static_cast<std::int64_t>(tokens_.size())));
  }
  return output;
}

}  // namespace megalith::engine
