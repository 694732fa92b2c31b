#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "base/result.h"
#include "engine/engine.h"
#include "exec/executor.h"
#include "kernels/sampling.h"

namespace megalith::engine {

/// What follows the tokens that a sequence runs.
struct Continuation {
  kernels::SamplingOptions sampling{};
  std::int32_t num_drafts = 0;   ///< the last so many tokens are drafts: exec::Run
  std::int32_t next_drafts = 0;  ///< that the drafter is to propose: exec::Run
};

/// One sequence of tokens on an engine: its slot, and what has been run through the model.
class Sequence {
 public:
  /// Called after every step with the tokens run so far and in all.
  using StepCallback = std::function<void(std::size_t done, std::size_t total)>;

  /// `engine` must outlive the sequence; `slot` < EngineOptions::num_sequences, used by nobody
  /// else.
  Sequence(Engine& engine, std::int32_t slot) : engine_(engine), slot_(slot) {}
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  Engine& engine() const { return engine_; }
  std::int32_t slot() const { return slot_; }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  /// Tokens that may still be appended.
  std::int64_t room() const {
    return engine_.max_positions() - static_cast<std::int64_t>(tokens_.size());
  }

  /// Runs the tokens, in steps of at most the engine's rows_per_step, and chooses what follows the
  /// last of them; drafts must fit one step. The sequence grows by the tokens that are no drafts
  /// and the drafts that are accepted. The output is valid until the engine's next step. Errors:
  /// kUsage if there are no tokens; kOutOfRange if they do not fit the context (both numbers named)
  /// or one is no token of the model; kCancelled between steps; kNumeric if the logits that decide
  /// the next token are no distribution. After an error in the middle the sequence is empty.
  Result<exec::RunOutput> Append(std::span<const std::int32_t> tokens,
                                 const Continuation& continuation,
                                 const CancelFlag* cancel = nullptr,
                                 const StepCallback& on_step = {});

  /// Runs `tokens` as one step of this sequence alone; `run` is for its slot and length. The
  /// sequence grows by the tokens that are no drafts and the drafts that are accepted. Errors:
  /// those of Executor::Step.
  Result<exec::StepOutput> Step(const exec::Run& run, std::span<const std::int32_t> tokens);

  /// Takes back the last tokens, to `length`: only drafts that the last Append accepted.
  Status Truncate(std::size_t length);

  /// Makes `prompt` the sequence's content up to its last token: keeps what has been run if it is a
  /// beginning of the prompt, starts over otherwise. Returns how many tokens are still to be
  /// appended, at least one.
  Result<std::size_t> Rewind(std::span<const std::int32_t> prompt);

  /// Empties the sequence; the next Append starts at position 0 with zero state.
  Status Reset();

 private:
  Status CheckTokens(std::span<const std::int32_t> tokens) const;
  Result<exec::RunOutput> RunStep(std::span<const std::int32_t> tokens,
                                  const Continuation* continuation);

  Engine& engine_;
  std::int32_t slot_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace megalith::engine
