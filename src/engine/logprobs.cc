#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace megalith::engine {

GeneratedToken WithLogprobs(std::int32_t token, std::span<const float> logits,
                            std::int32_t num_top) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  const double log_sum = static_cast<double>(largest) + std::log(sum);
  const auto logprob = [&](std::int32_t of) {
    return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(of)]) - log_sum);
  };
  GeneratedToken result;
  result.token = token;
  result.logprob = logprob(token);
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto count = static_cast<std::ptrdiff_t>(
      std::min<std::size_t>(order.size(), static_cast<std::size_t>(std::max(num_top, 0))));
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&logits](std::int32_t a, std::int32_t b) {
                      const float x = logits[static_cast<std::size_t>(a)];
                      const float y = logits[static_cast<std::size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const std::int32_t id = order[static_cast<std::size_t>(i)];
    result.top.push_back({id, logprob(id)});
  }
  return result;
}

}  // namespace megalith::engine
