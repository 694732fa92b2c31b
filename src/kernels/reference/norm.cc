#include "kernels/activation.h"
#include "kernels/reference/reference.h"

namespace megalith::kernels::reference {
namespace {

/// rsqrt(mean(x^2) + eps)
template <typename Act>
float InverseRms(const Act* x, std::int64_t count, float eps) {
  const float sum = LaneSum(count, [&](std::int64_t i) { return Widen(x[i]) * Widen(x[i]); });
  return Rsqrt(sum / static_cast<float>(count) + eps);
}

}  // namespace

template <typename Act>
void RmsNorm(const RmsNormArgs<Act>& args) {
  const float inverse_rms = InverseRms(args.in, args.count, args.eps);
  for (std::int64_t i = 0; i < args.count; ++i) {
    args.out[i] = RoundTo<Act>((Widen(args.in[i]) * inverse_rms) * Widen(args.weight[i]));
  }
}

template <typename Act>
void HeadNormRotary(const HeadNormRotaryArgs<Act>& args) {
  const std::int64_t half = args.head_dim / 2;
  for (std::int64_t head = 0; head < args.heads; ++head) {
    Act* x = args.out + head * args.out_stride;
    RmsNorm(
        RmsNormArgs<Act>{args.in + head * args.in_stride, args.head_dim, args.weight, args.eps, x});
    for (std::int64_t j = 0; j < half; ++j) {
      const float first = Widen(x[j]);
      const float second = Widen(x[j + half]);
      x[j] = RoundTo<Act>(first * args.cos[j] - second * args.sin[j]);
      x[j + half] = RoundTo<Act>(second * args.cos[j] + first * args.sin[j]);
    }
  }
}

template <typename Act>
void AttnResNorm(const AttnResNormArgs<Act>& args) {
  if (args.num_sources == 1) {
    RmsNorm(RmsNormArgs<Act>{args.sources[0], args.hidden, args.norm_weight, args.eps, args.out});
    return;
  }
  float* scores = args.scratch;
  for (std::int64_t s = 0; s < args.num_sources; ++s) {
    const Act* v = args.sources[s];
    const float dot =
        LaneSum(args.hidden, [&](std::int64_t i) { return Widen(v[i]) * args.fold[i]; });
    scores[s] = InverseRms(v, args.hidden, args.eps) * dot;
  }
  float max = scores[0];
  for (std::int64_t s = 1; s < args.num_sources; ++s) max = scores[s] > max ? scores[s] : max;
  for (std::int64_t s = 0; s < args.num_sources; ++s) scores[s] = Exp(scores[s] - max);
  const float sum = LaneSum(args.num_sources, [&](std::int64_t s) { return scores[s]; });
  for (std::int64_t s = 0; s < args.num_sources; ++s) scores[s] = scores[s] / sum;
  // The mix takes the raw values; it is rounded before the norm that follows.
  for (std::int64_t i = 0; i < args.hidden; ++i) {
    float mixed = 0.0f;
    for (std::int64_t s = 0; s < args.num_sources; ++s) {
      mixed = mixed + scores[s] * Widen(args.sources[s][i]);
    }
    args.out[i] = RoundTo<Act>(mixed);
  }
  RmsNorm(RmsNormArgs<Act>{args.out, args.hidden, args.norm_weight, args.eps, args.out});
}

template void RmsNorm<Bf16>(const RmsNormArgs<Bf16>&);
template void RmsNorm<float>(const RmsNormArgs<float>&);
template void HeadNormRotary<Bf16>(const HeadNormRotaryArgs<Bf16>&);
template void HeadNormRotary<float>(const HeadNormRotaryArgs<float>&);
template void AttnResNorm<Bf16>(const AttnResNormArgs<Bf16>&);
template void AttnResNorm<float>(const AttnResNormArgs<float>&);

}  // namespace megalith::kernels::reference
