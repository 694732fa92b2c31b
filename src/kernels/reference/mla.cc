#include <algorithm>

#include "kernels/activation.h"
#include "kernels/reference/reference.h"

namespace megalith::kernels::reference {
namespace {

/// Latent, then extra key of a position.
template <typename Act>
const Act* CacheRow(const MlaAttentionArgs<Act>& args, std::int64_t position) {
  const std::int64_t page = args.page_table[position / args.page_tokens];
  return args.cache +
         (page * args.page_tokens + position % args.page_tokens) * (args.rank + args.extra);
}

template <typename Act>
float Score(const MlaAttentionArgs<Act>& args, std::int64_t head, std::int64_t position) {
  const float* latent_query = args.latent_query + head * args.latent_query_stride;
  const Act* extra_query = args.extra_query + head * args.extra_query_stride;
  const Act* row = CacheRow(args, position);
  float lanes[kLanes] = {};
  AddToLanes(lanes, args.rank, [&](std::int64_t i) { return latent_query[i] * Widen(row[i]); });
  AddToLanes(lanes, args.extra,
             [&](std::int64_t i) { return Widen(extra_query[i]) * Widen(row[args.rank + i]); });
  return FoldLanes(lanes) * args.scale;
}

template <typename Act>
void AttendHead(const MlaAttentionArgs<Act>& args, std::int64_t head) {
  float* out = args.out + head * args.out_stride;
  float* part_out = args.scratch;
  float* probabilities = args.scratch + RoundUp<std::int64_t>(args.rank, kLanes);
  float max = 0.0f;
  float total = 0.0f;
  for (std::int64_t begin = 0; begin < args.num_positions; begin += args.split) {
    const std::int64_t count = std::min(args.split, args.num_positions - begin);
    for (std::int64_t i = 0; i < count; ++i) probabilities[i] = Score(args, head, begin + i);
    float part_max = probabilities[0];
    for (std::int64_t i = 1; i < count; ++i) {
      part_max = probabilities[i] > part_max ? probabilities[i] : part_max;
    }
    for (std::int64_t i = 0; i < count; ++i) probabilities[i] = Exp(probabilities[i] - part_max);
    const float part_total = LaneSum(count, [&](std::int64_t i) { return probabilities[i]; });
    std::fill_n(part_out, args.rank, 0.0f);
    for (std::int64_t i = 0; i < count; ++i) {
      const Act* latent = CacheRow(args, begin + i);
      for (std::int64_t c = 0; c < args.rank; ++c) {
        part_out[c] = part_out[c] + probabilities[i] * Widen(latent[c]);
      }
    }
    if (begin == 0) {
      max = part_max;
      total = part_total;
      std::copy_n(part_out, args.rank, out);
      continue;
    }
    const float merged_max = part_max > max ? part_max : max;
    const float old_scale = Exp(max - merged_max);
    const float part_scale = Exp(part_max - merged_max);
    for (std::int64_t c = 0; c < args.rank; ++c) {
      out[c] = out[c] * old_scale + part_out[c] * part_scale;
    }
    total = total * old_scale + part_total * part_scale;
    max = merged_max;
  }
  for (std::int64_t c = 0; c < args.rank; ++c) out[c] = out[c] / total;
}

}  // namespace

template <typename Act>
void MlaAttention(const MlaAttentionArgs<Act>& args) {
  for (std::int64_t row = 0; row < args.rows; ++row) {
    MlaAttentionArgs<Act> of_row = args;
    of_row.latent_query += row * args.latent_query_row_stride;
    of_row.extra_query += row * args.extra_query_row_stride;
    of_row.num_positions += row;
    of_row.out += row * args.out_row_stride;
    for (std::int64_t head = 0; head < args.heads; ++head) AttendHead(of_row, head);
  }
}

template void MlaAttention<Bf16>(const MlaAttentionArgs<Bf16>&);
template void MlaAttention<float>(const MlaAttentionArgs<float>&);

}  // namespace megalith::kernels::reference
