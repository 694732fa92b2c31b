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

/// a * b + c: fused for bf16, whose product is exact, rounded twice for floats.
template <typename Act>
float AddProduct(float a, float b, float c) {
  if constexpr (std::is_same_v<Act, Bf16>) {
    return FusedMultiplyAdd(a, b, c);
  } else {
    return a * b + c;
  }
}

/// lanes += query(i) * key[i], i < count, in pairs: the odd one first.
template <typename Act, typename Query>
void AddPairs(float (&lanes)[kLanes], std::int64_t count, Query query, const Act* key) {
  const auto add = [&](std::int64_t i, float& lane) {
    const bool exists = i < count;
    lane = AddProduct<Act>(exists ? query(i) : 0.0f, exists ? Widen(key[i]) : 0.0f, lane);
  };
  for (std::int64_t i = 0; i < count; i += kBlockInputs) {
    for (std::int64_t j = 0; j < kLanes; ++j) {
      add(i + 2 * j + 1, lanes[j]);
      add(i + 2 * j, lanes[j]);
    }
  }
}

template <typename Act>
float Score(const MlaAttentionArgs<Act>& args, std::int64_t head, std::int64_t position) {
  const float* latent_query = args.latent_query + head * args.latent_query_stride;
  const Act* extra_query = args.extra_query + head * args.extra_query_stride;
  const Act* row = CacheRow(args, position);
  float lanes[kLanes] = {};
  AddPairs<Act>(
      lanes, args.rank, [&](std::int64_t i) { return Rounded<Act>(latent_query[i]); }, row);
  AddPairs<Act>(
      lanes, args.extra, [&](std::int64_t i) { return Widen(extra_query[i]); }, row + args.rank);
  return FoldLanes(lanes) * args.scale;
}

/// What belongs to an output that is not divided yet.
struct SoftmaxSum {
  float max;
  float total;
};

/// One part: out[0 .. rank) for the `count` positions from `begin` on.
template <typename Act>
SoftmaxSum AttendPart(const MlaAttentionArgs<Act>& args, std::int64_t head, std::int64_t begin,
                      std::int64_t count, float* probabilities, float* out) {
  for (std::int64_t i = 0; i < count; ++i) probabilities[i] = Score(args, head, begin + i);
  SoftmaxSum sum{probabilities[0], 0.0f};
  for (std::int64_t i = 1; i < count; ++i) {
    sum.max = probabilities[i] > sum.max ? probabilities[i] : sum.max;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    probabilities[i] = Rounded<Act>(Exp(probabilities[i] - sum.max));
  }
  sum.total = LaneSum(count, [&](std::int64_t i) { return probabilities[i]; });
  std::fill_n(out, args.rank, 0.0f);
  const auto add = [&](std::int64_t i) {
    const Act* latent = i < count ? CacheRow(args, begin + i) : nullptr;
    for (std::int64_t c = 0; c < args.rank; ++c) {
      out[c] = latent == nullptr ? AddProduct<Act>(0.0f, 0.0f, out[c])
                                 : AddProduct<Act>(probabilities[i], Widen(latent[c]), out[c]);
    }
  };
  for (std::int64_t i = 0; i < count; i += 2) {
    add(i + 1);
    add(i);
  }
  return sum;
}

/// sum and out = they and what comes after them, over their common maximum.
void Merge(std::int64_t rank, SoftmaxSum next, const float* next_out, SoftmaxSum* sum, float* out) {
  const float merged_max = next.max > sum->max ? next.max : sum->max;
  const float old_scale = Exp(sum->max - merged_max);
  const float next_scale = Exp(next.max - merged_max);
  for (std::int64_t c = 0; c < rank; ++c) {
    out[c] = out[c] * old_scale + next_out[c] * next_scale;
  }
  sum->total = sum->total * old_scale + next.total * next_scale;
  sum->max = merged_max;
}

void Divide(std::int64_t rank, SoftmaxSum sum, float* out) {
  for (std::int64_t c = 0; c < rank; ++c) out[c] = out[c] / sum.total;
}

// Scratch: the output of a part, that of a chunk, the probabilities of a part.

/// The chunk from position `begin` on, of which the row sees at least one.
template <typename Act>
SoftmaxSum AttendChunk(const MlaAttentionArgs<Act>& args, std::int64_t head, std::int64_t begin,
                       float* out) {
  float* part_out = args.scratch;
  float* probabilities = args.scratch + 2 * RoundUp<std::int64_t>(args.rank, kLanes);
  const std::int64_t end = std::min(begin + args.chunk, args.num_positions);
  SoftmaxSum sum =
      AttendPart(args, head, begin, std::min(args.split, end - begin), probabilities, out);
  for (std::int64_t part = begin + args.split; part < end; part += args.split) {
    const SoftmaxSum next =
        AttendPart(args, head, part, std::min(args.split, end - part), probabilities, part_out);
    Merge(args.rank, next, part_out, &sum, out);
  }
  return sum;
}

template <typename Act>
void AttendHead(const MlaAttentionArgs<Act>& args, std::int64_t head) {
  float* out = args.out + head * args.out_stride;
  float* chunk_out = args.scratch + RoundUp<std::int64_t>(args.rank, kLanes);
  SoftmaxSum sum = AttendChunk(args, head, 0, out);
  for (std::int64_t begin = args.chunk; begin < args.num_positions; begin += args.chunk) {
    const SoftmaxSum next = AttendChunk(args, head, begin, chunk_out);
    Merge(args.rank, next, chunk_out, &sum, out);
  }
  Divide(args.rank, sum, out);
}

/// The arguments of one row alone.
template <typename Act>
MlaAttentionArgs<Act> OfRow(const MlaAttentionArgs<Act>& args, std::int64_t row) {
  MlaAttentionArgs<Act> of_row = args;
  of_row.latent_query += row * args.latent_query_row_stride;
  of_row.extra_query += row * args.extra_query_row_stride;
  of_row.num_positions += row;
  of_row.out += row * args.out_row_stride;
  of_row.rows = 1;
  return of_row;
}

}  // namespace

template <typename Act>
void MlaAttention(const MlaAttentionArgs<Act>& args) {
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const MlaAttentionArgs<Act> of_row = OfRow(args, row);
    for (std::int64_t head = 0; head < args.heads; ++head) AttendHead(of_row, head);
  }
}

template <typename Act>
void MlaPartial(const MlaAttentionArgs<Act>& args, std::int64_t chunk) {
  const std::int64_t begin = chunk * args.chunk;
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const MlaAttentionArgs<Act> of_row = OfRow(args, row);
    if (begin >= of_row.num_positions) continue;
    for (std::int64_t head = 0; head < args.heads; ++head) {
      float* out = of_row.out + head * args.out_stride;
      const SoftmaxSum sum = AttendChunk(of_row, head, begin, out);
      out[args.rank] = sum.max;
      out[args.rank + 1] = sum.total;
    }
  }
}

void MlaMerge(const MlaMergeArgs& args) {
  const auto sum_of = [&](const float* partial) {
    return SoftmaxSum{partial[args.rank], partial[args.rank + 1]};
  };
  SoftmaxSum sum = sum_of(args.partials[0]);
  std::copy_n(args.partials[0], args.rank, args.out);
  for (std::int64_t chunk = 1; chunk < args.num_chunks; ++chunk) {
    const float* partial = args.partials[chunk];
    Merge(args.rank, sum_of(partial), partial, &sum, args.out);
  }
  Divide(args.rank, sum, args.out);
}

template void MlaAttention<Bf16>(const MlaAttentionArgs<Bf16>&);
template void MlaAttention<float>(const MlaAttentionArgs<float>&);
template void MlaPartial<Bf16>(const MlaAttentionArgs<Bf16>&, std::int64_t);
template void MlaPartial<float>(const MlaAttentionArgs<float>&, std::int64_t);

}  // namespace megalith::kernels::reference
