// The path's kernel table. MEGALITH_PATH_ISA names its Isa; MEGALITH_PATH_JOINED_PAIRS is defined
// where bf16 products use a pair instruction.

namespace megalith::kernels::MEGALITH_PATH {

template <typename Act>
KernelTable<Act> MakeTable() {
  KernelTable<Act> table{};
  table.isa = Isa::MEGALITH_PATH_ISA;
  constexpr int kBf16 = static_cast<int>(PanelFormat::kBf16);
  constexpr int kMxfp4 = static_cast<int>(PanelFormat::kMxfp4);
  constexpr int kInt8 = static_cast<int>(PanelFormat::kInt8);
  table.matmul_float[kBf16] = MatmulSplitPairs<float, PanelFormat::kBf16>;
  table.matmul_float[kMxfp4] = MatmulSplitPairs<float, PanelFormat::kMxfp4>;
  table.matmul_float[kInt8] = MatmulSplitPairs<float, PanelFormat::kInt8>;
  if constexpr (std::is_same_v<Act, Bf16>) {
    table.numerics = NumericsOf(table.isa);
    table.matmul[kBf16] = MatmulSplitPairs<Bf16, PanelFormat::kBf16>;
    table.matmul[kMxfp4] = MatmulFixedPoint<PanelFormat::kMxfp4>;
    table.matmul[kInt8] = MatmulFixedPoint<PanelFormat::kInt8>;
#ifdef MEGALITH_PATH_JOINED_PAIRS
    table.matmul[kBf16] = MatmulJoinedPairs;
#endif
  } else {
    table.numerics = {DotOrder::kSplitPairs, QuantizedDot::kFloatChains};
    for (int format = 0; format < kNumPanelFormats; ++format) {
      table.matmul[format] = table.matmul_float[format];
    }
  }
  table.attn_res_norm = AttnResNorm<Act>;
  table.rms_norm = RmsNorm<Act>;
  table.head_norm_rotary = HeadNormRotary<Act>;
  table.gated_pair = GatedPair<Act>;
  table.store = StoreRounded<Act>;
  table.add_residual = AddResidual<Act>;
  table.add_shared_residual = AddSharedResidual<Act>;
  table.sigmoid_gate = SigmoidGate<Act>;
  table.weighted_add = WeightedAdd<Act>;
  table.kda_head = KdaHead<Act>;
  table.kda_chunks = KdaChunks<Act>;
  table.mla_attention = MlaAttention<Act>;
  table.mla_partial = MlaPartial<Act>;
  table.mla_merge = MlaMerge;
  if constexpr (std::is_same_v<Act, Bf16>) table.mla_expanded = MlaExpanded;
  table.draft_attention = DraftAttention<Act>;
  table.router_top_k = RouterTopK;
  return table;
}

template <Vec (*kFunction)(Vec)>
void ApplyToArray(const float* in, std::int64_t count, float* out) {
  ForEachVector(count, [&](std::int64_t i, std::int64_t n) {
    StoreUpTo(kFunction(LoadUpTo(in + i, n)), out + i, n);
  });
}

inline constexpr MathTable kMath = {ApplyToArray<ExpOf<false, Vec>>, ApplyToArray<SigmoidOf<Vec>>,
                                    ApplyToArray<TanhOf<Vec>>, ApplyToArray<SoftplusOf<Vec>>};

}  // namespace megalith::kernels::MEGALITH_PATH
