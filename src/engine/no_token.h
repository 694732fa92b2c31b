#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernels/sampling.h"

namespace megalith::engine {

/// Why a step chose no token for `position` from these logits: chooses once more, to say what is
/// wrong. kNumeric: the logits are no distribution; kUsage: `adjustment` leaves no token;
/// kInternal: there is one after all.
Error ExplainNoToken(std::span<const float> logits, const kernels::SamplingOptions& sampling,
                     std::int64_t position, const kernels::LogitAdjustment& adjustment = {});

}  // namespace megalith::engine
