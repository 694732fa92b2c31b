#include "kernels/activation.h"
#include "kernels/reference/reference.h"

namespace megalith::kernels::reference {

template <typename Act>
void GatedPair(const GatedPairArgs<Act>& args) {
  for (std::int64_t i = 0; i < args.count; ++i) {
    const float* panel_pair = args.acc + i / kPanelOutputs * (2 * kPanelOutputs);
    const float gate = Rounded<Act>(panel_pair[i % kPanelOutputs]);
    const float up = Rounded<Act>(panel_pair[kPanelOutputs + i % kPanelOutputs]);
    const float value = args.activation.kind == GatedActivation::kSitu
                            ? Situ(gate, up, args.activation.beta, args.activation.linear_beta)
                            : Silu(gate) * up;
    args.out[i] = RoundTo<Act>(value);
  }
}

template <typename Act>
void Store(const float* in, std::int64_t count, Act* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = RoundTo<Act>(in[i]);
}

template <typename Act>
void AddResidual(const float* acc, const Act* residual, std::int64_t count, Act* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = RoundTo<Act>(Widen(residual[i]) + Rounded<Act>(acc[i]));
  }
}

template <typename Act>
void AddSharedResidual(const float* acc, const float* aux, const Act* residual, std::int64_t count,
                       Act* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = RoundTo<Act>(Widen(residual[i]) + Rounded<Act>(acc[i] + aux[i]));
  }
}

template <typename Act>
void SigmoidGate(const float* acc, const Act* gate, std::int64_t count, Act* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = RoundTo<Act>(Rounded<Act>(acc[i]) * Rounded<Act>(Sigmoid(Widen(gate[i]))));
  }
}

template <typename Act>
void WeightedAdd(const float* acc, float weight, std::int64_t count, float* sum) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] = sum[i] + weight * Rounded<Act>(acc[i]);
}

#define INSTANTIATE(Act)                                                                     \
  template void GatedPair<Act>(const GatedPairArgs<Act>&);                                   \
  template void Store<Act>(const float*, std::int64_t, Act*);                                \
  template void AddResidual<Act>(const float*, const Act*, std::int64_t, Act*);              \
  template void AddSharedResidual<Act>(const float*, const float*, const Act*, std::int64_t, \
                                       Act*);                                                \
  template void SigmoidGate<Act>(const float*, const Act*, std::int64_t, Act*);              \
  template void WeightedAdd<Act>(const float*, float, std::int64_t, float*);
INSTANTIATE(Bf16)
INSTANTIATE(float)
#undef INSTANTIATE

}  // namespace megalith::kernels::reference
