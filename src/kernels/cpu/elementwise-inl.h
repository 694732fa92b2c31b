// Element-wise kernels; formulas at their members in kernel_table.h.

namespace megalith::kernels::MEGALITH_PATH {

template <typename Act>
void GatedPair(const GatedPairArgs<Act>& args) {
  const GatedParameters activation = args.activation;
  ForEachVector(args.count, [&](std::int64_t i, std::int64_t n) {
    const Vec gate = RoundToAct<Act>(Load(args.acc + 2 * i));
    const Vec up = RoundToAct<Act>(Load(args.acc + 2 * i + kPanelOutputs));
    const Vec value = activation.kind == GatedActivation::kSitu
                          ? SituOf(gate, up, activation.beta, activation.linear_beta)
                          : SiluOf(gate) * up;
    StoreUpTo(value, args.out + i, n);
  });
}

template <typename Act>
void StoreRounded(const float* in, std::int64_t count, Act* out) {
  ForEachVector(
      count, [&](std::int64_t i, std::int64_t n) { StoreUpTo(LoadUpTo(in + i, n), out + i, n); });
}

template <typename Act>
void AddResidual(const float* acc, const Act* residual, std::int64_t count, Act* out) {
  ForEachVector(count, [&](std::int64_t i, std::int64_t n) {
    StoreUpTo(LoadUpTo(residual + i, n) + RoundToAct<Act>(LoadUpTo(acc + i, n)), out + i, n);
  });
}

template <typename Act>
void AddSharedResidual(const float* acc, const float* aux, const Act* residual, std::int64_t count,
                       Act* out) {
  ForEachVector(count, [&](std::int64_t i, std::int64_t n) {
    const Vec sum = RoundToAct<Act>(LoadUpTo(acc + i, n) + LoadUpTo(aux + i, n));
    StoreUpTo(LoadUpTo(residual + i, n) + sum, out + i, n);
  });
}

template <typename Act>
void SigmoidGate(const float* acc, const Act* gate, std::int64_t count, Act* out) {
  ForEachVector(count, [&](std::int64_t i, std::int64_t n) {
    const Vec factor = RoundToAct<Act>(SigmoidOf(LoadUpTo(gate + i, n)));
    StoreUpTo(RoundToAct<Act>(LoadUpTo(acc + i, n)) * factor, out + i, n);
  });
}

template <typename Act>
void WeightedAdd(const float* acc, float weight, std::int64_t count, float* sum) {
  const Vec factor = Set1(weight);
  ForEachVector(count, [&](std::int64_t i, std::int64_t n) {
    const Vec product = factor * RoundToAct<Act>(LoadUpTo(acc + i, n));
    StoreUpTo(LoadUpTo(sum + i, n) + product, sum + i, n);
  });
}

}  // namespace megalith::kernels::MEGALITH_PATH
