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

/// out = round(silu(convolution)), zeros up to a full vector; returns the sum of squares.
template <typename Act>
inline float Convolve(const KdaHeadArgs<Act>& args, const KdaStream<Act>& stream, std::int64_t row,
                      float* out) {
  Vec squares = Zero();
  ForEachVector(args.head_dim, [&](std::int64_t d, std::int64_t n) MEGALITH_INLINE_LAMBDA {
    Vec sum = Zero();
    for (std::int64_t t = 0; t < args.conv_kernel; ++t) {
      const Act* input = ConvolutionRow(args, stream, row - (args.conv_kernel - 1) + t);
      const Vec tap = LoadUpTo(stream.taps + t * args.taps_stride + d, n);
      sum = sum + tap * (input == nullptr ? Zero() : LoadUpTo(input + d, n));
    }
    const Vec value = RoundToAct<Act>(SiluOf(sum));
    Store(value, out + d);
    squares = squares + value * value;
  });
  return SumLanes(squares);
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

/// One row of the recurrence for kVectors * 16 columns of the state: from `before` to `after`,
/// which are the same or apart. The decayed state is formed twice (the same bits) rather than
/// stored between the passes.
template <int kVectors>
inline void UpdateState(const float* before, float* after, std::int64_t stride, std::int64_t dim,
                        const float* alpha, const float* k, const float* q, const float* v,
                        float beta, float* o) {
  Vec predicted[kVectors];
  for (int j = 0; j < kVectors; ++j) predicted[j] = Zero();
  for (std::int64_t d = 0; d < dim; ++d) {
    const Vec decay = Set1(alpha[d]);
    const Vec key = Set1(k[d]);
    for (int j = 0; j < kVectors; ++j) {
      predicted[j] = predicted[j] + key * (Load(before + d * stride + j * kLanes) * decay);
    }
  }
  Vec delta[kVectors];
  Vec sum[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    delta[j] = Set1(beta) * (Load(v + j * kLanes) - predicted[j]);
    sum[j] = Zero();
  }
  for (std::int64_t d = 0; d < dim; ++d) {
    const Vec decay = Set1(alpha[d]);
    const Vec key = Set1(k[d]);
    const Vec query = Set1(q[d]);
    for (int j = 0; j < kVectors; ++j) {
      const std::int64_t at = d * stride + j * kLanes;
      const Vec updated = Load(before + at) * decay + key * delta[j];
      Store(updated, after + at);
      sum[j] = sum[j] + query * updated;
    }
  }
  for (int j = 0; j < kVectors; ++j) Store(sum[j], o + j * kLanes);
}

/// UpdateState for the columns from `column` on, kVectors vectors at a time while there are as
/// many.
template <int kVectors>
inline void UpdateStateByColumns(const float* before, float* after, std::int64_t stride,
                                 std::int64_t column, std::int64_t dim, const float* alpha,
                                 const float* k, const float* q, const float* v, float beta,
                                 float* o) {
  constexpr std::int64_t kColumns = kVectors * kLanes;
  for (; column + kColumns <= stride; column += kColumns) {
    UpdateState<kVectors>(before + column, after + column, stride, dim, alpha, k, q, v + column,
                          beta, o + column);
  }
  if constexpr (kVectors > 1) {
    UpdateStateByColumns<kVectors / 2>(before, after, stride, column, dim, alpha, k, q, v, beta, o);
  }
}

/// What the rows of a head have in common.
template <typename Act>
struct KdaRows {
  explicit KdaRows(const KdaHeadArgs<Act>& args)
      : q{args.q, args.q_stride, args.q_taps, args.q_history},
        k{args.k, args.k_stride, args.k_taps, args.k_history},
        v{args.v, args.v_stride, args.v_taps, args.v_history},
        exp_a(Exp(args.a_log)),
        q_scale(1.0f / std::sqrt(static_cast<float>(args.head_dim))) {}
  KdaStream<Act> q;
  KdaStream<Act> k;
  KdaStream<Act> v;
  float exp_a;
  float q_scale;
};

/// One row before the delta rule: q, k and v, zeros up to a full vector, and the decays; returns
/// beta.
template <typename Act>
inline float PrepareRow(const KdaHeadArgs<Act>& args, const KdaRows<Act>& rows, std::int64_t r,
                        float* q, float* k, float* v, float* alpha) {
  constexpr float kL2NormEps = 1e-6f;
  const Vec q_inverse = Set1(Rsqrt(Convolve(args, rows.q, r, q) + kL2NormEps));
  const Vec k_inverse = Set1(Rsqrt(Convolve(args, rows.k, r, k) + kL2NormEps));
  Convolve(args, rows.v, r, v);
  const Act* decay = args.decay + r * args.decay_stride;
  ForEachVector(args.head_dim, [&](std::int64_t d, std::int64_t n) {
    Store((Load(q + d) * q_inverse) * Set1(rows.q_scale), q + d);
    Store(Load(k + d) * k_inverse, k + d);
    const Vec z = LoadUpTo(decay + d, n) + LoadUpTo(args.dt_bias + d, n);
    const Vec g = args.gate_lower_bound < 0.0f
                      ? Set1(args.gate_lower_bound) * SigmoidOf(Set1(rows.exp_a) * z)
                      : Zero() - Set1(rows.exp_a) * SoftplusOf(z);
    Store(ExpOf(g), alpha + d);
  });
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
  ForEachVector(dim, [&](std::int64_t d, std::int64_t n) {
    const Vec normed = (Load(o + d) * inverse_rms) * LoadUpTo(args.o_norm + d, n);
    StoreUpTo(normed * SigmoidOf(LoadUpTo(gate + d, n)), out + d, n);
  });
}

/// The three histories once `count` rows have passed, the q history at q_history.
template <typename Act>
inline void WriteHistories(const KdaHeadArgs<Act>& args, const KdaRows<Act>& rows,
                           std::int64_t count, Act* q_history) {
  WriteHistory(args, rows.q, count, q_history);
  WriteHistory(args, rows.k, count, q_history + (args.k_history - args.q_history));
  WriteHistory(args, rows.v, count, q_history + (args.v_history - args.q_history));
}

template <typename Act>
inline void ZeroState(const KdaHeadArgs<Act>& args) {
  std::memset(args.state, 0,
              static_cast<std::size_t>(args.head_dim * args.state_stride) * sizeof(float));
}

template <typename Act>
void KdaHead(const KdaHeadArgs<Act>& args) {
  const std::int64_t dim = args.head_dim;
  const std::int64_t padded = RoundUp<std::int64_t>(dim, kLanes);
  float* q = args.scratch;
  float* k = q + padded;
  float* v = k + padded;
  float* alpha = v + padded;
  float* o = alpha + padded;
  const KdaRows<Act> rows(args);
  if (args.zero_state) ZeroState(args);

  const std::int64_t first_draft = args.rows - args.num_drafts;
  const float* before = args.state;
  for (std::int64_t r = 0; r < args.rows; ++r) {
    float* after = r < first_draft ? args.state : args.draft_states[r - first_draft];
    const float beta = PrepareRow(args, rows, r, q, k, v, alpha);
    UpdateStateByColumns<kKdaVectors>(before, after, args.state_stride, 0, dim, alpha, k, q, v,
                                      beta, o);
    before = after;
    FinishRow(args, r, o);
  }
  // Drafts first: they too may read the histories from before the run.
  for (std::int64_t i = 0; i < args.num_drafts; ++i) {
    WriteHistories(args, rows, first_draft + i + 1, args.draft_histories[i]);
  }
  WriteHistories(args, rows, first_draft, args.q_history);
}

}  // namespace megalith::kernels::MEGALITH_PATH
