// Fixed-point products of quantised weights by vpdpbusd, over the IntVec of quantized_avx512-inl.h.

#include "kernels/cpu/quantized_words-inl.h"

namespace megalith::kernels::MEGALITH_PATH {

/// The upper limbs of the 32 values, then the lower ones, in order, signed bytes.
template <PanelFormat kFormat>
constexpr FixedForm FormFor(std::int64_t /*rows*/) {
  return FixedForm::kLimbs;
}

template <int kRows, PanelFormat kFormat>
MEGALITH_INLINE void AddFixedProducts(const std::byte* codes, const std::byte* x,
                                      std::int64_t x_stride, IntVec* sums) {
  IntVec upper[kRows];
  for (int r = 0; r < kRows; ++r) upper[r] = _mm512_setzero_si512();
  ForEachWord<kFormat>(codes, [&](int j, IntVec word) MEGALITH_INLINE_LAMBDA {
    ForEachConstant<kRows>([&](auto r) MEGALITH_INLINE_LAMBDA {
      const auto* limbs = reinterpret_cast<const std::int32_t*>(x + r * x_stride);
      upper[r] = _mm512_dpbusd_epi32(upper[r], word, Broadcast(limbs[j]));
      sums[r] = _mm512_dpbusd_epi32(sums[r], word, Broadcast(limbs[8 + j]));
    });
  });
  for (int r = 0; r < kRows; ++r) {
    sums[r] = Add32(sums[r], _mm512_slli_epi32(upper[r], 8));
  }
}

}  // namespace megalith::kernels::MEGALITH_PATH
