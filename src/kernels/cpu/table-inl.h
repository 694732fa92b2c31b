// The path's kernel table. MEGALITH_PATH_ISA names its Isa; MEGALITH_PATH_JOINED_PAIRS is defined
// where bf16 products use a pair instruction.

namespace megalith::kernels::MEGALITH_PATH {

template <typename Act>
KernelTable<Act> MakeTable() {
  KernelTable<Act> table{};
  table.isa = Isa::MEGALITH_PATH_ISA;
  table.dot_order = DotOrder::kSplitPairs;
  table.matmul[static_cast<int>(PanelFormat::kBf16)] = MatmulSplitPairs<Act, PanelFormat::kBf16>;
  table.matmul[static_cast<int>(PanelFormat::kMxfp4)] = MatmulSplitPairs<Act, PanelFormat::kMxfp4>;
#ifdef MEGALITH_PATH_JOINED_PAIRS
  if constexpr (std::is_same_v<Act, Bf16>) {
    table.dot_order = DotOrder::kJoinedPairs;
    table.matmul[static_cast<int>(PanelFormat::kBf16)] = MatmulJoinedPairs<PanelFormat::kBf16>;
    table.matmul[static_cast<int>(PanelFormat::kMxfp4)] = MatmulJoinedPairs<PanelFormat::kMxfp4>;
  }
#endif
  table.matmul_float[static_cast<int>(PanelFormat::kBf16)] =
      MatmulSplitPairs<float, PanelFormat::kBf16>;
  table.matmul_float[static_cast<int>(PanelFormat::kMxfp4)] =
      MatmulSplitPairs<float, PanelFormat::kMxfp4>;
  table.attn_res_norm = AttnResNorm<Act>;
  table.rms_norm = RmsNorm<Act>;
  table.gated_pair = GatedPair<Act>;
  table.store = StoreRounded<Act>;
  table.add_residual = AddResidual<Act>;
  table.add_shared_residual = AddSharedResidual<Act>;
  table.sigmoid_gate = SigmoidGate<Act>;
  table.weighted_add = WeightedAdd<Act>;
  table.kda_head = KdaHead<Act>;
  table.mla_attention = MlaAttention<Act>;
  table.router_top_k = RouterTopK;
  return table;
}

template <Vec (*kFunction)(Vec)>
void ApplyToArray(const float* in, std::int64_t count, float* out) {
  ForEachVector(count, [&](std::int64_t i, std::int64_t n) {
    StoreUpTo(kFunction(LoadUpTo(in + i, n)), out + i, n);
  });
}

inline constexpr MathTable kMath = {ApplyToArray<ExpOf>, ApplyToArray<SigmoidOf>,
                                    ApplyToArray<TanhOf>, ApplyToArray<SoftplusOf>};

}  // namespace megalith::kernels::MEGALITH_PATH
