// Latent attention in absorbed form: some heads of one row over the cached latents.

namespace megalith::kernels::MEGALITH_PATH {

/// Walks the cache rows of consecutive positions through the page table.
template <typename Act>
class CacheCursor {
 public:
  CacheCursor(const MlaAttentionArgs<Act>& args, std::int64_t position)
      : args_(args),
        width_(args.rank + args.extra),
        page_(position / args.page_tokens),
        token_(position % args.page_tokens) {}

  /// Row of the current position; then steps to the next. A call would spill all sums.
  MEGALITH_INLINE const Act* Next() {
    const std::int64_t token = args_.page_table[page_] * args_.page_tokens + token_;
    if (++token_ == args_.page_tokens) {
      token_ = 0;
      ++page_;
    }
    return args_.cache + token * width_;
  }

 private:
  const MlaAttentionArgs<Act>& args_;
  const std::int64_t width_;
  std::int64_t page_;
  std::int64_t token_;
};

/// sum[h * kCount + i] += one vector of the query of head h times the same columns of row i.
/// Inlined, or the sums would live in memory.
template <int kHeads, int kCount, typename Query, typename Act>
MEGALITH_INLINE void AddScores(const Query* query, std::int64_t query_stride,
                               const Act* const (&rows)[kCount], std::int64_t column,
                               std::int64_t n, Vec (&sum)[kHeads * kCount]) {
  Vec queries[kHeads];
  ForEachConstant<kHeads>([&](auto h) { queries[h] = LoadUpTo(query + h * query_stride, n); });
  ForEachConstant<kCount>([&](auto i) {
    const Vec key = LoadUpTo(rows[i] + column, n);
    ForEachConstant<kHeads>([&](auto h) {
      Vec& sum_here = sum[h * kCount + i];
      sum_here = sum_here + queries[h] * key;
    });
  });
}

/// Scores of kCount positions for kHeads heads from `head` on; together, so that their additions
/// overlap and a cached row is widened once. Score of head h, position i: scores[h * split + i].
template <int kHeads, int kCount, typename Act>
inline void ScorePositions(const MlaAttentionArgs<Act>& args, std::int64_t head,
                           CacheCursor<Act>& cursor, float* scores) {
  const Act* rows[kCount];
  Vec sum[kHeads * kCount];
  ForEachConstant<kCount>([&](auto i) { rows[i] = cursor.Next(); });
  ForEachConstant<kHeads * kCount>([&](auto i) { sum[i] = Zero(); });
  const float* latent_query = args.latent_query + head * args.latent_query_stride;
  ForEachVector(args.rank, [&](std::int64_t c, std::int64_t n) MEGALITH_INLINE_LAMBDA {
    AddScores<kHeads, kCount>(latent_query + c, args.latent_query_stride, rows, c, n, sum);
  });
  const Act* extra_query = args.extra_query + head * args.extra_query_stride;
  ForEachVector(args.extra, [&](std::int64_t c, std::int64_t n) MEGALITH_INLINE_LAMBDA {
    AddScores<kHeads, kCount>(extra_query + c, args.extra_query_stride, rows, args.rank + c, n,
                              sum);
  });
  float dots[kHeads * kCount];
  SumLanesOf(sum, dots);
  ForEachConstant<kHeads>([&](auto h) {
    ForEachConstant<kCount>(
        [&](auto i) { scores[h * args.split + i] = dots[h * kCount + i] * args.scale; });
  });
}

/// out[h][c ..] = sum over `count` positions from `begin` of probability * latent, for kHeads heads
/// and kVectors vectors of channels from `c`; n elements of the last vector exist.
template <int kHeads, int kVectors, typename Act>
inline void WeightLatents(const MlaAttentionArgs<Act>& args, std::int64_t begin, std::int64_t count,
                          const float* probabilities, std::int64_t c, std::int64_t n, float* out,
                          std::int64_t out_stride) {
  CacheCursor<Act> cursor(args, begin);
  Vec sum[kHeads][kVectors];
  ForEachConstant<kHeads>(
      [&](auto h) { ForEachConstant<kVectors>([&](auto j) { sum[h][j] = Zero(); }); });
  for (std::int64_t i = 0; i < count; ++i) {
    const Act* latent = cursor.Next() + c;
    Vec values[kVectors];
    ForEachConstant<kVectors>([&](auto j) {
      values[j] = j + 1 < kVectors ? Load(latent + j * kLanes) : LoadUpTo(latent + j * kLanes, n);
    });
    ForEachConstant<kHeads>([&](auto h) {
      const Vec probability = Set1(probabilities[h * args.split + i]);
      ForEachConstant<kVectors>([&](auto j) { sum[h][j] = sum[h][j] + probability * values[j]; });
    });
  }
  ForEachConstant<kHeads>([&](auto h) {
    ForEachConstant<kVectors>(
        [&](auto j) { Store(sum[h][j], out + h * out_stride + c + j * kLanes); });
  });
}

/// The largest of `count` >= 1 scores; any of them if one is NaN, which makes the output NaN.
inline float LargestScore(const float* scores, std::int64_t count) {
  float lanes[kLanes];
  const float* candidates = scores;
  if (count > kLanes) {
    Vec largest = Load(scores + count - kLanes);
    for (std::int64_t i = 0; i + kLanes < count; i += kLanes) {
      largest = Max(largest, Load(scores + i));
    }
    Store(largest, lanes);
    candidates = lanes;
    count = kLanes;
  }
  float largest = candidates[0];
  for (std::int64_t i = 1; i < count; ++i) {
    largest = candidates[i] > largest ? candidates[i] : largest;
  }
  return largest;
}

/// scores -> exp(scores - max), returns their sum; the maximum in *max.
inline float ExpOfScores(float* scores, std::int64_t count, float* max) {
  *max = LargestScore(scores, count);
  const Vec offset = Set1(*max);
  return SumVectors(count, [&](std::int64_t i, std::int64_t n) {
    // exp of the lanes beyond the end is not zero: store, then read back with zeros.
    StoreUpTo(ExpOf(LoadUpTo(scores + i, n) - offset), scores + i, n);
    return LoadUpTo(scores + i, n);
  });
}

/// What the parts so far gave for one head: out holds the weighted sum for probabilities relative
/// to exp(max), `total` the sum of those.
struct SoftmaxSum {
  float max;
  float total;
};

/// out = out and part_out, `count` channels, over their common maximum.
inline void MergePart(std::int64_t count, SoftmaxSum part, const float* part_out, SoftmaxSum* sum,
                      float* out) {
  const float merged_max = part.max > sum->max ? part.max : sum->max;
  const float old_scale = Exp(sum->max - merged_max);
  const float part_scale = Exp(part.max - merged_max);
  ForEachVector(count, [&](std::int64_t j, std::int64_t n) {
    const Vec merged =
        LoadUpTo(out + j, n) * Set1(old_scale) + Load(part_out + j) * Set1(part_scale);
    StoreUpTo(merged, out + j, n);
  });
  sum->total = sum->total * old_scale + part.total * part_scale;
  sum->max = merged_max;
}

/// Positions begin .. begin + count - 1 for kHeads heads from `head` on.
template <int kHeads, typename Act>
void AttendPart(const MlaAttentionArgs<Act>& args, std::int64_t head, std::int64_t begin,
                std::int64_t count, float* probabilities, float* part_out, SoftmaxSum* sums) {
  const std::int64_t padded = RoundUp<std::int64_t>(args.rank, kLanes);
  CacheCursor<Act> cursor(args, begin);
  constexpr int kPositions = kMlaHeads * kMlaPositions / kHeads;  // as many sums as registers hold
  std::int64_t i = 0;
  for (; i + kPositions <= count; i += kPositions) {
    ScorePositions<kHeads, kPositions>(args, head, cursor, probabilities + i);
  }
  for (; i < count; ++i) ScorePositions<kHeads, 1>(args, head, cursor, probabilities + i);
  SoftmaxSum parts[kHeads];
  for (int h = 0; h < kHeads; ++h) {
    parts[h].total = ExpOfScores(probabilities + h * args.split, count, &parts[h].max);
  }

  std::int64_t c = 0;
  for (; c + kLatentVectors * kLanes <= args.rank; c += kLatentVectors * kLanes) {
    WeightLatents<kHeads, kLatentVectors>(args, begin, count, probabilities, c,
                                          std::int64_t{kLanes}, part_out, padded);
  }
  for (; c < args.rank; c += kLanes) {
    const std::int64_t n = args.rank - c < kLanes ? args.rank - c : kLanes;
    WeightLatents<kHeads, 1>(args, begin, count, probabilities, c, n, part_out, padded);
  }

  for (int h = 0; h < kHeads; ++h) {
    float* out = args.out + (head + h) * args.out_stride;
    if (begin == 0) {
      sums[head + h] = parts[h];
      std::memcpy(out, part_out + h * padded, static_cast<std::size_t>(args.rank) * sizeof(float));
    } else {
      MergePart(args.rank, parts[h], part_out + h * padded, &sums[head + h], out);
    }
  }
}

/// AttendPart for the heads from `head` on, kHeads at a time while there are as many.
template <int kHeads, typename Act>
inline void AttendPartByHeads(const MlaAttentionArgs<Act>& args, std::int64_t head,
                              std::int64_t begin, std::int64_t count, float* probabilities,
                              float* part_out, SoftmaxSum* sums) {
  for (; head + kHeads <= args.heads; head += kHeads) {
    AttendPart<kHeads>(args, head, begin, count, probabilities, part_out, sums);
  }
  if constexpr (kHeads > 1) {
    AttendPartByHeads<kHeads / 2>(args, head, begin, count, probabilities, part_out, sums);
  }
}

/// Parts outside, heads inside: a part of the cache is read from memory once for all heads.
template <typename Act>
void MlaAttention(const MlaAttentionArgs<Act>& args) {
  static_assert(kMlaHeads <= kMaxMlaHeadsAtOnce);
  float* probabilities = args.scratch;
  float* part_out = probabilities + kMlaHeads * args.split;
  auto* sums = reinterpret_cast<SoftmaxSum*>(part_out +
                                             kMlaHeads * RoundUp<std::int64_t>(args.rank, kLanes));
  for (std::int64_t begin = 0; begin < args.num_positions; begin += args.split) {
    const std::int64_t left = args.num_positions - begin;
    const std::int64_t count = left < args.split ? left : args.split;
    AttendPartByHeads<kMlaHeads>(args, 0, begin, count, probabilities, part_out, sums);
  }
  for (std::int64_t head = 0; head < args.heads; ++head) {
    float* out = args.out + head * args.out_stride;
    ForEachVector(args.rank, [&](std::int64_t j, std::int64_t n) {
      StoreUpTo(LoadUpTo(out + j, n) / Set1(sums[head].total), out + j, n);
    });
  }
}

}  // namespace megalith::kernels::MEGALITH_PATH
