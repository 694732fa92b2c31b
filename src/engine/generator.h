#pragma once

// What is asked of the model and how the answer comes back: the interface between those who speak
// to clients and the scheduler that runs many sequences in one engine (scheduler.h).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/draft_controller.h"
#include "kernels/sampling.h"

namespace megalith::engine {

enum class FinishReason {
  kStop,    ///< a stop token was chosen, or the listener asked to stop
  kLength,  ///< max_tokens or the end of the context
  kCancelled,
};
/// "stop", "length", "cancelled".
std::string_view FinishReasonName(FinishReason reason);

/// Says which tokens may come next; follows one sequence. One thread at a time.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  /// Clears the bits of tokens that may not come next: token t is bit t % 64 of allowed[t / 64].
  /// Comes with every bit of the vocabulary set. False: any token may come, and nothing was
  /// cleared. At least one bit must stay set.
  virtual bool Restrict(std::span<std::uint64_t> allowed) = 0;

  /// The token comes next. False if it may not; nothing has changed then.
  virtual bool Push(std::int32_t token) = 0;

  /// Takes the last `count` tokens back, at most 16 since the last Commit.
  virtual void Pop(std::size_t count) = 0;

  /// The tokens so far are final.
  virtual void Commit() {}
};

/// Changes to the logits before a token is chosen, as OpenAI's API and common engines define them.
/// Repetition applies to tokens of prompt and answer, presence and frequency to the answer alone.
struct LogitChanges {
  float presence_penalty = 0.0f;   ///< subtracted once from every token that was generated
  float frequency_penalty = 0.0f;  ///< subtracted for each time it was generated
  float repetition_penalty =
      1.0f;  ///< > 0: divides positive logits of seen tokens, multiplies others
  std::vector<std::pair<std::int32_t, float>>
      bias;  ///< added; each token once; -infinity forbids it
};

struct GenerationRequest {
  std::string label;  ///< names the request in the log
  std::vector<std::int32_t> prompt;
  /// Lengths of beginnings of the prompt that other requests are likely to share (the end of the
  /// system message, of each turn), ascending: places where the cache keeps a snapshot.
  std::vector<std::size_t> boundaries;
  std::int64_t max_tokens = 0;  ///< >= 1
  kernels::SamplingOptions sampling;
  LogitChanges logits;
  std::shared_ptr<TokenConstraint> constraint;  ///< null: any token
  std::vector<std::int32_t> stop_ids;           ///< generation ends with the first of these
  std::optional<std::int32_t> num_logprobs;  ///< most likely tokens to report beside each token; 0:
                                             ///< the token's own log probability only
  bool prompt_logprobs = false;              ///< the same for every token of the prompt
  bool use_prefix_cache = true;
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0.0f;  ///< natural logarithm, of the model's distribution before any change to it
};

struct GeneratedToken {
  std::int32_t token = 0;
  std::optional<float> logprob;   ///< if asked for; never for the first token of a prompt
  std::vector<TokenLogprob> top;  ///< [num_logprobs], most likely first; may not hold the token
};

struct PromptProgress {
  std::size_t total = 0;   ///< tokens of the prompt
  std::size_t cached = 0;  ///< of them, taken from the prefix cache
  std::size_t done = 0;    ///< of them, in the sequence: cached ones included
};

struct GenerationSummary {
  FinishReason finish_reason = FinishReason::kStop;
  PromptProgress prompt;
  std::int64_t generated_tokens = 0;  ///< a stop token included
  double queue_seconds = 0.0;         ///< until the first step
  double prompt_seconds = 0.0;        ///< from there until the first token was chosen
  double decode_seconds = 0.0;        ///< all further tokens
  DraftStatistics drafting;
};

/// What a generation brings. Called on the scheduler's thread between two steps: must not block and
/// must not call the generator but for Cancel.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;

  /// After each step of the prompt, and once when it begins to run.
  virtual void OnPromptProgress(const PromptProgress& /*progress*/) {}
  /// Every token of the prompt in order, if prompt_logprobs; before the first generated one.
  virtual void OnPromptToken(const GeneratedToken& /*token*/) {}
  /// Every token as it is chosen, a stop token too. False ends the generation
  /// (FinishReason::kStop).
  virtual bool OnToken(const GeneratedToken& token) = 0;
  /// Exactly once, after everything else. Errors: kNumeric (the model gave no distribution), kUsage
  /// (the request leaves no token to choose), kOutOfMemory, kInternal, kIo (the job of several
  /// ranks has failed).
  virtual void OnFinish(const Result<GenerationSummary>& summary) = 0;
};

using GenerationId = std::uint64_t;

/// One generation, for a view of what is going on.
struct GenerationView {
  GenerationId id = 0;
  std::size_t queue_position = 0;  ///< from 1; 0: it runs
  PromptProgress prompt;
  std::int64_t generated_tokens = 0;
  double age_seconds = 0.0;  ///< since it was submitted
};

/// Counters only grow.
struct GeneratorStatus {
  std::optional<Error> failure;  ///< why nothing will ever be generated again
  std::size_t max_running = 0;   ///< generations that can run at once
  std::size_t max_queued = 0;
  std::vector<GenerationView> generations;  ///< running ones, then the queue in order

  std::uint64_t num_submitted = 0;
  std::uint64_t num_finished = 0;  ///< stop or length
  std::uint64_t num_cancelled = 0;
  std::uint64_t num_failed = 0;
  std::uint64_t num_refused = 0;  ///< the queue was full
  std::uint64_t prompt_tokens = 0;
  std::uint64_t cached_tokens = 0;
  std::uint64_t generated_tokens = 0;
  std::uint64_t drafted_tokens = 0;
  std::uint64_t accepted_tokens = 0;
  std::uint64_t num_steps = 0;
  std::uint64_t step_rows = 0;
  double step_seconds = 0.0;
  double queue_seconds = 0.0;

  std::int64_t cache_bytes = 0;  ///< of the prefix cache, in memory
  std::int64_t cache_limit_bytes = 0;
  std::uint64_t cache_entries = 0;
  std::uint64_t cache_evictions = 0;
};

/// Thread-safe.
class Generator {
 public:
  virtual ~Generator() = default;

  /// Longest sequence: prompt and answer together.
  virtual std::int64_t max_positions() const = 0;

  /// Queues a request; the listener hears of it from another thread, maybe before this returns.
  /// Errors, and the listener hears nothing: kUsage and kOutOfRange for what no engine could run
  /// (empty prompt, token ids, sampling, a prompt that leaves no room for a token: both numbers are
  /// named), kUnsupported, kBusy if the queue is full, kCancelled after Stop, GeneratorStatus's
  /// failure.
  virtual Result<GenerationId> Submit(GenerationRequest request,
                                      std::shared_ptr<GenerationListener> listener) = 0;

  /// The generation ends within a step, with FinishReason::kCancelled. Nothing happens if it has
  /// ended already.
  virtual void Cancel(GenerationId id) = 0;

  virtual GeneratorStatus GetStatus() const = 0;
};

}  // namespace megalith::engine
