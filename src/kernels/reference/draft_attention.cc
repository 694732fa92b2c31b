#include <algorithm>
#include <limits>

#include "kernels/activation.h"
#include "kernels/reference/reference.h"

namespace megalith::kernels::reference {
namespace {

/// One row and head: out[c] holds the weighted values so far, for weights relative to exp(max), and
/// `total` the sum of those.
template <typename Act>
struct DraftSoftmax {
  const DraftAttentionArgs<Act>& args;
  const Act* q;
  float* out;  ///< [head_dim]
  float max = -std::numeric_limits<float>::infinity();
  float total = 0.0f;

  float Score(const Act* key) const {
    float sum = 0.0f;
    for (std::int64_t d = 0; d < args.head_dim; ++d) sum = sum + Widen(key[d]) * Widen(q[d]);
    return sum * args.scale;
  }

  /// At most kDraftPartKeys keys: key(i) and value(i) are rows.
  template <typename Key, typename Value>
  void AddPart(std::int64_t count, Key key, Value value) {
    float weights[kDraftPartKeys];
    float new_max = max;
    for (std::int64_t i = 0; i < count; ++i) {
      weights[i] = Score(key(i));
      new_max = weights[i] > new_max ? weights[i] : new_max;
    }
    const float rescale = Exp(max - new_max);
    max = new_max;
    total = total * rescale;
    for (std::int64_t c = 0; c < args.head_dim; ++c) out[c] = out[c] * rescale;
    for (std::int64_t i = 0; i < count; ++i) {
      const float weight = Exp(weights[i] - max);
      total = total + weight;
      for (std::int64_t c = 0; c < args.head_dim; ++c) {
        out[c] = out[c] + weight * Widen(value(i)[c]);
      }
    }
  }
};

template <typename Act>
void Attend(const DraftAttentionArgs<Act>& args, std::int64_t row, std::int64_t head) {
  float* sums = args.scratch;
  std::fill_n(sums, args.head_dim, 0.0f);
  DraftSoftmax<Act> softmax{args, args.q + row * args.q_row_stride + head * args.q_head_stride,
                            sums};
  for (std::int64_t t = args.first_position; t < args.end_position; t += kDraftPartKeys) {
    const auto offset = [&](std::int64_t i) {
      return (t + i) % args.capacity * args.context_stride;
    };
    softmax.AddPart(
        std::min(kDraftPartKeys, args.end_position - t),
        [&](std::int64_t i) { return args.context_k + offset(i); },
        [&](std::int64_t i) { return args.context_v + offset(i); });
  }
  const std::int64_t visible = args.causal ? row + 1 : args.rows;
  for (std::int64_t r = 0; r < visible; r += kDraftPartKeys) {
    softmax.AddPart(
        std::min(kDraftPartKeys, visible - r),
        [&](std::int64_t i) { return args.block_k + (r + i) * args.block_stride; },
        [&](std::int64_t i) { return args.block_v + (r + i) * args.block_stride; });
  }
  Act* out = args.out + row * args.out_row_stride + head * args.out_head_stride;
  for (std::int64_t c = 0; c < args.head_dim; ++c) {
    out[c] = RoundTo<Act>(sums[c] / softmax.total);
  }
}

}  // namespace

template <typename Act>
void DraftAttention(const DraftAttentionArgs<Act>& args) {
  for (std::int64_t row = 0; row < args.rows; ++row) {
    for (std::int64_t head = 0; head < args.heads; ++head) Attend(args, row, head);
  }
}

template void DraftAttention<Bf16>(const DraftAttentionArgs<Bf16>&);
template void DraftAttention<float>(const DraftAttentionArgs<float>&);

}  // namespace megalith::kernels::reference
