#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace megalith::engine {

/// temperature 0 is greedy. Applied in this order: temperature, top-k, top-p, min-p, renormalise,
/// draw (spec kimi-text 4).
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

/// Chooses tokens. The random number of a token depends on the seed and the token's position only,
/// so the text does not depend on how steps were cut.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options) {}

  /// Token for absolute position `position`. Greedy and equal probabilities prefer the lowest id.
  /// kNumeric if a logit is NaN, +infinity, or all are -infinity: such logits are no distribution.
  Result<std::int32_t> Sample(std::span<const float> logits, std::int64_t position);

 private:
  struct Candidate {
    float logit;
    std::int32_t id;
    double probability;
  };
  void KeepTopK();
  void KeepTopP();
  void KeepMinP();

  SamplingOptions options_;
  std::vector<Candidate> candidates_;  // kept between calls: no allocation per token
};

}  // namespace megalith::engine
