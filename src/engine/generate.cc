#include "engine/generate.h"

#include "base/clock.h"
#include "engine/generation.h"

namespace megalith::engine {
namespace {

GenerationRequest RequestOf(std::span<const std::int32_t> prompt, const GenerateOptions& options) {
  GenerationRequest request;
  request.prompt.assign(prompt.begin(), prompt.end());
  request.max_tokens = options.max_tokens;
  request.sampling = options.sampling;
  request.stop_ids = options.stop_ids;
  return request;
}

bool IsCancelled(const GenerateOptions& options) {
  return options.cancel != nullptr && options.cancel->IsCancelled();
}

/// Runs one step of the generation.
Status RunStep(Sequence& sequence, Generation& generation, const GenerateOptions& options) {
  if (generation.in_prompt()) MEGALITH_RETURN_IF_ERROR(CheckCancelled(options.cancel, "prompt"));
  DraftExperience& drafts = sequence.engine().draft_experience();
  drafts.BeginStep(generation.in_prompt() ? 0 : 1);
  const Generation::Plan plan =
      generation.Next(sequence.slot(), sequence.engine().rows_per_step(), 0);
  const std::int64_t start = NowNs();
  MEGALITH_ASSIGN_OR_RETURN(const exec::StepOutput step, sequence.Step(plan.run, plan.tokens));
  const double seconds = SecondsSince(start);
  MEGALITH_RETURN_IF_ERROR(generation.Take(step, step.runs().front(), 0));
  drafts.EndStep(seconds);
  if (sequence.tokens().size() == generation.length()) return {};
  return sequence.Truncate(generation.length());
}

}  // namespace

Result<GenerateResult> Generate(Sequence& sequence, std::span<const std::int32_t> prompt,
                                const GenerateOptions& options, const TokenCallback& on_token) {
  GenerationRequest request = RequestOf(prompt, options);
  MEGALITH_RETURN_IF_ERROR(Generation::Check(request, options.drafting, sequence.engine()));
  const std::int64_t start = NowNs();
  GenerateResult result;
  result.prompt_tokens = prompt.size();
  MEGALITH_ASSIGN_OR_RETURN(const std::size_t to_run, sequence.Rewind(prompt));
  result.reused_tokens = prompt.size() - to_run;
  std::int64_t decode_start = 0;
  Generation* running = nullptr;
  Generation generation(sequence.engine(), std::move(request), options.drafting,
                        [&](const GeneratedToken& token) {
                          if (decode_start == 0) {
                            result.prompt_seconds = SecondsSince(start);
                            decode_start = NowNs();
                          }
                          const bool wanted = !on_token || on_token(token.token);
                          if (IsCancelled(options)) running->Finish(FinishReason::kCancelled);
                          return wanted;
                        });
  running = &generation;
  generation.Resume(result.reused_tokens);
  while (!generation.finished()) {
    const bool was_in_prompt = generation.in_prompt();
    const Status status = RunStep(sequence, generation, options);
    if (!status) {
      MEGALITH_RETURN_IF_ERROR(sequence.Reset());
      return tl::unexpected(status.error());
    }
    if (was_in_prompt && options.on_prompt_step) {
      options.on_prompt_step(generation.length() - result.reused_tokens, to_run);
    }
  }
  result.ids.assign(generation.generated().begin(), generation.generated().end());
  result.finish_reason = generation.finish_reason();
  result.decode_seconds = SecondsSince(decode_start);
  result.drafting = generation.drafting();
  return result;
}

}  // namespace megalith::engine
