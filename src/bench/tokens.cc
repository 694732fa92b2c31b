#include "bench/tokens.h"

#include <algorithm>

namespace megalith::bench {

std::int32_t ArbitraryToken(std::int64_t text, std::int64_t index, std::int64_t vocab_size) {
  // SplitMix64, whose state is a counter.
  std::uint64_t z = static_cast<std::uint64_t>(text) * 0x632be59bd9b4e019u +
                    static_cast<std::uint64_t>(index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<std::int32_t>(z % static_cast<std::uint64_t>(vocab_size));
}

std::vector<std::int32_t> ArbitraryTokens(std::int64_t text, std::int64_t count,
                                          std::int64_t vocab_size) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(ArbitraryToken(text, i, vocab_size));
  return tokens;
}

std::int32_t GreedyToken(std::span<const float> logits) {
  // Several running maxima side by side: one chain would take longer than a small model's step.
  constexpr std::size_t kLanes = 16;
  float best[kLanes];
  std::fill(std::begin(best), std::end(best), logits.front());
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      best[lane] = logits[i + lane] > best[lane] ? logits[i + lane] : best[lane];
    }
  }
  float largest = *std::max_element(std::begin(best), std::end(best));
  for (; i < logits.size(); ++i) largest = std::max(largest, logits[i]);
  return static_cast<std::int32_t>(std::find(logits.begin(), logits.end(), largest) -
                                   logits.begin());
}

}  // namespace megalith::bench
