// Fixed-point products of quantised weights by vpmaddubsw and vpmaddwd, over the IntVec of
// quantized_avx2-inl.h (8 outputs) or quantized_avx512-inl.h (16).

#include "kernels/cpu/quantized_words-inl.h"

namespace megalith::kernels::MEGALITH_PATH {

/// How a block of activations is converted. kPairs: 16-bit pairs of inputs 4 j .. 4 j + 3, first
/// (0, 2), then (1, 3), the bytes that a mask and a shift of a word of 4 codes leave next to each
/// other. kLimbs: the upper limbs of the 32 values, then the lower ones, in order, signed bytes.
/// For few rows limbs spare MXFP4 that mask and shift (14 operations per 64 bytes of codes and row
/// for 17, then 9 for 8 per row more); products of int8 codes do not fit the 16 bits of vpmaddubsw.
template <PanelFormat kFormat>
constexpr FixedForm FormFor(std::int64_t rows) {
  return kFormat == PanelFormat::kMxfp4 && rows <= 3 ? FixedForm::kLimbs : FixedForm::kPairs;
}

template <int kRows, PanelFormat kFormat>
MEGALITH_INLINE void AddPairProducts(const std::byte* codes, const std::byte* x,
                                     std::int64_t x_stride, IntVec* sums) {
  ForEachWord<kFormat>(codes, [&](int j, IntVec word) MEGALITH_INLINE_LAMBDA {
    const IntVec even = LowBytes(word);
    const IntVec odd = HighBytes(word);
    ForEachConstant<kRows>([&](auto r) MEGALITH_INLINE_LAMBDA {
      const auto* pairs = reinterpret_cast<const std::int32_t*>(x + r * x_stride) + 2 * j;
      sums[r] = Add32(sums[r], MultiplyAdd16(even, Broadcast(pairs[0])));
      sums[r] = Add32(sums[r], MultiplyAdd16(odd, Broadcast(pairs[1])));
    });
  });
}

/// Four sums of two products are at most 4 * 2 * 24 * 128 = 24576: they are added in 16 bits.
template <int kRows>
MEGALITH_INLINE void AddLimbProducts(const std::byte* codes, const std::byte* x,
                                     std::int64_t x_stride, IntVec* sums) {
  IntVec upper[kRows];
  IntVec lower[kRows];
  ForEachWord<PanelFormat::kMxfp4>(codes, [&](int j, IntVec word) MEGALITH_INLINE_LAMBDA {
    ForEachConstant<kRows>([&](auto r) MEGALITH_INLINE_LAMBDA {
      const auto* limbs = reinterpret_cast<const std::int32_t*>(x + r * x_stride);
      const IntVec up = MultiplyAdd8(word, Broadcast(limbs[j]));
      const IntVec low = MultiplyAdd8(word, Broadcast(limbs[8 + j]));
      upper[r] = j % 4 == 0 ? up : Add16(upper[r], up);
      lower[r] = j % 4 == 0 ? low : Add16(lower[r], low);
      if (j % 4 == 3) {
        sums[r] = Add32(sums[r], MultiplyAdd16(upper[r], Broadcast(0x01000100)));
        sums[r] = Add32(sums[r], MultiplyAdd16(lower[r], Broadcast(0x00010001)));
      }
    });
  });
}

template <int kRows, PanelFormat kFormat>
MEGALITH_INLINE void AddFixedProducts(const std::byte* codes, const std::byte* x,
                                      std::int64_t x_stride, IntVec* sums) {
  if constexpr (FormFor<kFormat>(kRows) == FixedForm::kLimbs) {
    AddLimbProducts<kRows>(codes, x, x_stride, sums);
  } else {
    AddPairProducts<kRows, kFormat>(codes, x, x_stride, sums);
  }
}

}  // namespace megalith::kernels::MEGALITH_PATH
