// Latent attention in absorbed form: some heads of a few rows over the cached latents.

namespace megalith::kernels::MEGALITH_PATH {

/// What the parts (or chunks) so far gave for one head of a row: out holds the weighted sum for
/// probabilities relative to exp(max), `total` the sum of those.
struct SoftmaxSum {
  float max;
  float total;
};

/// out = out and part_out, `count` channels, over their common maximum. part_out has room for whole
/// vectors.
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

/// The last step: out = out / total.
inline void DivideByTotal(std::int64_t count, float total, float* out) {
  const Vec divisor = Set1(total);
  ForEachVector(count, [&](std::int64_t j, std::int64_t n) MEGALITH_INLINE_LAMBDA {
    StoreUpTo(LoadUpTo(out + j, n) / divisor, out + j, n);
  });
}

/// Where what the parts give is merged, query by query.
struct MlaSums {
  float* Out(std::int64_t row, std::int64_t head) const {
    return out + row * row_stride + head * head_stride;
  }

  SoftmaxSum* sums;  // [queries]
  float* out;        // [rows][heads][rank]
  std::int64_t row_stride, head_stride;
};

/// A call and its scratch. The heads of all rows, row after row, are its "queries".
template <typename Act>
struct MlaCall {
  explicit MlaCall(const MlaAttentionArgs<Act>& arguments)
      : args(arguments),
        stride(MlaScoreStride(arguments.split)),
        padded_rank(RoundUp<std::int64_t>(arguments.rank, kLanes)),
        query_pairs(MlaQueryPairs(arguments.rank, arguments.extra)),
        queries(reinterpret_cast<Pairs<Act>*>(arguments.scratch)),
        positions(reinterpret_cast<const Act**>(arguments.scratch +
                                                kMlaHeads * query_pairs * kPairElements)),
        scores(arguments.scratch + kMlaHeads * query_pairs * kPairElements +
               2 * (stride + kMlaPositionsAhead)),
        part_out(scores + kMlaHeads * stride),
        sums(reinterpret_cast<SoftmaxSum*>(part_out + kMlaHeads * padded_rank)) {
    static_assert(kMlaHeads <= kMaxMlaHeadsAtOnce);
  }

  /// Positions from `begin` on that a row sees in their part; < 1 if it sees none.
  std::int64_t Visible(std::int64_t row, std::int64_t begin) const {
    const std::int64_t left = args.num_positions + row - begin;
    return left < args.split ? left : args.split;
  }
  /// The first row that sees position `begin`: those before it have seen everything. args.rows or
  /// more if none does.
  std::int64_t FirstRow(std::int64_t begin) const {
    return begin < args.num_positions ? 0 : begin - args.num_positions + 1;
  }
  /// Into the call's own outputs.
  MlaSums Total() const { return {sums, args.out, args.out_row_stride, args.out_stride}; }
  /// Into scratch, of which mla_partial has less.
  MlaSums OfChunk() const {
    SoftmaxSum* const chunk_sums = sums + args.heads * kMaxMlaRows;
    auto* const chunk_out = reinterpret_cast<float*>(chunk_sums + args.heads * kMaxMlaRows);
    return {chunk_sums, chunk_out, args.heads * padded_rank, padded_rank};
  }

  const MlaAttentionArgs<Act>& args;
  std::int64_t stride;  // between the scores of queries: a whole number of blocks of positions
  std::int64_t padded_rank;
  std::int64_t query_pairs;
  Pairs<Act>* queries;    // [kMlaHeads][query_pairs]
  const Act** positions;  // [stride + kMlaPositionsAhead]: cached rows of the part and behind it
  float* scores;          // [kMlaHeads][stride], later probabilities
  float* part_out;        // [kMlaHeads][padded_rank]
  SoftmaxSum* sums;       // [queries]
};

/// call.positions = the cached rows from position `begin` on, as far as they are scored (the part
/// has `count`, in whole blocks) or requested ahead. The last one stands for those that do not
/// exist.
template <typename Act>
inline void FindPositions(const MlaCall<Act>& call, std::int64_t begin, std::int64_t count) {
  const MlaAttentionArgs<Act>& args = call.args;
  const std::int64_t width = args.rank + args.extra;
  const std::int64_t wanted = RoundUp(count, kMlaScoreBlock) + kMlaPositionsAhead;
  const std::int64_t existing = std::min(wanted, args.num_positions + args.rows - 1 - begin);
  std::int64_t page = begin / args.page_tokens;
  std::int64_t token = begin % args.page_tokens;
  std::int64_t i = 0;
  while (i < existing) {
    const Act* row = args.cache + (args.page_table[page] * args.page_tokens + token) * width;
    for (; token < args.page_tokens && i < existing; ++token, row += width) {
      call.positions[i++] = row;
    }
    token = 0;
    ++page;
  }
  for (; i < wanted; ++i) call.positions[i] = call.positions[existing - 1];
}

/// Calls function(column, n) for every 32 of `count` elements; n < 32 only for the last.
template <typename Function>
MEGALITH_INLINE void ForEachPairs(std::int64_t count, Function function) {
  std::int64_t c = 0;
  for (; c + kPairElements <= count; c += kPairElements) function(c, kPairElements);
  if (c < count) function(c, count - c);
}

/// One query as ScorePositions reads it, rounded: `target` in scratch, call.query_pairs long.
template <typename Act>
inline void PrepareQuery(const MlaCall<Act>& call, const float* latent_query,
                         const Act* extra_query, Pairs<Act>* target) {
  const auto prepare = [&](const auto* source, std::int64_t count) {
    ForEachPairs(count, [&](std::int64_t c, std::int64_t n) MEGALITH_INLINE_LAMBDA {
      Act rounded[kPairElements] = {};
      ForEachVector(n, [&](std::int64_t j, std::int64_t m) MEGALITH_INLINE_LAMBDA {
        StoreUpTo(LoadUpTo(source + c + j, m), rounded + j, m);
      });
      *target++ = LoadPairs(rounded);
    });
  };
  prepare(latent_query, call.args.rank);
  prepare(extra_query, call.args.extra);
}

/// sum[h * kCount + i] += the products of query h's pairs with n elements of position i from
/// `column` on. Inlined, or the sums would live in memory.
template <int kHeads, int kCount, typename Act>
MEGALITH_INLINE void AddScores(const Pairs<Act>* queries, std::int64_t query_stride,
                               const Act* const (&positions)[kCount], std::int64_t column,
                               std::int64_t n, Vec (&sum)[kHeads * kCount]) {
  Pairs<Act> query[kHeads];
  ForEachConstant<kHeads>([&](auto h)
                              MEGALITH_INLINE_LAMBDA { query[h] = queries[h * query_stride]; });
  ForEachConstant<kCount>([&](auto i) MEGALITH_INLINE_LAMBDA {
    const Pairs<Act> key = LoadPairsUpTo(positions[i] + column, n);
    ForEachConstant<kHeads>([&](auto h) MEGALITH_INLINE_LAMBDA {
      Vec& sum_here = sum[h * kCount + i];
      sum_here = AddProducts(query[h], key, sum_here);
    });
  });
}

/// Scores, not yet scaled, of kCount positions from `first` on for kHeads prepared queries;
/// together, so that their additions overlap and a cached row is unpacked once.
template <int kHeads, int kCount, typename Act>
inline void ScorePositions(const MlaCall<Act>& call, std::int64_t first) {
  const MlaAttentionArgs<Act>& args = call.args;
  const Act* positions[kCount];
  const Act* ahead[kCount];
  Vec sum[kHeads * kCount];
  ForEachConstant<kCount>([&](auto i) MEGALITH_INLINE_LAMBDA {
    positions[i] = call.positions[first + i];
    ahead[i] = call.positions[first + kMlaPositionsAhead + i];
  });
  ForEachConstant<kHeads * kCount>([&](auto i) MEGALITH_INLINE_LAMBDA { sum[i] = Zero(); });
  constexpr std::int64_t kLineElements = 64 / sizeof(Act);
  const Pairs<Act>* queries = call.queries;
  ForEachPairs(args.rank, [&](std::int64_t c, std::int64_t n) MEGALITH_INLINE_LAMBDA {
    ForEachConstant<kCount>([&](auto i) MEGALITH_INLINE_LAMBDA {
      ForEachConstant<kPairElements / kLineElements>([&](auto line) MEGALITH_INLINE_LAMBDA {
        PrefetchLine(reinterpret_cast<const std::byte*>(ahead[i] + c + line * kLineElements));
      });
    });
    AddScores<kHeads, kCount>(queries++, call.query_pairs, positions, c, n, sum);
  });
  ForEachPairs(args.extra, [&](std::int64_t c, std::int64_t n) MEGALITH_INLINE_LAMBDA {
    AddScores<kHeads, kCount>(queries++, call.query_pairs, positions, args.rank + c, n, sum);
  });
  float dots[kHeads * kCount];
  SumLanesOf(sum, dots);
  ForEachConstant<kHeads>([&](auto h) MEGALITH_INLINE_LAMBDA {
    std::memcpy(call.scores + h * call.stride + first, dots + h * kCount, kCount * sizeof(float));
  });
}

/// scores -> exp(scores - max), rounded to Act, returns their sum; the maximum in *max. count >= 1.
/// If a score is NaN, so is the sum.
template <typename Act>
inline float ExpOfScores(float* scores, std::int64_t count, float* max) {
  const std::int64_t whole = count / kLanes * kLanes;
  const std::int64_t rest = count - whole;
  Vec largest = Set1(-std::numeric_limits<float>::infinity());
  for (std::int64_t i = 0; i < whole; i += kLanes) largest = Max(largest, Load(scores + i));
  if (rest > 0) largest = Max(largest, SelectFirst(rest, LoadN(scores + whole, rest), largest));
  *max = MaxLanes(largest);
  const Vec offset = Set1(*max);
  Vec sum = Zero();
  ForEachBlock(whole, [&](std::int64_t i, auto block) MEGALITH_INLINE_LAMBDA {
    const auto p = RoundToAct<Act>(ExpOf(LoadBlock(scores + i, block) - offset));
    StoreBlock(p, scores + i, block);
    AddInOrder(sum, p);
  });
  if (rest > 0) {
    const Vec p = RoundToAct<Act>(ExpOf(LoadN(scores + whole, rest) - offset));
    StoreN(p, scores + whole, rest);
    sum = sum + SelectFirst(rest, p, Zero());
  }
  return SumLanes(sum);
}

/// part_out[h][c ..] = sum over the positions first .. end - 1 of the part of probability * latent,
/// for kHeads queries and kVectors vectors of channels from `c` on, of whose last vector n elements
/// exist. `first` is even; goes on with what is there if it is not 0. `probabilities` (as kept by
/// KeepProbabilities) and `part_out` are of the first query.
template <int kHeads, int kVectors, typename Act>
inline void WeightLatents(const MlaCall<Act>& call, const float* probabilities, std::int64_t first,
                          std::int64_t end, std::int64_t c, std::int64_t n, float* part_out) {
  Vec sum[kHeads][kVectors];
  ForEachConstant<kHeads>([&](auto h) MEGALITH_INLINE_LAMBDA {
    ForEachConstant<kVectors>([&](auto j) MEGALITH_INLINE_LAMBDA {
      sum[h][j] = first == 0 ? Zero() : Load(part_out + h * call.padded_rank + c + j * kLanes);
    });
  });
  const auto add = [&](std::int64_t i, auto rows) MEGALITH_INLINE_LAMBDA {
    const Act* even = call.positions[i] + c;
    const Act* odd = call.positions[i + 1] + c;
    typename decltype(rows)::Weights weights[kHeads];
    ForEachConstant<kHeads>([&](auto h) MEGALITH_INLINE_LAMBDA {
      weights[h] = rows.LoadWeights(probabilities + h * call.stride, i);
    });
    ForEachConstant<kVectors>([&](auto j) MEGALITH_INLINE_LAMBDA {
      const std::int64_t exist = j + 1 < kVectors ? std::int64_t{kLanes} : n;
      const auto values = rows.Load(even + j * kLanes, odd + j * kLanes, exist);
      ForEachConstant<kHeads>(
          [&](auto h) MEGALITH_INLINE_LAMBDA { sum[h][j] = values.AddTo(sum[h][j], weights[h]); });
    });
  };
  std::int64_t i = first;
  for (; i + 2 <= end; i += 2) add(i, TwoRows<Act>());
  if (i < end) add(i, OneRow<Act>());
  ForEachConstant<kHeads>([&](auto h) MEGALITH_INLINE_LAMBDA {
    ForEachConstant<kVectors>([&](auto j) MEGALITH_INLINE_LAMBDA {
      Store(sum[h][j], part_out + h * call.padded_rank + c + j * kLanes);
    });
  });
}

/// WeightLatents for all channels.
template <int kHeads, typename Act>
inline void WeightAllLatents(const MlaCall<Act>& call, const float* scores, std::int64_t first,
                             std::int64_t end, float* part_out) {
  std::int64_t c = 0;
  for (; c + kLatentVectors * kLanes <= call.args.rank; c += kLatentVectors * kLanes) {
    WeightLatents<kHeads, kLatentVectors>(call, scores, first, end, c, std::int64_t{kLanes},
                                          part_out);
  }
  for (; c < call.args.rank; c += kLanes) {
    const std::int64_t left = call.args.rank - c;
    WeightLatents<kHeads, 1>(call, scores, first, end, c, left < kLanes ? left : kLanes, part_out);
  }
}

/// The part from position `begin` on for kHeads queries from `query` on, merged into `into`;
/// `starts`: there is nothing yet.
template <int kHeads, typename Act>
void AttendPart(const MlaCall<Act>& call, const MlaSums& into, std::int64_t query,
                std::int64_t begin, bool starts) {
  const MlaAttentionArgs<Act>& args = call.args;
  float* out[kHeads];
  std::int64_t visible[kHeads];
  for (int h = 0; h < kHeads; ++h) {
    const std::int64_t row = (query + h) / args.heads;
    const std::int64_t head = (query + h) % args.heads;
    PrepareQuery(
        call,
        args.latent_query + row * args.latent_query_row_stride + head * args.latent_query_stride,
        args.extra_query + row * args.extra_query_row_stride + head * args.extra_query_stride,
        call.queries + h * call.query_pairs);
    out[h] = into.Out(row, head);
    visible[h] = call.Visible(row, begin);
  }
  constexpr int kPositions = kMlaHeads * kMlaPositions / kHeads;  // as many sums as registers hold
  static_assert(kMlaScoreBlock % kPositions == 0);
  const std::int64_t most = visible[kHeads - 1];
  // Of positions in pairs, if some queries see more than others.
  const std::int64_t common = visible[0] == most ? most : visible[0] / 2 * 2;
  for (std::int64_t i = 0; i < most; i += kPositions) ScorePositions<kHeads, kPositions>(call, i);
  SoftmaxSum parts[kHeads];
  const Vec scale = Set1(args.scale);
  for (int h = 0; h < kHeads; ++h) {
    float* scores = call.scores + h * call.stride;
    for (std::int64_t i = 0; i < most; i += kLanes) Store(Load(scores + i) * scale, scores + i);
    parts[h].total = ExpOfScores<Act>(scores, visible[h], &parts[h].max);
    KeepProbabilities<Act>(scores, visible[h]);
  }

  // What all of them see, then what later rows see beside it.
  WeightAllLatents<kHeads>(call, call.scores, 0, common, call.part_out);
  for (int h = 0; h < kHeads; ++h) {
    float* part_out = call.part_out + h * call.padded_rank;
    if (visible[h] > common) {
      WeightAllLatents<1>(call, call.scores + h * call.stride, common, visible[h], part_out);
    }
    SoftmaxSum& sum = into.sums[query + h];
    if (starts) {
      sum = parts[h];
      std::memcpy(out[h], part_out, static_cast<std::size_t>(args.rank) * sizeof(float));
    } else {
      MergePart(args.rank, parts[h], part_out, &sum, out[h]);
    }
  }
}

/// AttendPart for the queries from `query` on, kHeads at a time while there are as many.
template <int kHeads, typename Act>
inline void AttendPartByHeads(const MlaCall<Act>& call, const MlaSums& into, std::int64_t query,
                              std::int64_t begin, bool starts) {
  const std::int64_t queries = call.args.rows * call.args.heads;
  for (; query + kHeads <= queries; query += kHeads) {
    AttendPart<kHeads>(call, into, query, begin, starts);
  }
  if constexpr (kHeads > 1) AttendPartByHeads<kHeads / 2>(call, into, query, begin, starts);
}

/// The chunk from position `begin` on. Parts outside, queries inside: a part of the cache is read
/// from memory once for all heads of all rows.
template <typename Act>
void AttendChunk(const MlaCall<Act>& call, std::int64_t begin, const MlaSums& into) {
  const MlaAttentionArgs<Act>& args = call.args;
  const std::int64_t end = std::min(begin + args.chunk, args.num_positions + args.rows - 1);
  for (std::int64_t part = begin; part < end; part += args.split) {
    FindPositions(call, part, call.Visible(args.rows - 1, part));
    AttendPartByHeads<kMlaHeads>(call, into, call.FirstRow(part) * args.heads, part, part == begin);
  }
}

/// Calls function(row, head, query) for all heads of the rows from `row` on.
template <typename Act, typename Function>
inline void ForQueries(const MlaCall<Act>& call, std::int64_t row, Function function) {
  for (; row < call.args.rows; ++row) {
    for (std::int64_t head = 0; head < call.args.heads; ++head) {
      function(row, head, row * call.args.heads + head);
    }
  }
}

template <typename Act>
void MlaAttention(const MlaAttentionArgs<Act>& args) {
  const MlaCall<Act> call(args);
  const MlaSums total = call.Total();
  const MlaSums of_chunk = call.OfChunk();
  AttendChunk(call, 0, total);
  const std::int64_t num_positions = args.num_positions + args.rows - 1;  // of the last row
  for (std::int64_t begin = args.chunk; begin < num_positions; begin += args.chunk) {
    AttendChunk(call, begin, of_chunk);
    ForQueries(call, call.FirstRow(begin),
               [&](std::int64_t row, std::int64_t head, std::int64_t query) {
                 MergePart(args.rank, of_chunk.sums[query], of_chunk.Out(row, head),
                           &total.sums[query], total.Out(row, head));
               });
  }
  ForQueries(call, 0, [&](std::int64_t row, std::int64_t head, std::int64_t query) {
    DivideByTotal(args.rank, total.sums[query].total, total.Out(row, head));
  });
}

template <typename Act>
void MlaPartial(const MlaAttentionArgs<Act>& args, std::int64_t chunk) {
  const MlaCall<Act> call(args);
  const MlaSums sums = call.Total();
  const std::int64_t begin = chunk * args.chunk;
  AttendChunk(call, begin, sums);
  ForQueries(call, call.FirstRow(begin),
             [&](std::int64_t row, std::int64_t head, std::int64_t query) {
               float* out = sums.Out(row, head);
               out[args.rank] = sums.sums[query].max;
               out[args.rank + 1] = sums.sums[query].total;
             });
}

inline void MlaMerge(const MlaMergeArgs& args) {
  const auto sum_of = [&](const float* partial) {
    return SoftmaxSum{partial[args.rank], partial[args.rank + 1]};
  };
  SoftmaxSum sum = sum_of(args.partials[0]);
  std::memcpy(args.out, args.partials[0], static_cast<std::size_t>(args.rank) * sizeof(float));
  for (std::int64_t chunk = 1; chunk < args.num_chunks; ++chunk) {
    const float* partial = args.partials[chunk];
    MergePart(args.rank, sum_of(partial), partial, &sum, args.out);
  }
  DivideByTotal(args.rank, sum.total, args.out);
}

}  // namespace megalith::kernels::MEGALITH_PATH
