// Quantised panels times rows of bf16, in fixed point. The integer sums are exact, so only the
// float operations per block have an order: rule 1 of numerics.h.

namespace megalith::kernels::MEGALITH_PATH {

/// Rows in the form the path multiplies, in the scratch of a matmul.
struct FixedRows {
  std::byte* values;      ///< [rows][blocks][kFixedBlockBytes]
  std::int32_t* initial;  ///< [rows][blocks]: takes back what unsigned codes add to a block's sum
  float* scale;           ///< [rows][blocks]

  FixedRows(float* scratch, std::int64_t rows, std::int64_t blocks)
      : values(reinterpret_cast<std::byte*>(scratch)),
        initial(reinterpret_cast<std::int32_t*>(values + rows * blocks * kFixedBlockBytes)),
        scale(reinterpret_cast<float*>(initial + rows * blocks)) {
    static_assert(kFixedBlockBytes + sizeof(std::int32_t) + sizeof(float) <=
                  kBlockInputs * sizeof(float));  // MatmulScratchFloats
  }
};

template <PanelFormat kFormat, FixedForm kForm>
inline void ConvertRows(const MatmulArgs<Bf16>& args, std::int64_t first_row, std::int64_t rows,
                        std::int64_t blocks, const FixedRows& out) {
  constexpr bool kDoubled = kFormat == PanelFormat::kMxfp4;
  constexpr std::int32_t kOffset = kDoubled ? kMxfp4Offset : kInt8Offset;
  for (std::int64_t r = 0; r < rows; ++r) {
    const Bf16* x = InputRow(args, first_row + r);
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t i = r * blocks + b;
      const Bf16* block = x + b * kBlockInputs;
      Bf16 padded[kBlockInputs] = {};
      if (const std::int64_t count = args.inputs - b * kBlockInputs; count < kBlockInputs) {
        std::memcpy(padded, block, static_cast<std::size_t>(count) * sizeof(Bf16));
        block = padded;
      }
      const FixedBlockInfo info =
          ConvertFixedBlock<kForm>(block, out.values + i * kFixedBlockBytes);
      out.initial[i] = -kOffset * info.sum;
      out.scale[i] = FixedPointScale(info.exponent, info.finite, kDoubled);
    }
  }
}

template <int kRows, PanelFormat kFormat>
void MultiplyFixedPoint(const std::byte* panels, std::int64_t num_panels, std::int64_t panel_bytes,
                        std::int64_t blocks, const FixedRows& x, float* out,
                        std::int64_t out_stride) {
  const std::int64_t x_stride = blocks * kFixedBlockBytes;
  for (std::int64_t p = 0; p < num_panels; ++p) {
    const Panel<kFormat> panel(panels + p * panel_bytes);
    Vec acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = Zero();
    for (std::int64_t b = 0; b < blocks; ++b) {
      Vec sums[kRows];
      SumFixedBlock<kRows, kFormat>(panel.Block(b), x.values + b * kFixedBlockBytes, x_stride,
                                    x.initial + b, blocks, sums);
      const Vec scales = panel.Scales(b);
      for (int r = 0; r < kRows; ++r) {
        acc[r] = acc[r] + (sums[r] * Set1(x.scale[r * blocks + b])) * scales;
      }
    }
    for (int r = 0; r < kRows; ++r) Store(acc[r], out + r * out_stride + p * kPanelOutputs);
  }
}

template <PanelFormat kFormat>
void MatmulFixedPoint(const MatmulArgs<Bf16>& args) {
  const std::int64_t blocks = CeilDiv<std::int64_t>(args.inputs, kBlockInputs);
  const std::int64_t panel_bytes = PanelBytes(kFormat, args.inputs);
  for (std::int64_t first = 0; first < args.rows; first += kMatmulRowBlock) {
    const std::int64_t rows =
        args.rows - first < kMatmulRowBlock ? args.rows - first : kMatmulRowBlock;
    const FixedRows x(args.scratch, rows, blocks);
    float* out = args.acc + first * args.acc_stride;
    WithRows(rows, [&](auto count) {
      ConvertRows<kFormat, FormFor<kFormat>(count)>(args, first, rows, blocks, x);
      MultiplyFixedPoint<count, kFormat>(args.panels, args.num_panels, panel_bytes, blocks, x, out,
                                         args.acc_stride);
    });
  }
}

}  // namespace megalith::kernels::MEGALITH_PATH
