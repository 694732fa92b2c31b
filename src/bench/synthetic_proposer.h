#pragma once

#include <cstdint>
#include <vector>

#include "engine/generate.h"

namespace megalith::bench {

/// The chance of each draft to be right with which rounds of `num_drafts` drafts give
/// `tokens_per_round` tokens on average: c with 1 + c + ... + c^num_drafts = tokens_per_round. Cut
/// to 0 .. 1: below 1 token and above num_drafts + 1 there is none.
double ChanceFor(double tokens_per_round, std::int32_t num_drafts);

/// Proposes what `text` (prompt and continuation) says, but a wrong token with probability
/// 1 - `chance`: at the same positions for the same seed, whatever the round they fall into.
/// Nothing beyond the end of the text. No confidences.
engine::DraftProposer MakeSyntheticProposer(std::vector<std::int32_t> text, double chance,
                                            std::int64_t seed, std::int32_t vocab_size);

}  // namespace megalith::bench
