#include <algorithm>

#include "kernels/reference/reference.h"
#include "kernels/test_paths.h"

namespace megalith::kernels {
namespace {

using test::Buffer;
using test::Random;
using test::SameBits;

constexpr float kEps = 1e-5f;

/// One head with everything it points to. Rows and histories lie in wider matrices, so a kernel
/// that touches a neighbour's columns is seen.
template <typename Act>
struct KdaCase {
  KdaCase(std::int64_t rows_count, std::int64_t dim, std::int64_t conv_kernel, bool zero_state,
          float lower_bound, std::uint64_t seed)
      : rows(rows_count),
        head_dim(dim),
        kernel(conv_kernel),
        stride(dim + 5),
        state_stride(RoundUp<std::int64_t>(dim, kLanes)),
        q(rows_count * stride, 1),
        k(rows_count * stride, 2),
        v(rows_count * stride, 3),
        gate(rows_count * stride, 4),
        decay(rows_count * stride, 5),
        beta(rows_count * 3, 1),
        q_taps(conv_kernel * stride, 1),
        k_taps(conv_kernel * stride, 2),
        v_taps(conv_kernel * stride, 3),
        dt_bias(dim, 1),
        o_norm(dim, 3),
        state(dim * state_stride),
        q_history((conv_kernel - 1) * stride + 1, 1),
        k_history((conv_kernel - 1) * stride + 1, 2),
        v_history((conv_kernel - 1) * stride + 1, 3),
        out(rows_count * stride, 1),
        scratch(KdaScratchFloats(dim)),
        zero(zero_state),
        bound(lower_bound) {
    Random random(seed);
    for (auto* buffer : {&q, &k, &v, &gate, &decay, &q_history, &k_history, &v_history}) {
      buffer->FillNormal(random);
    }
    beta.FillNormal(random);
    for (auto* buffer : {&q_taps, &k_taps, &v_taps}) buffer->FillNormal(random, 0.5f);
    dt_bias.FillNormal(random);
    o_norm.FillNormal(random);
    out.Fill([] { return 0.0f; });
    for (std::int64_t d = 0; d < dim; ++d) {
      for (std::int64_t c = 0; c < state_stride; ++c) {
        state[d * state_stride + c] = c < dim ? random.Normal() : 0.0f;
      }
    }
    a_log = 0.3f * random.Normal();
  }

  KdaHeadArgs<Act> Args() {
    return {rows,
            head_dim,
            kernel,
            q.data(),
            k.data(),
            v.data(),
            gate.data(),
            decay.data(),
            beta.data(),
            stride,
            stride,
            stride,
            stride,
            stride,
            3,
            q_taps.data(),
            k_taps.data(),
            v_taps.data(),
            stride,
            a_log,
            dt_bias.data(),
            o_norm.data(),
            kEps,
            bound,
            zero,
            state.data(),
            state_stride,
            q_history.data(),
            k_history.data(),
            v_history.data(),
            stride,
            out.data(),
            stride,
            scratch.data()};
  }

  /// Arguments for rows first .. first + count - 1 of the same run.
  KdaHeadArgs<Act> Rows(std::int64_t first, std::int64_t count) {
    KdaHeadArgs<Act> args = Args();
    args.rows = count;
    args.q += first * stride;
    args.k += first * stride;
    args.v += first * stride;
    args.gate += first * stride;
    args.decay += first * stride;
    args.beta += first * 3;
    args.out += first * stride;
    args.zero_state = zero && first == 0;
    return args;
  }

  void ExpectSameResults(const KdaCase& expected) const {
    EXPECT_TRUE(SameBits(out, expected.out)) << "out";
    EXPECT_TRUE(SameBits(state, expected.state)) << "state";
    EXPECT_TRUE(SameBits(q_history, expected.q_history)) << "q history";
    EXPECT_TRUE(SameBits(k_history, expected.k_history)) << "k history";
    EXPECT_TRUE(SameBits(v_history, expected.v_history)) << "v history";
    for (const auto* buffer : {&out, &q_history, &k_history, &v_history}) {
      EXPECT_TRUE(buffer->CanariesIntact());
    }
    EXPECT_TRUE(state.CanariesIntact());
    EXPECT_TRUE(scratch.CanariesIntact());
  }

  std::int64_t rows, head_dim, kernel, stride, state_stride;
  Buffer<Act> q, k, v, gate, decay, beta;
  Buffer<float> q_taps, k_taps, v_taps, dt_bias, o_norm, state;
  Buffer<Act> q_history, k_history, v_history, out;
  Buffer<float> scratch;
  bool zero;
  float bound;
  float a_log;
};

class KdaHeadTest : public test::PathTest {};

TEST_P(KdaHeadTest, EveryShapeMatchesReference) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    for (const std::int64_t dim : {1, 3, 8, 15, 16, 17, 24, 32, 48, 64, 80, 128, 131}) {
      for (const std::int64_t rows : {1, 2, 3, 5, 17}) {
        for (const bool zero : {false, true}) {
          SCOPED_TRACE("dim " + std::to_string(dim) + " rows " + std::to_string(rows) +
                       (zero ? " from zero" : ""));
          const std::int64_t kernel = 1 + (dim + rows) % 5;
          const float bound = rows % 2 == 1 ? -5.0f : 0.0f;
          KdaCase<Act> actual(rows, dim, kernel, zero, bound, 7);
          KdaCase<Act> expected(rows, dim, kernel, zero, bound, 7);
          table.kda_head(actual.Args());
          reference::KdaHead(expected.Args());
          actual.ExpectSameResults(expected);
        }
      }
    }
  });
}

TEST_P(KdaHeadTest, ARunCutAnywhereGivesTheSameBits) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    constexpr std::int64_t kRows = 9;
    for (const bool zero : {false, true}) {
      KdaCase<Act> whole(kRows, 40, 4, zero, -5.0f, 3);
      table.kda_head(whole.Args());
      for (const std::int64_t first_count : {1, 2, 3, 4, 8}) {
        SCOPED_TRACE("cut after " + std::to_string(first_count));
        KdaCase<Act> cut(kRows, 40, 4, zero, -5.0f, 3);
        table.kda_head(cut.Rows(0, first_count));
        table.kda_head(cut.Rows(first_count, kRows - first_count));
        cut.ExpectSameResults(whole);
      }
      KdaCase<Act> one_by_one(kRows, 40, 4, zero, -5.0f, 3);
      for (std::int64_t r = 0; r < kRows; ++r) table.kda_head(one_by_one.Rows(r, 1));
      one_by_one.ExpectSameResults(whole);
    }
  });
}

TEST_P(KdaHeadTest, ZeroStateIgnoresWhatStateAndHistoryHold) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    for (const std::int64_t rows : {1, 2, 3, 6}) {
      KdaCase<Act> dirty(rows, 20, 4, true, -5.0f, 4);
      KdaCase<Act> clean(rows, 20, 4, false, -5.0f, 4);
      dirty.state.Fill([] { return std::numeric_limits<float>::quiet_NaN(); });
      clean.state.Fill([] { return 0.0f; });
      for (auto* history : {&clean.q_history, &clean.k_history, &clean.v_history}) {
        for (std::int64_t age = 0; age < 3; ++age) {
          std::fill_n(history->data() + age * clean.stride, 20, RoundTo<Act>(0.0f));
        }
      }
      table.kda_head(dirty.Args());
      table.kda_head(clean.Args());
      EXPECT_TRUE(SameBits(dirty.out, clean.out));
      EXPECT_TRUE(SameBits(dirty.state, clean.state));
      EXPECT_TRUE(SameBits(dirty.q_history, clean.q_history));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, KdaHeadTest, ::testing::ValuesIn(test::kAllPaths), test::PathName);

double ExactSigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// Section 5.4 of the model description in double: outputs of every row of a run.
std::vector<double> ExactKda(KdaCase<float>& c) {
  const auto dim = static_cast<std::size_t>(c.head_dim);
  const auto at = [&](const Buffer<float>& b, std::int64_t row, std::size_t d) {
    return static_cast<double>(b[row * c.stride + static_cast<std::int64_t>(d)]);
  };
  const auto convolved = [&](const Buffer<float>& x, const Buffer<float>& history,
                             const Buffer<float>& taps, std::int64_t row, std::size_t d) {
    double y = 0.0;
    for (std::int64_t t = 0; t < c.kernel; ++t) {
      const std::int64_t source = row - (c.kernel - 1) + t;
      double input = 0.0;
      if (source >= 0) {
        input = at(x, source, d);
      } else if (!c.zero) {
        input = at(history, c.kernel - 1 + source, d);
      }
      y += at(taps, t, d) * input;
    }
    return y * ExactSigmoid(y);
  };
  std::vector<double> state(dim * dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) {
      state[i * dim + j] =
          c.zero ? 0.0
                 : static_cast<double>(c.state[static_cast<std::int64_t>(i) * c.state_stride +
                                               static_cast<std::int64_t>(j)]);
    }
  }
  std::vector<double> out;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    std::vector<double> q(dim), k(dim), v(dim), o(dim);
    double q_squares = 1e-6;
    double k_squares = 1e-6;
    for (std::size_t d = 0; d < dim; ++d) {
      q[d] = convolved(c.q, c.q_history, c.q_taps, r, d);
      k[d] = convolved(c.k, c.k_history, c.k_taps, r, d);
      v[d] = convolved(c.v, c.v_history, c.v_taps, r, d);
      q_squares += q[d] * q[d];
      k_squares += k[d] * k[d];
    }
    const double beta = ExactSigmoid(static_cast<double>(c.beta[r * 3]));
    for (std::size_t d = 0; d < dim; ++d) {
      q[d] /= std::sqrt(q_squares) * std::sqrt(static_cast<double>(dim));
      k[d] /= std::sqrt(k_squares);
      const double z =
          at(c.decay, r, d) + static_cast<double>(c.dt_bias[static_cast<std::int64_t>(d)]);
      const double a = std::exp(static_cast<double>(c.a_log));
      const double g = c.bound < 0.0f ? static_cast<double>(c.bound) * ExactSigmoid(a * z)
                                      : -a * std::log1p(std::exp(z));
      for (std::size_t j = 0; j < dim; ++j) state[d * dim + j] *= std::exp(g);
    }
    double o_squares = 0.0;
    for (std::size_t j = 0; j < dim; ++j) {
      double predicted = 0.0;
      for (std::size_t d = 0; d < dim; ++d) predicted += k[d] * state[d * dim + j];
      for (std::size_t d = 0; d < dim; ++d) state[d * dim + j] += k[d] * beta * (v[j] - predicted);
      for (std::size_t d = 0; d < dim; ++d) o[j] += q[d] * state[d * dim + j];
      o_squares += o[j] * o[j];
    }
    const double inverse =
        1.0 / std::sqrt(o_squares / static_cast<double>(dim) + static_cast<double>(kEps));
    for (std::size_t d = 0; d < dim; ++d) {
      out.push_back(o[d] * inverse * static_cast<double>(c.o_norm[static_cast<std::int64_t>(d)]) *
                    ExactSigmoid(at(c.gate, r, d)));
    }
  }
  return out;
}

class KdaAccuracyTest : public ::testing::TestWithParam<float> {
 protected:
  ScopedFlushDenormals flush_;
};

// A sum of `dim` products loses at most dim half-ulps of its magnitude, and the state it runs over
// carries the errors of the rows before; |k| = 1 and |alpha| <= 1 keep them from growing. Per row
// that is about 3 (dim + 30) half-ulps relative to the largest output.
TEST_P(KdaAccuracyTest, ReferenceFollowsTheDoubleRecurrence) {
  for (const bool zero : {false, true}) {
    KdaCase<float> c(6, 24, 4, zero, GetParam(), 12);
    const std::vector<double> expected = ExactKda(c);
    reference::KdaHead(c.Args());
    double largest = 0.0;
    for (const double x : expected) largest = std::max(largest, std::fabs(x));
    const double bound = 6 * 3 * (24 + 30) * 0x1p-24 * largest;
    for (std::int64_t r = 0; r < 6; ++r) {
      for (std::int64_t d = 0; d < 24; ++d) {
        EXPECT_NEAR(static_cast<double>(c.out[r * c.stride + d]),
                    expected[static_cast<std::size_t>(r * 24 + d)], bound)
            << "row " << r << " channel " << d;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(GateForms, KdaAccuracyTest, ::testing::Values(-5.0f, 0.0f),
                         [](const auto& param_info) {
                           return param_info.param < 0.0f ? "sigmoid" : "softplus";
                         });

}  // namespace
}  // namespace megalith::kernels
