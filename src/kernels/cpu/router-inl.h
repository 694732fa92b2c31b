// Expert selection for one row.

namespace megalith::kernels::MEGALITH_PATH {

inline constexpr float kLowestKey = -std::numeric_limits<float>::infinity();
// Marks what has been chosen: no comparison with it holds.
inline constexpr float kTakenKey = std::numeric_limits<float>::quiet_NaN();

/// Index of the largest key, the lowest one on ties; taken keys never win. At least one is not
/// taken.
inline std::int64_t ArgMax(const float* keys, std::int64_t count) {
  // The largest key of every lane, then of all, then where it stands first.
  Vec lanes = Set1(kLowestKey);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) lanes = Max(Load(keys + i), lanes);
  float largest = MaxLanes(lanes);
  for (; i < count; ++i) largest = keys[i] > largest ? keys[i] : largest;
  const Vec wanted = Set1(largest);
  for (i = 0; i + kLanes <= count; i += kLanes) {
    const std::uint32_t equal = EqualBits(Load(keys + i), wanted);
    if (equal != 0) return i + std::countr_zero(equal);
  }
  for (; i < count; ++i) {
    if (keys[i] == largest) return i;
  }
  return 0;
}

/// Keeps the topk_groups groups with the largest sum of their two best keys; keys of the others
/// become the lowest value.
inline void LimitGroups(const RouterTopKArgs& args, float* keys, float* group_scores) {
  const std::int64_t size = args.num_experts / args.num_groups;
  for (std::int64_t g = 0; g < args.num_groups; ++g) {
    float best = kLowestKey;
    float second = kLowestKey;
    for (std::int64_t i = g * size; i < (g + 1) * size; ++i) {
      if (keys[i] > best) {
        second = best;
        best = keys[i];
      } else if (keys[i] > second) {
        second = keys[i];
      }
    }
    const float score = size > 1 ? best + second : best;
    group_scores[g] = score == score ? score : kLowestKey;
  }
  for (std::int64_t i = 0; i < args.topk_groups; ++i) {
    group_scores[ArgMax(group_scores, args.num_groups)] = kTakenKey;
  }
  for (std::int64_t g = 0; g < args.num_groups; ++g) {
    if (group_scores[g] != group_scores[g]) continue;
    for (std::int64_t i = g * size; i < (g + 1) * size; ++i) keys[i] = kLowestKey;
  }
}

inline void RouterTopK(const RouterTopKArgs& args) {
  float* scores = args.scratch;
  float* keys = scores + args.num_experts;
  float* group_scores = keys + args.num_experts;
  if (args.softmax) {
    std::memcpy(scores, args.logits, static_cast<std::size_t>(args.num_experts) * sizeof(float));
    float max;
    const Vec sum = Set1(ExpOfScores<float>(scores, args.num_experts, &max));
    ForEachVector(args.num_experts, [&](std::int64_t i, std::int64_t n) {
      StoreUpTo(LoadUpTo(scores + i, n) / sum, scores + i, n);
    });
  } else {
    ForEachBlock(args.num_experts, [&](std::int64_t i, auto block) MEGALITH_INLINE_LAMBDA {
      StoreBlock(SigmoidOf(LoadBlock(args.logits + i, block)), scores + i, block);
    });
  }
  ForEachVector(args.num_experts, [&](std::int64_t i, std::int64_t n) {
    const Vec key = LoadUpTo(scores + i, n) + LoadUpTo(args.bias + i, n);
    StoreUpTo(Select(IsNan(key), Set1(kLowestKey), key), keys + i, n);
  });
  if (args.num_groups > 1 && args.num_groups > args.topk_groups) {
    LimitGroups(args, keys, group_scores);
  }
  // Chosen one after the other, inserted in ascending order of id.
  for (std::int64_t i = 0; i < args.top_k; ++i) {
    const std::int64_t best = ArgMax(keys, args.num_experts);
    keys[best] = kTakenKey;
    std::int64_t at = i;
    for (; at > 0 && args.ids[at - 1] > best; --at) args.ids[at] = args.ids[at - 1];
    args.ids[at] = static_cast<std::int32_t>(best);
  }

  constexpr float kSumEps = 1e-20f;
  float sum = 0.0f;
  for (std::int64_t i = 0; i < args.top_k; ++i) sum = sum + scores[args.ids[i]];
  const float divisor = sum + kSumEps;
  for (std::int64_t i = 0; i < args.top_k; ++i) {
    const float score = scores[args.ids[i]];
    args.weights[i] = (args.renormalize ? score / divisor : score) * args.scaling_factor;
  }
}

}  // namespace megalith::kernels::MEGALITH_PATH
