#include "engine/generate.h"

#include <algorithm>
#include <memory>

#include "base/clock.h"
#include "engine/ngram_drafter.h"

namespace megalith::engine {
namespace {

Status CheckOptions(const GenerateOptions& options, std::span<const std::int32_t> prompt,
                    const exec::ExecutorLimits& limits) {
  MEGALITH_RETURN_IF_ERROR(kernels::CheckSampling(options.sampling));
  if (options.max_tokens < 1) {
    return Fail(ErrorCode::kUsage, "max tokens: at least 1 expected, {} given", options.max_tokens);
  }
  if (prompt.empty()) return Fail(ErrorCode::kUsage, "prompt: at least one token expected");
  const DraftOptions& drafting = options.drafting;
  if (drafting.max_drafts < 0 || drafting.max_drafts > limits.max_drafts ||
      drafting.always.value_or(0) < 0 || drafting.always.value_or(0) > drafting.max_drafts) {
    return Fail(ErrorCode::kUsage,
                "drafts: 0 to {} expected, as the engine was loaded for, {} given",
                limits.max_drafts, std::max(drafting.max_drafts, drafting.always.value_or(0)));
  }
  if (drafting.max_drafts > 0 && !drafting.proposer && limits.max_next_drafts == 0) {
    return Fail(ErrorCode::kUsage, "drafts: the engine was loaded without a drafter");
  }
  return {};
}

class Generation {
 public:
  Generation(Sequence& sequence, const GenerateOptions& options, const TokenCallback& on_token)
      : sequence_(sequence),
        options_(options),
        on_token_(on_token),
        controller_({.max_drafts = MaxDrafts(),
                     .fixed_drafts = options.drafting.always,
                     .request_costs = !options.drafting.proposer},
                    sequence.engine().step_costs()) {}

  Result<GenerateResult> Run(std::span<const std::int32_t> prompt) {
    const std::int64_t start = NowNs();
    result_.prompt_tokens = prompt.size();
    if (options_.drafting.proposer) text_.assign(prompt.begin(), prompt.end());
    MEGALITH_ASSIGN_OR_RETURN(const std::size_t to_run, sequence_.Rewind(prompt));
    result_.reused_tokens = prompt.size() - to_run;
    Continuation first{options_.sampling, 0, 0};
    first.next_drafts = RequestFor(controller_.Plan(0, {}));
    MEGALITH_ASSIGN_OR_RETURN(
        const exec::RunOutput output,
        sequence_.Append(prompt.last(to_run), first, options_.cancel, options_.on_prompt_step));
    result_.prompt_seconds = SecondsSince(start);
    const std::int64_t decode_start = NowNs();
    MEGALITH_ASSIGN_OR_RETURN(bool go_on, Take(output));
    while (go_on) {
      MEGALITH_ASSIGN_OR_RETURN(go_on, Round());
    }
    result_.decode_seconds = SecondsSince(decode_start);
    result_.drafting = controller_.statistics();
    return std::move(result_);
  }

 private:
  std::int32_t MaxDrafts() const {
    const DraftOptions& drafting = options_.drafting;
    if (drafting.proposer) return drafting.max_drafts;
    return std::min(drafting.max_drafts, sequence_.engine().executor().limits().max_next_drafts);
  }
  bool DraftsOnDevice() const { return MaxDrafts() > 0 && !options_.drafting.proposer; }
  std::int32_t RequestFor(const DraftPlan& plan) const {
    return DraftsOnDevice() ? plan.request : 0;
  }

  /// One step: the newest token and drafts of what follows it. Returns whether to go on.
  Result<bool> Round() {
    if (options_.drafting.proposer) {
      proposal_.drafts.clear();
      proposal_.confidence.clear();
      options_.drafting.proposer(text_, MaxDrafts(), &proposal_);
      std::vector<std::int32_t>& drafts = proposal_.drafts;
      const auto vocab_size = sequence_.engine().model().vocab_size;
      const auto impossible = std::find_if(
          drafts.begin(), drafts.end(),
          [vocab_size](std::int32_t token) { return token < 0 || token >= vocab_size; });
      drafts.erase(impossible, drafts.end());
    }
    // Not beyond the tokens that are still wanted, nor the context.
    const std::int64_t useful =
        std::min(options_.max_tokens - static_cast<std::int64_t>(result_.ids.size()),
                 sequence_.room()) -
        1;
    const auto available = static_cast<std::int32_t>(std::min(
        {static_cast<std::int64_t>(proposal_.drafts.size()), std::int64_t{MaxDrafts()}, useful}));
    const DraftPlan plan = controller_.Plan(available, proposal_.confidence);
    const std::int32_t verified = std::min(plan.verify, available);
    row_tokens_.assign(1, result_.ids.back());
    row_tokens_.insert(row_tokens_.end(), proposal_.drafts.begin(),
                       proposal_.drafts.begin() + verified);
    const Continuation next{options_.sampling, verified, RequestFor(plan)};
    const std::int64_t start = NowNs();
    MEGALITH_ASSIGN_OR_RETURN(const exec::RunOutput output, sequence_.Append(row_tokens_, next));
    controller_.Record({verified, output.num_accepted, next.next_drafts, SecondsSince(start)});
    return Take(output);
  }

  /// Hands out the accepted drafts and the token after them, in order. Returns whether to go on; if
  /// it ends before the last of them, the sequence is cut to what decoding alone would have run.
  Result<bool> Take(const exec::RunOutput& output) {
    const std::size_t length = sequence_.tokens().size();
    const auto accepted = static_cast<std::size_t>(output.num_accepted);
    for (std::size_t i = 0; i <= accepted; ++i) {
      if (GoOnAfter(output.tokens[i], length - accepted + i)) continue;
      if (i < accepted) MEGALITH_RETURN_IF_ERROR(sequence_.Truncate(length - accepted + i));
      return false;
    }
    proposal_.drafts.assign(output.drafts.begin(), output.drafts.end());
    proposal_.confidence.assign(output.confidence.begin(), output.confidence.end());
    return true;
  }

  /// `length`: tokens run through the model when this one was chosen.
  bool GoOnAfter(std::int32_t token, std::size_t length) {
    result_.ids.push_back(token);
    if (options_.drafting.proposer) text_.push_back(token);
    const bool wanted = !on_token_ || on_token_(token);
    const bool is_stop = std::find(options_.stop_ids.begin(), options_.stop_ids.end(), token) !=
                         options_.stop_ids.end();
    if (is_stop || !wanted) return false;
    if (options_.cancel != nullptr && options_.cancel->IsCancelled()) {
      result_.finish_reason = FinishReason::kCancelled;
      return false;
    }
    if (static_cast<std::int64_t>(result_.ids.size()) >= options_.max_tokens ||
        static_cast<std::int64_t>(length) >= sequence_.engine().max_positions()) {
      result_.finish_reason = FinishReason::kLength;
      return false;
    }
    return true;
  }

  Sequence& sequence_;
  const GenerateOptions& options_;
  const TokenCallback& on_token_;
  GenerateResult result_;
  DraftController controller_;
  DraftProposal proposal_;          // to follow the newest token
  std::vector<std::int32_t> text_;  // prompt and result_.ids, for the proposer
  std::vector<std::int32_t> row_tokens_;
};

}  // namespace

DraftProposer MakeNgramProposer() {
  return
      [drafter = std::make_shared<NgramDrafter>()](
          std::span<const std::int32_t> tokens, std::int32_t max_drafts, DraftProposal* proposal) {
        const std::vector<std::int32_t>& held = drafter->tokens();
        const auto same = std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end());
        drafter->Truncate(same.first - held.begin());
        drafter->Append(tokens.subspan(held.size()));
        const std::int32_t match = drafter->Propose(max_drafts, &proposal->drafts);
        proposal->confidence.assign(proposal->drafts.size(), NgramDrafter::Confidence(match));
      };
}

Result<GenerateResult> Generate(Sequence& sequence, std::span<const std::int32_t> prompt,
                                const GenerateOptions& options, const TokenCallback& on_token) {
  MEGALITH_RETURN_IF_ERROR(CheckOptions(options, prompt, sequence.engine().executor().limits()));
  return Generation(sequence, options, on_token).Run(prompt);
}

}  // namespace megalith::engine
