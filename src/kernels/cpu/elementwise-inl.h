// Element-wise kernels; formulas at their members in kernel_table.h.

namespace megalith::kernels::MEGALITH_PATH {

/// Every other panel from p on. Panels are whole even where outputs end.
template <int kCount>
MEGALITH_INLINE Vecs<kCount> LoadPanels(const float* p, FullVectors<kCount>) {
  return EachVec<kCount>([&](int i)
                             MEGALITH_INLINE_LAMBDA { return Load(p + 2 * i * kPanelOutputs); });
}
MEGALITH_INLINE Vec LoadPanels(const float* p, OneVector) { return Load(p); }

template <typename Act>
void GatedPair(const GatedPairArgs<Act>& args) {
  const GatedParameters activation = args.activation;
  ForEachBlock(args.count, [&](std::int64_t i, auto block) MEGALITH_INLINE_LAMBDA {
    const auto gate = RoundToAct<Act>(LoadPanels(args.acc + 2 * i, block));
    const auto up = RoundToAct<Act>(LoadPanels(args.acc + 2 * i + kPanelOutputs, block));
    const auto value = activation.kind == GatedActivation::kSitu
                           ? SituOf(gate, up, activation.beta, activation.linear_beta)
                           : SiluOf(gate) * up;
    StoreBlock(value, args.out + i, block);
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
  ForEachBlock(count, [&](std::int64_t i, auto block) MEGALITH_INLINE_LAMBDA {
    const auto factor = RoundToAct<Act>(SigmoidOf(LoadBlock(gate + i, block)));
    StoreBlock(RoundToAct<Act>(LoadBlock(acc + i, block)) * factor, out + i, block);
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
