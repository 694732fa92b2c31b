#include "engine/no_token.h"

namespace megalith::engine {

Error ExplainNoToken(std::span<const float> logits, const kernels::SamplingOptions& sampling,
                     std::int64_t position, const kernels::LogitAdjustment& adjustment) {
  kernels::SamplingScratch scratch(static_cast<std::int64_t>(logits.size()));
  const auto sampled = kernels::Sample(logits, sampling, position, scratch, adjustment);
  auto token = kernels::TokenOrError(sampled, logits, position);
  if (token) {
    return {ErrorCode::kInternal, fmt::format("position {}: no token was chosen", position)};
  }
  if (kernels::Sample(logits, sampling, position, scratch).token >= 0) {
    return {
        ErrorCode::kUsage,
        fmt::format("position {}: the request's biases and the form of the reply leave no token",
                    position)};
  }
  return std::move(token).error();
}

}  // namespace megalith::engine
