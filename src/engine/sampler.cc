#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

namespace megalith::engine {
namespace {

/// SplitMix64: every bit of the input changes every bit of the output.
std::uint64_t Mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

/// Uniform in [0, 1), a function of seed and position alone.
double Uniform(std::uint64_t seed, std::int64_t position) {
  const std::uint64_t bits = Mix(Mix(seed) ^ static_cast<std::uint64_t>(position));
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

/// Index of the largest logit, the lowest among equals.
Result<std::int32_t> ArgMax(std::span<const float> logits, std::int64_t position) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == HUGE_VALF) {
      return Fail(ErrorCode::kNumeric,
                  "logits for position {}: token {} has {}, a finite number expected", position, i,
                  logits[i]);
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (logits.empty() || logits[best] == -HUGE_VALF) {
    return Fail(ErrorCode::kNumeric, "logits for position {}: all {} tokens are impossible",
                position, logits.size());
  }
  return static_cast<std::int32_t>(best);
}

}  // namespace

Status CheckSampling(const SamplingOptions& options) {
  const auto refuse = [](const char* field, const char* expected, double found) {
    return Fail(ErrorCode::kUsage, "{}: {} expected, {:.6g} given", field, expected, found);
  };
  // Written so that NaN fails every test.
  if (!(options.temperature >= 0.0f && options.temperature < HUGE_VALF)) {
    return refuse("temperature", "a finite number >= 0", options.temperature);
  }
  if (!(options.top_p > 0.0f && options.top_p <= 1.0f)) {
    return refuse("top_p", "a number above 0 and at most 1", options.top_p);
  }
  if (!(options.min_p >= 0.0f && options.min_p <= 1.0f)) {
    return refuse("min_p", "a number from 0 to 1", options.min_p);
  }
  if (options.top_k < 0) return refuse("top_k", "a number >= 0", options.top_k);
  return {};
}

Result<std::int32_t> Sampler::Sample(std::span<const float> logits, std::int64_t position) {
  MEGALITH_ASSIGN_OR_RETURN(const std::int32_t best, ArgMax(logits, position));
  if (options_.temperature == 0.0f) return best;

  // The largest logit is subtracted before dividing, so a tiny temperature cannot overflow: the
  // others go to minus infinity, which is probability 0.
  const float top = logits[static_cast<std::size_t>(best)];
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double scaled = (static_cast<double>(logits[i]) - top) / options_.temperature;
    candidates_.push_back({logits[i], static_cast<std::int32_t>(i), std::exp(scaled)});
  }
  KeepTopK();
  KeepTopP();
  KeepMinP();

  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += candidate.probability;
  double left = Uniform(options_.seed, position) * total;
  for (const Candidate& candidate : candidates_) {
    if (left < candidate.probability) return candidate.id;
    left -= candidate.probability;
  }
  // Only rounding gets here: the last candidate that is possible at all.
  for (auto candidate = candidates_.rbegin(); candidate != candidates_.rend(); ++candidate) {
    if (candidate->probability > 0.0) return candidate->id;
  }
  return best;
}

void Sampler::KeepTopK() {
  const auto top_k = static_cast<std::size_t>(options_.top_k);
  if (top_k == 0 && options_.top_p == 1.0f) return;  // nothing below needs an order
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  if (top_k > 0 && top_k < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(top_k),
                     candidates_.end(), likelier);
    candidates_.resize(top_k);
  }
  std::sort(candidates_.begin(), candidates_.end(), likelier);
}

void Sampler::KeepTopP() {
  if (options_.top_p == 1.0f) return;
  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += candidate.probability;
  double before = 0.0;
  std::size_t kept = 0;
  while (kept < candidates_.size() && before < options_.top_p * total) {
    before += candidates_[kept].probability;
    ++kept;
  }
  candidates_.resize(std::max<std::size_t>(kept, 1));
}

void Sampler::KeepMinP() {
  if (options_.min_p == 0.0f) return;
  // The most likely token has probability exp(0) = 1 here, so min_p is the threshold itself.
  std::erase_if(candidates_, [this](const Candidate& candidate) {
    return candidate.probability < options_.min_p;
  });
}

}  // namespace megalith::engine
