// Kimi Delta Attention: one head over the rows of a run, recurrent form.

namespace megalith::kernels::MEGALITH_PATH {

/// One of q, k, v: this head's columns, their taps and the inputs of earlier rows.
template <typename Act>
struct KdaStream {
  const Act* rows;
  std::int64_t stride;
  const float* taps;
  Act* history;
};

/// Row `row` of the convolution's input, null if it is zero: before the run it is in the history.
template <typename Act>
inline const Act* ConvolutionRow(const KdaHeadArgs<Act>& args, const KdaStream<Act>& stream,
                                 std::int64_t row) {
  if (row >= 0) return stream.rows + row * stream.stride;
  if (args.zero_state) return nullptr;
  return stream.history + (args.conv_kernel - 1 + row) * args.history_stride;
}

/// out = round(silu(convolution)), zeros up to a full vector; returns the sum of squares by lanes.
template <typename Act>
MEGALITH_INLINE Vec Convolve(const KdaHeadArgs<Act>& args, const KdaStream<Act>& stream,
                             std::int64_t row, float* out) {
  Vec squares = Zero();
  ForEachBlock(args.head_dim, [&](std::int64_t d, auto block) MEGALITH_INLINE_LAMBDA {
    auto sum = ZeroBlock(block);
    for (std::int64_t t = 0; t < args.conv_kernel; ++t) {
      const Act* input = ConvolutionRow(args, stream, row - (args.conv_kernel - 1) + t);
      const auto tap = LoadBlock(stream.taps + t * args.taps_stride + d, block);
      sum = sum + (input == nullptr ? tap * Zero() : tap * LoadBlock(input + d, block));
    }
    const auto value = RoundToAct<Act>(SiluOf(sum));
    StoreWhole(value, out + d);
    AddInOrder(squares, value * value);
  });
  return squares;
}

/// history = the last inputs of the convolution once `rows` rows have passed; may be the stream's
/// own.
template <typename Act>
inline void WriteHistory(const KdaHeadArgs<Act>& args, const KdaStream<Act>& stream,
                         std::int64_t rows, Act* history) {
  // Ascending age: an entry is read before the loop overwrites it.
  for (std::int64_t age = 0; age < args.conv_kernel - 1; ++age) {
    const Act* input = ConvolutionRow(args, stream, rows - (args.conv_kernel - 1) + age);
    Act* target = history + age * args.history_stride;
    const std::size_t bytes = static_cast<std::size_t>(args.head_dim) * sizeof(Act);
    if (input == nullptr) {
      std::memset(target, 0, bytes);
    } else if (input != target) {
      std::memcpy(target, input, bytes);
    }
  }
}

/// One row in scratch; arrays are zero from head_dim to a full vector.
struct KdaRow {
  KdaRow(float* scratch, std::int64_t padded)
      : q(scratch),
        k(q + padded),
        v(k + padded),
        alpha(v + padded),
        decayed_k(alpha + padded),
        update(decayed_k + padded),
        o(update + padded) {}

  float* q;  // later q * alpha
  float* k;
  float* v;
  float* alpha;
  float* decayed_k;  // k * alpha
  float* update;     // what decayed_k finds in the state, then u
  float* o;          // what q * alpha finds in the state, then the output
  float beta;
  float query_key;  // q . k
};

/// For kVectors * 16 columns of the state from `column` on: brings it from `before` to `after` by
/// the update of row `last`, and looks up the row `next` in what it is then; or one of the two.
template <int kVectors, bool kHasLast, bool kHasNext>
inline void PassState(const float* before, float* after, std::int64_t stride, std::int64_t column,
                      std::int64_t dim, const KdaRow& last, const KdaRow& next) {
  Vec update[kVectors];
  Vec predicted[kVectors];
  Vec recalled[kVectors];
  ForEachConstant<kVectors>([&](auto j) MEGALITH_INLINE_LAMBDA {
    if constexpr (kHasLast) update[j] = Load(last.update + column + j * kLanes);
    if constexpr (kHasNext) predicted[j] = recalled[j] = Zero();
  });
  for (std::int64_t d = 0; d < dim; ++d) {
    // Operation by operation, so that none waits for the one just before it.
    Vec state[kVectors];
    ForEachConstant<kVectors>([&](auto j) MEGALITH_INLINE_LAMBDA {
      state[j] = Load(before + d * stride + column + j * kLanes);
    });
    if constexpr (kHasLast) {
      const Vec alpha = Set1(last.alpha[d]);
      const Vec key = Set1(last.k[d]);
      ForEachConstant<kVectors>(
          [&](auto j) MEGALITH_INLINE_LAMBDA { state[j] = state[j] * alpha + key * update[j]; });
    }
    if constexpr (kHasNext) {
      const Vec key = Set1(next.decayed_k[d]);
      const Vec query = Set1(next.q[d]);
      ForEachConstant<kVectors>(
          [&](auto j) MEGALITH_INLINE_LAMBDA { predicted[j] = predicted[j] + key * state[j]; });
      ForEachConstant<kVectors>(
          [&](auto j) MEGALITH_INLINE_LAMBDA { recalled[j] = recalled[j] + query * state[j]; });
    }
    if constexpr (kHasLast) {
      ForEachConstant<kVectors>([&](auto j) MEGALITH_INLINE_LAMBDA {
        Store(state[j], after + d * stride + column + j * kLanes);
      });
    }
  }
  if constexpr (kHasNext) {
    ForEachConstant<kVectors>([&](auto j) MEGALITH_INLINE_LAMBDA {
      Store(predicted[j], next.update + column + j * kLanes);
      Store(recalled[j], next.o + column + j * kLanes);
    });
  }
}

/// PassState for the columns from `column` on, kVectors vectors at a time while there are as many.
template <int kVectors, bool kHasLast, bool kHasNext>
inline void PassStateByColumns(const float* before, float* after, std::int64_t stride,
                               std::int64_t column, std::int64_t dim, const KdaRow& last,
                               const KdaRow& next) {
  constexpr std::int64_t kColumns = kVectors * kLanes;
  for (; column + kColumns <= stride; column += kColumns) {
    PassState<kVectors, kHasLast, kHasNext>(before, after, stride, column, dim, last, next);
  }
  if constexpr (kVectors > 1) {
    PassStateByColumns<kVectors / 2, kHasLast, kHasNext>(before, after, stride, column, dim, last,
                                                         next);
  }
}

/// What the rows of a head have in common.
template <typename Act>
struct KdaRows {
  explicit KdaRows(const KdaHeadArgs<Act>& args)
      : streams{{args.q, args.q_stride, args.q_taps, args.q_history},
                {args.k, args.k_stride, args.k_taps, args.k_history},
                {args.v, args.v_stride, args.v_taps, args.v_history}},
        exp_a(Exp(args.a_log)),
        q_scale(1.0f / std::sqrt(static_cast<float>(args.head_dim))) {}
  KdaStream<Act> streams[3];  // q, k, v
  float exp_a;
  float q_scale;
};

/// One row before the delta rule: q, k and v, zeros up to a full vector, and the decays; returns
/// beta.
template <typename Act>
inline float PrepareRow(const KdaHeadArgs<Act>& args, const KdaRows<Act>& rows, std::int64_t r,
                        float* q, float* k, float* v, float* alpha) {
  constexpr float kL2NormEps = 1e-6f;
  float* const out[3] = {q, k, v};
  Vec squares[3];
  for (int i = 0; i < 3; ++i) squares[i] = Convolve(args, rows.streams[i], r, out[i]);
  const Vec q_inverse = Set1(Rsqrt(SumLanes(squares[0]) + kL2NormEps));
  const Vec k_inverse = Set1(Rsqrt(SumLanes(squares[1]) + kL2NormEps));
  const Act* decay = args.decay + r * args.decay_stride;
  ForEachBlock(args.head_dim, [&](std::int64_t d, auto block) MEGALITH_INLINE_LAMBDA {
    const auto z = LoadBlock(decay + d, block) + LoadBlock(args.dt_bias + d, block);
    const auto g = args.gate_lower_bound < 0.0f
                       ? Set1(args.gate_lower_bound) * SigmoidOf(Set1(rows.exp_a) * z)
                       : Zero() - Set1(rows.exp_a) * SoftplusOf(z);
    StoreWhole(ExpOf(g), alpha + d);
  });
  for (std::int64_t d = 0; d < args.head_dim; d += kLanes) {
    Store((Load(q + d) * q_inverse) * Set1(rows.q_scale), q + d);
    Store(Load(k + d) * k_inverse, k + d);
  }
  return Sigmoid(Widen(args.beta[r * args.beta_stride]));
}

/// Rounding, output norm and gate of a row; o is overwritten.
template <typename Act>
inline void FinishRow(const KdaHeadArgs<Act>& args, std::int64_t r, float* o) {
  const std::int64_t dim = args.head_dim;
  Vec squares = Zero();
  for (std::int64_t d = 0; d < dim; d += kLanes) {
    const Vec value = RoundToAct<Act>(Load(o + d));
    Store(value, o + d);
    squares = squares + value * value;
  }
  const Vec inverse_rms = Set1(Rsqrt(SumLanes(squares) / static_cast<float>(dim) + args.eps));
  const Act* gate = args.gate + r * args.gate_stride;
  Act* out = args.out + r * args.out_stride;
  ForEachBlock(dim, [&](std::int64_t d, auto block) MEGALITH_INLINE_LAMBDA {
    const auto factor = SigmoidOf(LoadBlock(gate + d, block));
    const auto normed = (LoadBlock(o + d, block) * inverse_rms) * LoadBlock(args.o_norm + d, block);
    StoreBlock(normed * factor, out + d, block);
  });
}

/// The three histories once `count` rows have passed, the q history at q_history.
template <typename Act>
inline void WriteHistories(const KdaHeadArgs<Act>& args, const KdaRows<Act>& rows,
                           std::int64_t count, Act* q_history) {
  for (const KdaStream<Act>& stream : rows.streams) {
    WriteHistory(args, stream, count, q_history + (stream.history - args.q_history));
  }
}

template <typename Act>
inline void ZeroState(const KdaHeadArgs<Act>& args) {
  std::memset(args.state, 0,
              static_cast<std::size_t>(args.head_dim * args.state_stride) * sizeof(float));
}

/// What a row of the recurrence needs beside PrepareRow before it meets the state.
template <typename Act>
inline void PrepareRecurrence(const KdaHeadArgs<Act>& args, const KdaRows<Act>& rows,
                              std::int64_t r, KdaRow& row) {
  row.beta = PrepareRow(args, rows, r, row.q, row.k, row.v, row.alpha);
  Vec query_key = Zero();
  for (std::int64_t d = 0; d < args.head_dim; d += kLanes) {
    const Vec alpha = Load(row.alpha + d);
    const Vec k = Load(row.k + d);
    const Vec q = Load(row.q + d);
    query_key = query_key + q * k;
    Store(k * alpha, row.decayed_k + d);
    Store(q * alpha, row.q + d);
  }
  row.query_key = SumLanes(query_key);
}

/// Update and output of a row from what it found in the state.
inline void SolveRecurrence(const KdaRow& row, std::int64_t dim) {
  for (std::int64_t c = 0; c < dim; c += kLanes) {
    const Vec update = Set1(row.beta) * (Load(row.v + c) - Load(row.update + c));
    Store(update, row.update + c);
    Store(Load(row.o + c) + Set1(row.query_key) * update, row.o + c);
  }
}

/// The state is read once and written once for every row: while it takes in a row's update, the
/// next row looks itself up.
template <typename Act>
void KdaHead(const KdaHeadArgs<Act>& args) {
  const std::int64_t dim = args.head_dim;
  const std::int64_t padded = RoundUp<std::int64_t>(dim, kLanes);
  KdaRow row(args.scratch, padded);
  KdaRow next(args.scratch + KdaScratchFloats(dim) / 2, padded);
  const KdaRows<Act> rows(args);
  if (args.zero_state) ZeroState(args);

  const std::int64_t stride = args.state_stride;
  const std::int64_t first_draft = args.rows - args.num_drafts;
  const float* before = args.state;
  PrepareRecurrence(args, rows, 0, row);
  PassStateByColumns<kKdaVectors, false, true>(before, args.state, stride, 0, dim, next, row);
  for (std::int64_t r = 0;; ++r) {
    float* after = r < first_draft ? args.state : args.draft_states[r - first_draft];
    SolveRecurrence(row, dim);
    FinishRow(args, r, row.o);
    if (r + 1 == args.rows) {
      PassStateByColumns<kKdaVectors, true, false>(before, after, stride, 0, dim, row, next);
      break;
    }
    PrepareRecurrence(args, rows, r + 1, next);
    PassStateByColumns<kKdaVectors, true, true>(before, after, stride, 0, dim, row, next);
    std::swap(row, next);
    before = after;
  }
  // Drafts first: they too may read the histories from before the run.
  for (std::int64_t i = 0; i < args.num_drafts; ++i) {
    WriteHistories(args, rows, first_draft + i + 1, args.draft_histories[i]);
  }
  WriteHistories(args, rows, first_draft, args.q_history);
}

}  // namespace megalith::kernels::MEGALITH_PATH
