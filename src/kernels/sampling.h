#pragma once

// Choosing a token from logits: temperature, top-k, top-p, min-p, then an exponential race. Every
// token runs with a time that is exponential with its probability as rate, and the first one wins:
// token i wins with probability p_i, an exact draw. The noise behind a time depends on the seed,
// the position and the token alone, neither on the distribution nor on how steps were cut. So
// whoever draws from a similar distribution with the same noise most likely draws the same token: a
// drafter that does so proposes what the model is about to draw, and a draft is accepted if it is
// the model's own draw. Text with drafting is then the text without it. Two distributions p and q
// draw the same token with probability sum_i 1 / sum_j max(p_j / p_i, q_j / q_i).

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"

namespace megalith::kernels {

/// temperature 0 (or below 2^-126) is greedy. Applied in this order: temperature, top-k, top-p,
/// min-p, renormalise, draw (spec kimi-text 4). "Most likely" is in order of descending logit;
/// among equals the lowest id comes first.
struct SamplingOptions {
  float temperature = 0.0f;
  float top_p = 1.0f;      ///< keep the most likely tokens whose mass before them is < top_p
  std::int32_t top_k = 0;  ///< 0: all
  float min_p = 0.0f;      ///< drop tokens less likely than min_p times the most likely
  std::uint64_t seed = 0;
};

/// kUsage naming the field: temperature must be finite and >= 0, top_p in (0, 1], min_p in [0, 1],
/// top_k >= 0. NaN is refused everywhere.
Status CheckSampling(const SamplingOptions& options);

/// What becomes of one logit before a token is chosen: a positive one is divided by `divisor`,
/// another one multiplied by it, then `addend` is added.
struct LogitChange {
  std::int32_t token = 0;
  float divisor = 1.0f;  ///< > 0
  float addend = 0.0f;   ///< -infinity: the token cannot be chosen
};

/// Logits other than the model's to choose a token from.
struct LogitAdjustment {
  std::span<const LogitChange> changes;  ///< a token at most once
  /// Token t can be chosen only if bit t % 64 of allowed[t / 64] is set; empty: any token.
  std::span<const std::uint64_t> allowed;

  bool empty() const { return changes.empty() && allowed.empty(); }
};

/// kOutOfRange, kUsage for tokens that do not exist, a mask of another size and values that are not
/// as said above; NaN is refused.
Status CheckAdjustment(const LogitAdjustment& adjustment, std::int64_t vocab_size);

struct SampledToken {
  std::int32_t token = -1;  ///< -1: the logits are no distribution
  /// Then the first that is NaN or +infinity; -1: there is none, but no token is possible.
  std::int64_t bad_logit = -1;
};

/// Memory that Sample works in, for up to vocab_size logits. One call at a time uses it.
class SamplingScratch {
 public:
  explicit SamplingScratch(std::int64_t vocab_size);
  std::int64_t vocab_size() const { return vocab_size_; }

 private:
  friend class Sampling;
  friend SampledToken Sample(std::span<const float>, const SamplingOptions&, std::int64_t,
                             SamplingScratch&, const LogitAdjustment&);
  std::int64_t vocab_size_;
  std::unique_ptr<float[]> chunk_largest_;
  std::unique_ptr<std::uint64_t[]> keys_;
  std::unique_ptr<float[]> adjusted_;
};

/// Token for absolute position `position`, from finite logits or -infinity (impossible), of which
/// `adjustment` (checked) makes others first; a bad logit stays bad. Greedy and
/// equal times prefer the lowest id. Options have passed CheckSampling; there are at most
/// scratch.vocab_size() logits. Allocates nothing; calls may overlap if their scratch differs. The
/// result is the same with and without ScopedFlushDenormals, denormal logits apart.
SampledToken Sample(std::span<const float> logits, const SamplingOptions& options,
                    std::int64_t position, SamplingScratch& scratch,
                    const LogitAdjustment& adjustment = {});

/// The token, or kNumeric saying what is wrong with the logits.
Result<std::int32_t> TokenOrError(const SampledToken& sampled, std::span<const float> logits,
                                  std::int64_t position);

/// The noise of a token, uniform over the odd multiples of 2^-53 in (0, 1). Its time in the race is
/// -log(1 - noise) / weight, and the weight is exp((logit - largest logit) / temperature).
double SamplingNoise(std::uint64_t seed, std::int64_t position, std::int32_t token);

}  // namespace megalith::kernels
