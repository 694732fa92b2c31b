// Latent attention in absorbed form: one head of one row over the cached latents.

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

  /// Row of the current position; then steps to the next.
  const Act* Next() {
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

/// Scores of kCount positions; together, so that their additions overlap.
template <int kCount, typename Act>
inline void ScorePositions(const MlaAttentionArgs<Act>& args, CacheCursor<Act>& cursor,
                           float* scores) {
  const Act* rows[kCount];
  Vec sum[kCount];
  for (int i = 0; i < kCount; ++i) {
    rows[i] = cursor.Next();
    sum[i] = Zero();
  }
  ForEachVector(args.rank, [&](std::int64_t c, std::int64_t n) {
    const Vec query = LoadUpTo(args.latent_query + c, n);
    for (int i = 0; i < kCount; ++i) sum[i] = sum[i] + query * LoadUpTo(rows[i] + c, n);
  });
  ForEachVector(args.extra, [&](std::int64_t c, std::int64_t n) {
    const Vec query = LoadUpTo(args.extra_query + c, n);
    for (int i = 0; i < kCount; ++i) {
      sum[i] = sum[i] + query * LoadUpTo(rows[i] + args.rank + c, n);
    }
  });
  for (int i = 0; i < kCount; ++i) scores[i] = SumLanes(sum[i]) * args.scale;
}

/// out[c ..] = sum over `count` positions from `begin` of probability * latent, for kVectors
/// vectors of channels from `c`; n elements of the last vector exist.
template <int kVectors, typename Act>
inline void WeightLatents(const MlaAttentionArgs<Act>& args, std::int64_t begin, std::int64_t count,
                          const float* probabilities, std::int64_t c, std::int64_t n, float* out) {
  CacheCursor<Act> cursor(args, begin);
  Vec sum[kVectors];
  for (int j = 0; j < kVectors; ++j) sum[j] = Zero();
  for (std::int64_t i = 0; i < count; ++i) {
    const Act* latent = cursor.Next() + c;
    const Vec probability = Set1(probabilities[i]);
    for (int j = 0; j < kVectors; ++j) {
      const Vec value =
          j + 1 < kVectors ? Load(latent + j * kLanes) : LoadUpTo(latent + j * kLanes, n);
      sum[j] = sum[j] + probability * value;
    }
  }
  for (int j = 0; j < kVectors; ++j) Store(sum[j], out + c + j * kLanes);
}

/// scores -> exp(scores - max), returns their sum; the maximum in *max.
inline float ExpOfScores(float* scores, std::int64_t count, float* max) {
  float largest = scores[0];
  for (std::int64_t i = 1; i < count; ++i) largest = scores[i] > largest ? scores[i] : largest;
  *max = largest;
  const Vec offset = Set1(largest);
  return SumVectors(count, [&](std::int64_t i, std::int64_t n) {
    // exp of the lanes beyond the end is not zero: store, then read back with zeros.
    StoreUpTo(ExpOf(LoadUpTo(scores + i, n) - offset), scores + i, n);
    return LoadUpTo(scores + i, n);
  });
}

template <typename Act>
void MlaAttention(const MlaAttentionArgs<Act>& args) {
  const std::int64_t padded = RoundUp<std::int64_t>(args.rank, kLanes);
  float* part_out = args.scratch;
  float* probabilities = args.scratch + padded;
  float max = 0.0f;
  float total = 0.0f;
  for (std::int64_t begin = 0; begin < args.num_positions; begin += args.split) {
    const std::int64_t left = args.num_positions - begin;
    const std::int64_t count = left < args.split ? left : args.split;
    CacheCursor<Act> cursor(args, begin);
    std::int64_t i = 0;
    for (; i + 4 <= count; i += 4) ScorePositions<4>(args, cursor, probabilities + i);
    for (; i < count; ++i) ScorePositions<1>(args, cursor, probabilities + i);
    float part_max;
    const float part_total = ExpOfScores(probabilities, count, &part_max);

    std::int64_t c = 0;
    for (; c + kLatentVectors * kLanes <= args.rank; c += kLatentVectors * kLanes) {
      WeightLatents<kLatentVectors>(args, begin, count, probabilities, c, std::int64_t{kLanes},
                                    part_out);
    }
    for (; c < args.rank; c += kLanes) {
      const std::int64_t n = args.rank - c < kLanes ? args.rank - c : kLanes;
      WeightLatents<1>(args, begin, count, probabilities, c, n, part_out);
    }

    if (begin == 0) {
      max = part_max;
      total = part_total;
      std::memcpy(args.out, part_out, static_cast<std::size_t>(args.rank) * sizeof(float));
      continue;
    }
    const float merged_max = part_max > max ? part_max : max;
    const float old_scale = Exp(max - merged_max);
    const float part_scale = Exp(part_max - merged_max);
    ForEachVector(args.rank, [&](std::int64_t j, std::int64_t n) {
      const Vec merged =
          LoadUpTo(args.out + j, n) * Set1(old_scale) + Load(part_out + j) * Set1(part_scale);
      StoreUpTo(merged, args.out + j, n);
    });
    total = total * old_scale + part_total * part_scale;
    max = merged_max;
  }
  ForEachVector(args.rank, [&](std::int64_t j, std::int64_t n) {
    StoreUpTo(LoadUpTo(args.out + j, n) / Set1(total), args.out + j, n);
  });
}

}  // namespace megalith::kernels::MEGALITH_PATH
