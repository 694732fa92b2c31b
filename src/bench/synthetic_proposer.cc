#include "bench/synthetic_proposer.h"

#include <algorithm>
#include <memory>

#include "bench/tokens.h"

namespace megalith::bench {
namespace {

double TokensPerRound(double chance, std::int32_t num_drafts) {
  double tokens = 1.0;
  double all_right = 1.0;
  for (std::int32_t k = 0; k < num_drafts; ++k) {
    all_right *= chance;
    tokens += all_right;
  }
  return tokens;
}

}  // namespace

double ChanceFor(double tokens_per_round, std::int32_t num_drafts) {
  double low = 0.0;
  double high = 1.0;
  if (tokens_per_round >= TokensPerRound(high, num_drafts)) return high;
  constexpr int kHalvings = 60;  // more than a double resolves
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (TokensPerRound(middle, num_drafts) < tokens_per_round ? low : high) = middle;
  }
  return low;
}

engine::DraftProposer MakeSyntheticProposer(std::vector<std::int32_t> text, double chance,
                                            std::int64_t seed, std::int32_t vocab_size) {
  constexpr std::int32_t kSteps = 1 << 24;  // of a chance
  const auto right_below = static_cast<std::int32_t>(std::clamp(chance, 0.0, 1.0) * kSteps);
  return [text = std::make_shared<const std::vector<std::int32_t>>(std::move(text)), right_below,
          seed, vocab_size](std::span<const std::int32_t> tokens, std::int32_t max_drafts,
                            engine::DraftProposal* proposal) {
    const std::size_t begin = std::min(tokens.size(), text->size());
    const std::size_t end = std::min(begin + static_cast<std::size_t>(max_drafts), text->size());
    for (std::size_t i = begin; i < end; ++i) {
      const bool is_right =
          ArbitraryToken(seed, static_cast<std::int64_t>(i), kSteps) < right_below;
      const std::int32_t token = (*text)[i];
      proposal->drafts.push_back(is_right ? token : (token + 1) % vocab_size);
    }
  };
}

}  // namespace megalith::bench
