#pragma once

#include <cstdint>
#include <span>

#include "engine/generator.h"

namespace megalith::engine {

/// The token with its log probability and the `num_top` most likely ones, in order of descending
/// logit, among equals the lowest id first. `logits`: finite or -infinity, not all of them.
GeneratedToken WithLogprobs(std::int32_t token, std::span<const float> logits,
                            std::int32_t num_top);

}  // namespace megalith::engine
