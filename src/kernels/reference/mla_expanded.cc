#include <algorithm>
#include <vector>

#include "kernels/activation.h"
#include "kernels/reference/reference.h"

namespace megalith::kernels::reference {
namespace {

/// Rows of bf16: one matrix.
struct Matrix {
  Matrix(std::int64_t num_rows, std::int64_t num_columns)
      : columns(num_columns), elements(static_cast<std::size_t>(num_rows * num_columns)) {}
  Bf16* Row(std::int64_t r) { return elements.data() + r * columns; }
  std::int64_t columns;
  std::vector<Bf16> elements;
};

/// Rule 1 of numerics.h for two rows of bf16, zeros beyond the end.
float Dot(const Bf16* weights, const Bf16* x, std::int64_t inputs, DotNumerics numerics) {
  const auto at = [inputs](const Bf16* row, std::int64_t k) {
    return k < inputs ? ToFloat(row[k]) : 0.0f;
  };
  float acc = 0.0f;
  for (std::int64_t begin = 0; begin < inputs; begin += kBlockInputs) {
    float even = 0.0f;
    float odd = 0.0f;
    for (std::int64_t k = begin; k < begin + kBlockInputs; k += 2) {
      if (numerics.order == DotOrder::kSplitPairs) {
        even = FusedMultiplyAdd(at(weights, k), at(x, k), even);
        odd = FusedMultiplyAdd(at(weights, k + 1), at(x, k + 1), odd);
      } else {
        odd = FusedMultiplyAdd(at(weights, k + 1), at(x, k + 1), odd);
        odd = FusedMultiplyAdd(at(weights, k), at(x, k), odd);
      }
    }
    acc = acc + (numerics.order == DotOrder::kSplitPairs ? even + odd : odd);
  }
  return acc;
}

/// Element (output, input) of packed bf16 panels.
Bf16 PackedElement(const Bf16* panels, std::int64_t inputs, std::int64_t output,
                   std::int64_t input) {
  const auto* bytes = reinterpret_cast<const std::byte*>(panels) +
                      output / kPanelOutputs * PanelBytes(PanelFormat::kBf16, inputs);
  return ToBf16(PanelElement(PanelFormat::kBf16, bytes, inputs,
                             static_cast<int>(output % kPanelOutputs), input));
}

/// Keys and values of all positions that the run sees.
void Expand(const MlaExpandedArgs& args, DotNumerics numerics, Matrix& keys, Matrix& values) {
  Matrix key_weights(args.nope, args.rank);
  for (std::int64_t c = 0; c < args.nope; ++c) {
    for (std::int64_t i = 0; i < args.rank; ++i) {
      key_weights.Row(c)[i] = PackedElement(args.key_weights, args.nope, i, c);
    }
  }
  Matrix value_weights(args.value_dim, args.rank);
  for (std::int64_t c = 0; c < args.value_dim; ++c) {
    for (std::int64_t i = 0; i < args.rank; ++i) {
      value_weights.Row(c)[i] = PackedElement(args.value_weights, args.rank, c, i);
    }
  }
  for (std::int64_t t = 0; t < args.first_position + args.rows; ++t) {
    const std::int64_t page = args.page_table[t / args.page_tokens];
    const Bf16* latent =
        args.cache + (page * args.page_tokens + t % args.page_tokens) * (args.rank + args.extra);
    for (std::int64_t c = 0; c < args.nope; ++c) {
      keys.Row(t)[c] = ToBf16(Dot(key_weights.Row(c), latent, args.rank, numerics));
    }
    std::copy_n(latent + args.rank, args.extra, keys.Row(t) + args.nope);
    for (std::int64_t c = 0; c < args.value_dim; ++c) {
      values.Row(t)[c] = ToBf16(Dot(value_weights.Row(c), latent, args.rank, numerics));
    }
  }
}

/// One row over its positions: the softmax sum of the values, not yet divided, and its total.
float AttendRow(const MlaExpandedArgs& args, DotNumerics numerics, std::int64_t row, Matrix& keys,
                Matrix& values, std::vector<float>& out) {
  const std::int64_t num_positions = args.first_position + row + 1;
  const Bf16* query = args.query + row * args.query_stride;
  std::vector<float> probabilities(static_cast<std::size_t>(args.split));
  std::vector<Bf16> high(probabilities.size()), low(probabilities.size()),
      column(probabilities.size());
  float max = 0.0f;
  float total = 0.0f;
  for (std::int64_t begin = 0; begin < num_positions; begin += args.split) {
    const std::int64_t count = std::min(args.split, num_positions - begin);
    const auto p = [&](std::int64_t i) -> float& {
      return probabilities[static_cast<std::size_t>(i)];
    };
    for (std::int64_t i = 0; i < count; ++i) {
      p(i) = Dot(keys.Row(begin + i), query, args.nope + args.extra, numerics) * args.scale;
    }
    const float part_max = *std::max_element(probabilities.begin(), probabilities.begin() + count);
    for (std::int64_t i = 0; i < count; ++i) p(i) = Exp(p(i) - part_max);
    const float part_total = LaneSum(count, [&](std::int64_t i) { return p(i); });
    for (std::int64_t i = 0; i < count; ++i) {
      high[static_cast<std::size_t>(i)] = ToBf16(p(i));
      low[static_cast<std::size_t>(i)] = ToBf16(p(i) - ToFloat(high[static_cast<std::size_t>(i)]));
    }
    const float merged_max = begin == 0 || part_max > max ? part_max : max;
    const float old_scale = begin == 0 ? 0.0f : Exp(max - merged_max);
    const float part_scale = Exp(part_max - merged_max);
    for (std::int64_t c = 0; c < args.value_dim; ++c) {
      for (std::int64_t i = 0; i < count; ++i) {
        column[static_cast<std::size_t>(i)] = values.Row(begin + i)[c];
      }
      const float part = Dot(column.data(), high.data(), count, numerics) +
                         Dot(column.data(), low.data(), count, numerics) + 0.0f;
      float& sum = out[static_cast<std::size_t>(c)];
      sum = begin == 0 ? part : sum * old_scale + part * part_scale;
    }
    total = begin == 0 ? part_total : total * old_scale + part_total * part_scale;
    max = merged_max;
  }
  return total;
}

}  // namespace

void MlaExpanded(const MlaExpandedArgs& args, DotNumerics numerics) {
  const std::int64_t positions = args.first_position + args.rows;
  Matrix keys(positions, args.nope + args.extra);
  Matrix values(positions, args.value_dim);
  Expand(args, numerics, keys, values);
  std::vector<float> out(static_cast<std::size_t>(args.value_dim));
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const float total = AttendRow(args, numerics, row, keys, values, out);
    for (float& value : out) value = value / total;
    Bf16* target = args.out + row * args.out_stride;
    if (args.gate == nullptr) {
      Store<Bf16>(out.data(), args.value_dim, target);
    } else {
      SigmoidGate<Bf16>(out.data(), args.gate + row * args.gate_stride, args.value_dim, target);
    }
  }
}

}  // namespace megalith::kernels::reference
