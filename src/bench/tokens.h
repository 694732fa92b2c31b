#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megalith::bench {

/// Token `index` of text number `text`: any id below vocab_size, the same on every machine.
std::int32_t ArbitraryToken(std::int64_t text, std::int64_t index, std::int64_t vocab_size);
/// Tokens 0 .. count - 1 of it.
std::vector<std::int32_t> ArbitraryTokens(std::int64_t text, std::int64_t count,
                                          std::int64_t vocab_size);

/// Index of the largest logit, the lowest among equals.
std::int32_t GreedyToken(std::span<const float> logits);

}  // namespace megalith::bench
