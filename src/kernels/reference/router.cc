#include <algorithm>
#include <limits>

#include "kernels/reference/reference.h"

namespace megalith::kernels::reference {
namespace {

constexpr float kSumEps = 1e-20f;
constexpr float kLowest = -std::numeric_limits<float>::infinity();
// Marks what has been chosen: no comparison with it holds.
constexpr float kTaken = std::numeric_limits<float>::quiet_NaN();

/// Index of the largest key, the lowest one on ties; taken keys never win. At least one is not
/// taken.
std::int64_t ArgMax(const float* keys, std::int64_t count) {
  std::int64_t best = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    if (keys[i] != keys[i]) continue;
    if (best < 0 || keys[i] > keys[best]) best = i;
  }
  return best;
}

void Softmax(const float* logits, std::int64_t count, float* out) {
  float max = logits[0];
  for (std::int64_t i = 1; i < count; ++i) max = logits[i] > max ? logits[i] : max;
  for (std::int64_t i = 0; i < count; ++i) out[i] = Exp(logits[i] - max);
  const float sum = LaneSum(count, [&](std::int64_t i) { return out[i]; });
  for (std::int64_t i = 0; i < count; ++i) out[i] = out[i] / sum;
}

/// Keeps the topk_groups groups with the largest sum of their two best keys; keys of the others
/// become the lowest value.
void LimitGroups(const RouterTopKArgs& args, float* keys, float* group_scores) {
  const std::int64_t size = args.num_experts / args.num_groups;
  for (std::int64_t g = 0; g < args.num_groups; ++g) {
    float best = kLowest;
    float second = kLowest;
    for (std::int64_t i = g * size; i < (g + 1) * size; ++i) {
      if (keys[i] > best) {
        second = best;
        best = keys[i];
      } else if (keys[i] > second) {
        second = keys[i];
      }
    }
    const float score = size > 1 ? best + second : best;
    group_scores[g] = score == score ? score : kLowest;
  }
  for (std::int64_t i = 0; i < args.topk_groups; ++i) {
    group_scores[ArgMax(group_scores, args.num_groups)] = kTaken;
  }
  for (std::int64_t g = 0; g < args.num_groups; ++g) {
    if (group_scores[g] == group_scores[g]) std::fill_n(keys + g * size, size, kLowest);
  }
}

}  // namespace

void RouterTopK(const RouterTopKArgs& args) {
  float* scores = args.scratch;
  float* keys = scores + args.num_experts;
  float* group_scores = keys + args.num_experts;
  if (args.softmax) {
    Softmax(args.logits, args.num_experts, scores);
  } else {
    for (std::int64_t e = 0; e < args.num_experts; ++e) scores[e] = Sigmoid(args.logits[e]);
  }
  for (std::int64_t e = 0; e < args.num_experts; ++e) {
    const float key = scores[e] + args.bias[e];
    keys[e] = key == key ? key : kLowest;
  }
  if (args.num_groups > 1 && args.num_groups > args.topk_groups) {
    LimitGroups(args, keys, group_scores);
  }
  for (std::int64_t i = 0; i < args.top_k; ++i) {
    const std::int64_t best = ArgMax(keys, args.num_experts);
    args.ids[i] = static_cast<std::int32_t>(best);
    keys[best] = kTaken;
  }
  std::sort(args.ids, args.ids + args.top_k);

  float sum = 0.0f;
  for (std::int64_t i = 0; i < args.top_k; ++i) sum = sum + scores[args.ids[i]];
  const float divisor = sum + kSumEps;
  for (std::int64_t i = 0; i < args.top_k; ++i) {
    const float score = scores[args.ids[i]];
    args.weights[i] = (args.renormalize ? score / divisor : score) * args.scaling_factor;
  }
}

}  // namespace megalith::kernels::reference
