// Kimi Delta Attention: one head over the rows of a run, chunk form.

namespace megalith::kernels::MEGALITH_PATH {

/// Scratch of one chunk; rows are `padded` floats apart, zeros beyond head_dim.
struct KdaChunk {
  KdaChunk(float* scratch, std::int64_t head_dim)
      : padded(RoundUp<std::int64_t>(head_dim, kLanes)),
        q(scratch),
        alpha(q + padded),
        decay(alpha + padded),
        v(decay + padded),
        keys(v + kKdaChunkRows * padded),
        decayed(keys + kKdaChunkRows * padded),
        from_state(decayed + 2 * kKdaChunkRows * padded),
        key_dots(from_state + 2 * kKdaChunkRows * padded),
        query_dots(key_dots + kKdaChunkRows * kKdaChunkRows),
        beta(query_dots + kKdaChunkRows * kKdaChunkRows) {}

  std::int64_t padded;
  float* q;           // of the current row; later its output
  float* alpha;       // of the current row
  float* decay;       // P up to the current row
  float* v;           // [rows]
  float* keys;        // [rows]: D, each key decayed up to the current row
  float* decayed;     // [2 rows]: k * P of all rows, then q * P of all rows
  float* from_state;  // [2 rows]: the above times the state; the first half becomes u
  float* key_dots;    // [kKdaChunkRows][kKdaChunkRows]: k_i . D_ij
  float* query_dots;  // the same for q_i
  float* beta;        // [rows]
};

/// Decays kCount keys from `keys` on by the current row, then takes their dot products with its key
/// and its query. Several, so that their additions overlap.
template <int kCount>
inline void DecayKeys(const KdaChunk& chunk, const float* key, float* keys, float* key_dots,
                      float* query_dots) {
  Vec key_sum[kCount];
  Vec query_sum[kCount];
  for (int j = 0; j < kCount; ++j) key_sum[j] = query_sum[j] = Zero();
  for (std::int64_t d = 0; d < chunk.padded; d += kLanes) {
    const Vec alpha = Load(chunk.alpha + d);
    const Vec k = Load(key + d);
    const Vec q = Load(chunk.q + d);
    for (int j = 0; j < kCount; ++j) {
      float* at = keys + j * chunk.padded + d;
      const Vec decayed = Load(at) * alpha;
      Store(decayed, at);
      key_sum[j] = key_sum[j] + k * decayed;
      query_sum[j] = query_sum[j] + q * decayed;
    }
  }
  for (int j = 0; j < kCount; ++j) {
    key_dots[j] = SumLanes(key_sum[j]);
    query_dots[j] = SumLanes(query_sum[j]);
  }
}

/// Row `i` of a chunk of `rows`: everything that does not depend on the state. Its key is in place,
/// q and alpha are its own.
inline void RelateRow(const KdaChunk& chunk, std::int64_t i, std::int64_t rows) {
  const float* key = chunk.keys + i * chunk.padded;
  float* decayed_key = chunk.decayed + i * chunk.padded;
  float* decayed_query = chunk.decayed + (rows + i) * chunk.padded;
  Vec own = Zero();
  for (std::int64_t d = 0; d < chunk.padded; d += kLanes) {
    const Vec alpha = Load(chunk.alpha + d);
    const Vec decay = i == 0 ? alpha : Load(chunk.decay + d) * alpha;
    const Vec k = Load(key + d);
    const Vec q = Load(chunk.q + d);
    Store(decay, chunk.decay + d);
    Store(k * decay, decayed_key + d);
    Store(q * decay, decayed_query + d);
    own = own + q * k;
  }
  float* key_dots = chunk.key_dots + i * kKdaChunkRows;
  float* query_dots = chunk.query_dots + i * kKdaChunkRows;
  query_dots[i] = SumLanes(own);
  std::int64_t j = 0;
  for (; j + 4 <= i; j += 4) {
    DecayKeys<4>(chunk, key, chunk.keys + j * chunk.padded, key_dots + j, query_dots + j);
  }
  for (; j < i; ++j) {
    DecayKeys<1>(chunk, key, chunk.keys + j * chunk.padded, key_dots + j, query_dots + j);
  }
}

/// out[r] = sum over d of x[r][d] * state[d], for kRows rows and kColumns vectors of columns.
template <int kRows, int kColumns>
inline void MultiplyByState(const float* x, std::int64_t stride, const float* state,
                            std::int64_t state_stride, std::int64_t dim, float* out) {
  Vec sum[kRows][kColumns];
  ForEachConstant<kRows>(
      [&](auto r) { ForEachConstant<kColumns>([&](auto c) { sum[r][c] = Zero(); }); });
  for (std::int64_t d = 0; d < dim; ++d) {
    Vec values[kColumns];
    ForEachConstant<kColumns>(
        [&](auto c) { values[c] = Load(state + d * state_stride + c * kLanes); });
    ForEachConstant<kRows>([&](auto r) {
      const Vec factor = Set1(x[r * stride + d]);
      ForEachConstant<kColumns>([&](auto c) { sum[r][c] = sum[r][c] + factor * values[c]; });
    });
  }
  ForEachConstant<kRows>([&](auto r) {
    ForEachConstant<kColumns>([&](auto c) { Store(sum[r][c], out + r * stride + c * kLanes); });
  });
}

/// state[d] = decay[d] * state[d] + sum over the chunk's rows of keys[.][d] * update[.], for kRows
/// rows d of the state and kColumns vectors of columns.
template <int kRows, int kColumns>
inline void AddUpdates(const float* keys, const float* update, std::int64_t stride,
                       std::int64_t rows, const float* decay, float* state,
                       std::int64_t state_stride) {
  Vec sum[kRows][kColumns];
  ForEachConstant<kRows>([&](auto d) {
    ForEachConstant<kColumns>(
        [&](auto c) { sum[d][c] = Load(state + d * state_stride + c * kLanes) * Set1(decay[d]); });
  });
  for (std::int64_t i = 0; i < rows; ++i) {
    Vec values[kColumns];
    ForEachConstant<kColumns>([&](auto c) { values[c] = Load(update + i * stride + c * kLanes); });
    ForEachConstant<kRows>([&](auto d) {
      const Vec key = Set1(keys[i * stride + d]);
      ForEachConstant<kColumns>([&](auto c) { sum[d][c] = sum[d][c] + key * values[c]; });
    });
  }
  ForEachConstant<kRows>([&](auto d) {
    ForEachConstant<kColumns>(
        [&](auto c) { Store(sum[d][c], state + d * state_stride + c * kLanes); });
  });
}

/// Calls function.operator()<columns>(first column) for blocks of vectors of columns.
template <typename Function>
inline void ForEachColumnBlock(std::int64_t padded, Function function) {
  std::int64_t c = 0;
  for (; c + kKdaColumns * kLanes <= padded; c += kKdaColumns * kLanes) {
    function(std::integral_constant<int, kKdaColumns>(), c);
  }
  for (; c < padded; c += kLanes) function(std::integral_constant<int, 1>(), c);
}

/// The same for `count` rows: function(rows, first row).
template <typename Function>
inline void ForEachRowPass(std::int64_t count, Function function) {
  std::int64_t r = 0;
  for (; r + kKdaRows <= count; r += kKdaRows) {
    function(std::integral_constant<int, kKdaRows>(), r);
  }
  for (; r < count; ++r) function(std::integral_constant<int, 1>(), r);
}

/// sum[c] += sum over j < count of dots[j] * update[j][c], sum[c] starting with `start`.
template <int kVectors>
inline void AddRows(const float* dots, std::int64_t count, const float* update, std::int64_t stride,
                    const float* start, Vec (&sum)[kVectors]) {
  for (int c = 0; c < kVectors; ++c) sum[c] = Load(start + c * kLanes);
  for (std::int64_t j = 0; j < count; ++j) {
    const Vec dot = Set1(dots[j]);
    for (int c = 0; c < kVectors; ++c) {
      sum[c] = sum[c] + dot * Load(update + j * stride + c * kLanes);
    }
  }
}

/// Row `i` of a chunk of `rows` for kVectors vectors of columns from `c` on: u in the place of what
/// k * P gave, and the output.
template <int kVectors>
inline void SolveRow(const KdaChunk& chunk, std::int64_t i, std::int64_t rows, std::int64_t c,
                     float* out) {
  const std::int64_t stride = chunk.padded;
  float* update = chunk.from_state + c;
  Vec sum[kVectors];
  AddRows<kVectors>(chunk.key_dots + i * kKdaChunkRows, i, update, stride, update + i * stride,
                    sum);
  const Vec beta = Set1(chunk.beta[i]);
  for (int j = 0; j < kVectors; ++j) {
    const Vec value = Load(chunk.v + i * stride + c + j * kLanes);
    Store(beta * (value - sum[j]), update + i * stride + j * kLanes);
  }
  AddRows<kVectors>(chunk.query_dots + i * kKdaChunkRows, i + 1, update, stride,
                    update + (rows + i) * stride, sum);
  for (int j = 0; j < kVectors; ++j) Store(sum[j], out + c + j * kLanes);
}

template <typename Act>
void KdaChunks(const KdaHeadArgs<Act>& args) {
  const std::int64_t dim = args.head_dim;
  const KdaChunk chunk(args.scratch, dim);
  const std::int64_t padded = chunk.padded;
  const KdaRows<Act> streams(args);
  if (args.zero_state) ZeroState(args);

  std::int64_t rows = args.first_chunk_rows;
  for (std::int64_t first = 0; first < args.rows; first += rows, rows = kKdaChunkRows) {
    if (rows > args.rows - first) rows = args.rows - first;
    for (std::int64_t i = 0; i < rows; ++i) {
      chunk.beta[i] = PrepareRow(args, streams, first + i, chunk.q, chunk.keys + i * padded,
                                 chunk.v + i * padded, chunk.alpha);
      RelateRow(chunk, i, rows);
    }
    ForEachColumnBlock(padded, [&](auto columns, std::int64_t c) {
      ForEachRowPass(2 * rows, [&](auto count, std::int64_t r) {
        MultiplyByState<count, columns>(chunk.decayed + r * padded, padded, args.state + c,
                                        args.state_stride, dim, chunk.from_state + r * padded + c);
      });
    });
    for (std::int64_t i = 0; i < rows; ++i) {
      float* out = chunk.q;
      std::int64_t c = 0;
      for (; c + kKdaVectors * kLanes <= padded; c += kKdaVectors * kLanes) {
        SolveRow<kKdaVectors>(chunk, i, rows, c, out);
      }
      for (; c < padded; c += kLanes) SolveRow<1>(chunk, i, rows, c, out);
      FinishRow(args, first + i, out);
    }
    ForEachRowPass(dim, [&](auto count, std::int64_t d) {
      ForEachColumnBlock(padded, [&](auto columns, std::int64_t c) {
        AddUpdates<count, columns>(chunk.keys + d, chunk.from_state + c, padded, rows,
                                   chunk.decay + d, args.state + d * args.state_stride + c,
                                   args.state_stride);
      });
    });
  }
  WriteHistories(args, streams, args.rows, args.q_history);
}

}  // namespace megalith::kernels::MEGALITH_PATH
