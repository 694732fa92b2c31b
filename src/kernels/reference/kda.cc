#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/activation.h"
#include "kernels/reference/reference.h"

namespace megalith::kernels::reference {
namespace {

constexpr float kL2NormEps = 1e-6f;

/// The convolution's input `age` rows before row 0 (1 = the newest entry of the history), or row
/// -age of the run itself if age <= 0.
template <typename Act>
float ConvolutionInput(const KdaHeadArgs<Act>& args, const Act* rows, std::int64_t stride,
                       const Act* history, std::int64_t row, std::int64_t d) {
  if (row >= 0) return Widen(rows[row * stride + d]);
  if (args.zero_state) return 0.0f;
  return Widen(history[(args.conv_kernel - 1 + row) * args.history_stride + d]);
}

/// out[d] = round(silu(sum over taps, oldest first))
template <typename Act>
void Convolve(const KdaHeadArgs<Act>& args, const Act* rows, std::int64_t stride,
              const Act* history, const float* taps, std::int64_t row, float* out) {
  for (std::int64_t d = 0; d < args.head_dim; ++d) {
    float sum = 0.0f;
    for (std::int64_t t = 0; t < args.conv_kernel; ++t) {
      const float input =
          ConvolutionInput(args, rows, stride, history, row - (args.conv_kernel - 1) + t, d);
      sum = sum + taps[t * args.taps_stride + d] * input;
    }
    out[d] = Rounded<Act>(Silu(sum));
  }
}

/// target = the last conv_kernel - 1 inputs once num_rows rows have passed; may be `history`
/// itself. Ascending age: an entry is read before the loop overwrites it.
template <typename Act>
void WriteHistory(const KdaHeadArgs<Act>& args, const Act* rows, std::int64_t stride,
                  const Act* history, std::int64_t num_rows, Act* target) {
  for (std::int64_t age = 0; age < args.conv_kernel - 1; ++age) {
    const std::int64_t row = num_rows - (args.conv_kernel - 1) + age;
    for (std::int64_t d = 0; d < args.head_dim; ++d) {
      target[age * args.history_stride + d] =
          RoundTo<Act>(ConvolutionInput(args, rows, stride, history, row, d));
    }
  }
}

/// The three histories once num_rows rows have passed, from q_target on.
template <typename Act>
void WriteHistories(const KdaHeadArgs<Act>& args, std::int64_t num_rows, Act* q_target) {
  Act* k_target = q_target + (args.k_history - args.q_history);
  Act* v_target = q_target + (args.v_history - args.q_history);
  WriteHistory(args, args.q, args.q_stride, args.q_history, num_rows, q_target);
  WriteHistory(args, args.k, args.k_stride, args.k_history, num_rows, k_target);
  WriteHistory(args, args.v, args.v_stride, args.v_history, num_rows, v_target);
}

/// x = x * rsqrt(sum(x^2) + 1e-6): a sum, not a mean.
void NormalizeL2(std::int64_t count, float* x) {
  const float inverse =
      Rsqrt(LaneSum(count, [&](std::int64_t i) { return x[i] * x[i]; }) + kL2NormEps);
  for (std::int64_t i = 0; i < count; ++i) x[i] = x[i] * inverse;
}

/// What a head's rows have in common.
template <typename Act>
struct HeadConstants {
  explicit HeadConstants(const KdaHeadArgs<Act>& args)
      : exp_a(Exp(args.a_log)), q_scale(1.0f / std::sqrt(static_cast<float>(args.head_dim))) {}
  float exp_a;
  float q_scale;
};

/// One row before the delta rule: q, k, v, the decays, each [head_dim]; returns beta.
template <typename Act>
float PrepareRow(const KdaHeadArgs<Act>& args, HeadConstants<Act> head, std::int64_t r, float* q,
                 float* k, float* v, float* alpha) {
  const std::int64_t dim = args.head_dim;
  Convolve(args, args.q, args.q_stride, args.q_history, args.q_taps, r, q);
  Convolve(args, args.k, args.k_stride, args.k_history, args.k_taps, r, k);
  Convolve(args, args.v, args.v_stride, args.v_history, args.v_taps, r, v);
  NormalizeL2(dim, q);
  NormalizeL2(dim, k);
  for (std::int64_t d = 0; d < dim; ++d) q[d] = q[d] * head.q_scale;
  for (std::int64_t d = 0; d < dim; ++d) {
    const float z = Widen(args.decay[r * args.decay_stride + d]) + args.dt_bias[d];
    const float g = args.gate_lower_bound < 0.0f ? args.gate_lower_bound * Sigmoid(head.exp_a * z)
                                                 : -(head.exp_a * Softplus(z));
    alpha[d] = Exp(g);
  }
  return Sigmoid(Widen(args.beta[r * args.beta_stride]));
}

/// Output norm and gate of a row; o: rounded already.
template <typename Act>
void FinishRow(const KdaHeadArgs<Act>& args, std::int64_t r, const float* o) {
  const std::int64_t dim = args.head_dim;
  const float sum_squares = LaneSum(dim, [&](std::int64_t i) { return o[i] * o[i]; });
  const float inverse_rms = Rsqrt(sum_squares / static_cast<float>(dim) + args.eps);
  for (std::int64_t d = 0; d < dim; ++d) {
    const float normed = (o[d] * inverse_rms) * args.o_norm[d];
    const float gate = Sigmoid(Widen(args.gate[r * args.gate_stride + d]));
    args.out[r * args.out_stride + d] = RoundTo<Act>(normed * gate);
  }
}

/// Rows first .. first + rows - 1 as one chunk; see KdaChunks in kernel_table.h.
template <typename Act>
void Chunk(const KdaHeadArgs<Act>& args, HeadConstants<Act> head, std::int64_t first,
           std::int64_t rows) {
  const std::int64_t dim = args.head_dim;
  const auto size = static_cast<std::size_t>(dim);
  std::vector<float> alpha(size), decay(size, 1.0f), o(size);
  std::vector<std::vector<float>> q, k, v, q_decayed, k_decayed, k_until_now, update;
  std::vector<std::vector<float>> key_dots, query_dots;
  std::vector<float> beta;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (auto* list : {&q, &k, &v}) list->emplace_back(size);
    const auto at = static_cast<std::size_t>(i);
    beta.push_back(
        PrepareRow(args, head, first + i, q[at].data(), k[at].data(), v[at].data(), alpha.data()));
    q_decayed.push_back(q[at]);
    k_decayed.push_back(k[at]);
    for (std::size_t d = 0; d < size; ++d) {
      decay[d] = decay[d] * alpha[d];
      q_decayed[at][d] = q[at][d] * decay[d];
      k_decayed[at][d] = k[at][d] * decay[d];
      for (std::vector<float>& earlier : k_until_now) earlier[d] = earlier[d] * alpha[d];
    }
    k_until_now.push_back(k[at]);
    const auto dot = [&](const std::vector<float>& a, const std::vector<float>& b) {
      return LaneSum(dim, [&](std::int64_t d) {
        return a[static_cast<std::size_t>(d)] * b[static_cast<std::size_t>(d)];
      });
    };
    key_dots.emplace_back();
    query_dots.emplace_back();
    for (std::size_t j = 0; j <= at; ++j) {
      if (j < at) key_dots[at].push_back(dot(k[at], k_until_now[j]));
      query_dots[at].push_back(dot(q[at], k_until_now[j]));
    }
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
    update.emplace_back(size);
    for (std::size_t c = 0; c < size; ++c) {
      float predicted = 0.0f;
      float sum = 0.0f;
      for (std::size_t d = 0; d < size; ++d) {
        const float s = args.state[static_cast<std::int64_t>(d) * args.state_stride +
                                   static_cast<std::int64_t>(c)];
        predicted = predicted + k_decayed[i][d] * s;
        sum = sum + q_decayed[i][d] * s;
      }
      for (std::size_t j = 0; j < i; ++j) predicted = predicted + key_dots[i][j] * update[j][c];
      update[i][c] = beta[i] * (v[i][c] - predicted);
      for (std::size_t j = 0; j <= i; ++j) sum = sum + query_dots[i][j] * update[j][c];
      o[c] = Rounded<Act>(sum);
    }
    FinishRow(args, first + static_cast<std::int64_t>(i), o.data());
  }
  for (std::size_t d = 0; d < size; ++d) {
    for (std::size_t c = 0; c < size; ++c) {
      float& s = args.state[static_cast<std::int64_t>(d) * args.state_stride +
                            static_cast<std::int64_t>(c)];
      s = s * decay[d];
      for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
        s = s + k_until_now[i][d] * update[i][c];
      }
    }
  }
}

}  // namespace

template <typename Act>
void KdaHead(const KdaHeadArgs<Act>& args) {
  const std::int64_t state_floats = args.head_dim * args.state_stride;
  if (args.zero_state) std::fill_n(args.state, state_floats, 0.0f);
  const std::int64_t first_draft = args.rows - args.num_drafts;
  KdaHeadArgs<Act> chunk = args;
  for (std::int64_t r = 0; r < args.rows; ++r) {
    if (r >= first_draft) {
      float* draft = args.draft_states[r - first_draft];
      std::copy_n(chunk.state, state_floats, draft);
      chunk.state = draft;
    }
    Chunk(chunk, HeadConstants<Act>(args), r, 1);
  }
  // Drafts first: they too may read the histories from before the run.
  for (std::int64_t i = 0; i < args.num_drafts; ++i) {
    WriteHistories(args, first_draft + i + 1, args.draft_histories[i]);
  }
  WriteHistories(args, first_draft, args.q_history);
}

template <typename Act>
void KdaChunks(const KdaHeadArgs<Act>& args) {
  if (args.zero_state) std::fill_n(args.state, args.head_dim * args.state_stride, 0.0f);
  std::int64_t rows = args.first_chunk_rows;
  for (std::int64_t first = 0; first < args.rows; first += rows, rows = kKdaChunkRows) {
    rows = std::min(rows, args.rows - first);
    Chunk(args, HeadConstants<Act>(args), first, rows);
  }
  WriteHistories(args, args.rows, args.q_history);
}

template void KdaChunks<Bf16>(const KdaHeadArgs<Bf16>&);
template void KdaChunks<float>(const KdaHeadArgs<float>&);
template void KdaHead<Bf16>(const KdaHeadArgs<Bf16>&);
template void KdaHead<float>(const KdaHeadArgs<float>&);

}  // namespace megalith::kernels::reference
