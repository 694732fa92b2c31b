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

/// Converts one part of some rows.
template <PanelFormat kFormat, FixedForm kForm>
inline void ConvertRows(const MatmulArgs<Bf16>& args, std::int64_t first_row, std::int64_t rows,
                        Part part, const FixedRows& out) {
  constexpr bool kDoubled = kFormat == PanelFormat::kMxfp4;
  constexpr std::int32_t kOffset = kDoubled ? kMxfp4Offset : kInt8Offset;
  std::int64_t i = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const Bf16* x = InputRow(args, first_row + r);
    for (std::int64_t b = part.first; b < part.last; ++b, ++i) {
      const Bf16* block = x + b * kBlockInputs;
      Bf16 padded[kBlockInputs];
      if (const std::int64_t count = args.inputs - b * kBlockInputs; count < kBlockInputs) {
        std::memset(padded, 0, sizeof(padded));
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
                        Part part, const FixedRows& x, float* out, std::int64_t out_stride) {
  const std::int64_t size = part.size();
  ForEachPanel<kRows, ReadingFor<kFormat, kRows>().panels>(
      panels, num_panels, panel_bytes, part.first == 0, out, out_stride,
      [&](auto count, const std::byte* start, Vec* acc) MEGALITH_INLINE_LAMBDA {
        for (std::int64_t i = 0; i < size; ++i) {
          const std::int64_t b = part.first + i;
          ForEachConstant<count>([&](auto j) MEGALITH_INLINE_LAMBDA {
            const Panel<kFormat> panel(start + j * panel_bytes);
            panel.template Prefetch<kRows>(b);
            Vec sums[kRows];
            SumFixedBlock<kRows, kFormat>(panel.Block(b), x.values + i * kFixedBlockBytes,
                                          size * kFixedBlockBytes, x.initial + i, size, sums);
            const Vec scales = panel.Scales(b);
            for (int r = 0; r < kRows; ++r) {
              Vec& sum = acc[j * kRows + r];
              sum = sum + (sums[r] * Set1(x.scale[r * size + i])) * scales;
            }
          });
        }
      });
}

template <PanelFormat kFormat>
void MatmulFixedPoint(const MatmulArgs<Bf16>& args) {
  const std::int64_t panel_bytes = PanelBytes(kFormat, args.inputs);
  ForEachRowBlock(args, kFixedBlockBytes, Panel<kFormat>::kBlockBytes,
                  [&](Part part, std::int64_t first, std::int64_t rows) {
                    const FixedRows x(args.scratch, rows, part.size());
                    float* out = args.acc + first * args.acc_stride;
                    WithRows(rows, [&](auto count) {
                      ConvertRows<kFormat, FormFor<kFormat>(count)>(args, first, rows, part, x);
                      MultiplyFixedPoint<count, kFormat>(args.panels, args.num_panels, panel_bytes,
                                                         part, x, out, args.acc_stride);
                    });
                  });
}

}  // namespace megalith::kernels::MEGALITH_PATH
