// Fixed-point products of quantised weights in plain C++, and the description of the interface that
// the other quantized_*-inl.h implement.

namespace megalith::kernels::MEGALITH_PATH {

/// Form of the activations that SumFixedBlock wants for a product of so many rows.
template <PanelFormat kFormat>
constexpr FixedForm FormFor(std::int64_t /*rows*/) {
  return FixedForm::kInOrder;
}

/// ToFixedPoint of 32 activations; `out` gets kFixedBlockBytes, 64-byte aligned.
template <FixedForm kForm>
inline FixedBlockInfo ConvertFixedBlock(const Bf16* x, std::byte* out) {
  static_assert(kForm == FixedForm::kInOrder);
  const FixedPointBlock block = ToFixedPoint(x, kBlockInputs);
  std::memcpy(out, block.value, sizeof(block.value));
  std::int32_t sum = 0;
  for (const std::int16_t value : block.value) sum += value;
  return {block.exponent, block.finite, sum};
}

/// sums[r] = float(initial[r * initial_stride] + sum over k of unsigned code k * value k of row r)
/// for the codes of one block; x + r * x_stride is what ConvertFixedBlock wrote for the row.
template <int kRows, PanelFormat kFormat>
inline void SumFixedBlock(const std::byte* codes, const std::byte* x, std::int64_t x_stride,
                          const std::int32_t* initial, std::int64_t initial_stride, Vec* sums) {
  std::int16_t weights[kBlockInputs][kPanelOutputs];
  if constexpr (kFormat == PanelFormat::kMxfp4) {
    for (int group = 0; group < kBlockInputs / 8; ++group) {
      for (int n = 0; n < kPanelOutputs; ++n) {
        for (int i = 0; i < 4; ++i) {
          const auto code = std::to_integer<unsigned>(codes[group * 64 + n * 4 + i]);
          weights[group * 8 + i][n] = kE2m1Offset[code & 15u];
          weights[group * 8 + 4 + i][n] = kE2m1Offset[code >> 4];
        }
      }
    }
  } else {
    for (int k = 0; k < kBlockInputs; ++k) {
      for (int n = 0; n < kPanelOutputs; ++n) {
        weights[k][n] = std::to_integer<std::int16_t>(codes[k / 4 * 64 + n * 4 + k % 4]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    std::int16_t values[kBlockInputs];
    std::memcpy(values, x + r * x_stride, sizeof(values));
    std::int32_t sum[kPanelOutputs];
    for (int n = 0; n < kPanelOutputs; ++n) sum[n] = initial[r * initial_stride];
    for (int k = 0; k < kBlockInputs; ++k) {
      for (int n = 0; n < kPanelOutputs; ++n) sum[n] += weights[k][n] * values[k];
    }
    sums[r] = ForEachLane([&](int n) { return static_cast<float>(sum[n]); });
  }
}

/// The 16 scales of one block.
template <PanelFormat kFormat>
inline Vec LoadScales(const std::byte* p) {
  if constexpr (kFormat == PanelFormat::kInt8) {
    return Load(reinterpret_cast<const Bf16*>(p));
  } else {
    return ForEachLane([&](int n) { return E8m0Value(std::to_integer<std::uint8_t>(p[n])); });
  }
}

}  // namespace megalith::kernels::MEGALITH_PATH
