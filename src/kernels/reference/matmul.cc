#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/activation.h"
#include "kernels/reference/reference.h"

namespace megalith::kernels::reference {
namespace {

std::vector<FixedPointBlock> RowToFixedPoint(const Bf16* x, std::int64_t inputs) {
  std::vector<FixedPointBlock> blocks;
  for (std::int64_t begin = 0; begin < inputs; begin += kBlockInputs) {
    blocks.push_back(ToFixedPoint(x + begin, std::min<std::int64_t>(kBlockInputs, inputs - begin)));
  }
  return blocks;
}

/// One output in fixed point: the weights are row n of a panel.
float FixedPointDot(PanelFormat format, const std::byte* panel, std::int64_t inputs, int n,
                    const std::vector<FixedPointBlock>& x) {
  float acc = 0.0f;
  std::int64_t k = 0;
  for (const FixedPointBlock& block : x) {
    const float w_scale = PanelScale(format, panel, inputs, n, k / kBlockInputs);
    std::int32_t sum = 0;
    for (const std::int16_t value : block.value) {
      sum += value * PanelInteger(format, panel, inputs, n, k++);
    }
    const float x_scale =
        FixedPointScale(block.exponent, block.finite, format == PanelFormat::kMxfp4);
    acc = acc + (static_cast<float>(sum) * x_scale) * w_scale;
  }
  return acc;
}

/// One output in float: the weights are row n of a panel, x holds `inputs` elements.
template <typename X>
float FloatDot(PanelFormat format, const std::byte* panel, std::int64_t inputs, int n, const X* x,
               DotNumerics numerics) {
  const bool expands = numerics.quantized == QuantizedDot::kExpanded;
  const auto weight = [&](std::int64_t k) {
    return expands ? ToFloat(ToBf16(PanelElement(format, panel, inputs, n, k)))
                   : PanelUnscaled(format, panel, inputs, n, k);
  };
  const auto input = [&](std::int64_t k) { return k < inputs ? Widen(x[k]) : 0.0f; };
  const auto multiply_add = [](float w, float value, float sum) {
    if constexpr (std::is_same_v<X, Bf16>) {
      return FusedMultiplyAdd(w, value, sum);
    } else {
      return w * value + sum;
    }
  };
  float acc = 0.0f;
  for (std::int64_t begin = 0; begin < inputs; begin += kBlockInputs) {
    float block_sum;
    if (numerics.order == DotOrder::kSplitPairs) {
      float even = 0.0f;
      float odd = 0.0f;
      for (std::int64_t k = begin; k < begin + kBlockInputs; k += 2) {
        even = multiply_add(weight(k), input(k), even);
        odd = multiply_add(weight(k + 1), input(k + 1), odd);
      }
      block_sum = even + odd;
    } else {
      float chain = 0.0f;
      for (std::int64_t k = begin; k < begin + kBlockInputs; k += 2) {
        chain = multiply_add(weight(k + 1), input(k + 1), chain);
        chain = multiply_add(weight(k), input(k), chain);
      }
      block_sum = chain;
    }
    acc = acc + (expands ? block_sum
                         : block_sum * PanelScale(format, panel, inputs, n, begin / kBlockInputs));
  }
  return acc;
}

}  // namespace

template <typename X>
void Matmul(const MatmulArgs<X>& args, PanelFormat format, DotNumerics numerics) {
  if constexpr (std::is_same_v<X, float>) {
    numerics = {DotOrder::kSplitPairs, QuantizedDot::kFloatChains};
  }
  const bool fixed = IsQuantized(format) && numerics.quantized == QuantizedDot::kFixedPoint;
  const std::int64_t panel_bytes = PanelBytes(format, args.inputs);
  for (std::int64_t r = 0; r < args.rows; ++r) {
    const std::int64_t x_row = args.row_indices != nullptr ? args.row_indices[r] : r;
    const X* x = args.x + x_row * args.x_stride;
    std::vector<FixedPointBlock> fixed_x;
    if constexpr (std::is_same_v<X, Bf16>) {
      if (fixed) fixed_x = RowToFixedPoint(x, args.inputs);
    }
    for (std::int64_t p = 0; p < args.num_panels; ++p) {
      const std::byte* panel = args.panels + p * panel_bytes;
      for (int n = 0; n < kPanelOutputs; ++n) {
        args.acc[r * args.acc_stride + p * kPanelOutputs + n] =
            fixed ? FixedPointDot(format, panel, args.inputs, n, fixed_x)
                  : FloatDot(format, panel, args.inputs, n, x, numerics);
      }
    }
  }
}

template void Matmul<Bf16>(const MatmulArgs<Bf16>&, PanelFormat, DotNumerics);
template void Matmul<float>(const MatmulArgs<float>&, PanelFormat, DotNumerics);

}  // namespace megalith::kernels::reference
