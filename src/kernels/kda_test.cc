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
        histories(conv_kernel * 3 * stride, 1),
        out(rows_count * stride, 1),
        scratch(KdaScratchFloats(dim)),
        chunk_scratch(KdaChunkScratchFloats(dim)),
        zero(zero_state),
        bound(lower_bound) {
    Random random(seed);
    for (auto* buffer : {&q, &k, &v, &gate, &decay, &histories}) buffer->FillNormal(random);
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
            histories.data(),
            histories.data() + stride,
            histories.data() + 2 * stride,
            3 * stride,
            out.data(),
            stride,
            scratch.data()};
  }

  /// For the chunk form, with its first border after so many rows.
  KdaHeadArgs<Act> Chunks(std::int64_t first_chunk_rows = kKdaChunkRows) {
    KdaHeadArgs<Act> args = Args();
    args.first_chunk_rows = first_chunk_rows;
    args.scratch = chunk_scratch.data();
    return args;
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
    EXPECT_TRUE(SameBits(histories, expected.histories)) << "histories";
    EXPECT_TRUE(out.CanariesIntact());
    EXPECT_TRUE(state.CanariesIntact());
    EXPECT_TRUE(histories.CanariesIntact());
    EXPECT_TRUE(scratch.CanariesIntact());
    EXPECT_TRUE(chunk_scratch.CanariesIntact());
  }

  std::int64_t rows, head_dim, kernel, stride, state_stride;
  Buffer<Act> q, k, v, gate, decay, beta;
  Buffer<float> q_taps, k_taps, v_taps, dt_bias, o_norm, state;
  Buffer<Act> histories;  ///< [conv_kernel - 1][q, k, v][stride], and a row that nobody touches
  Buffer<Act> out;
  Buffer<float> scratch, chunk_scratch;
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
      for (std::int64_t i = 0; i < 3 * 3; ++i) {
        std::fill_n(clean.histories.data() + i * clean.stride, 20, RoundTo<Act>(0.0f));
      }
      table.kda_head(dirty.Args());
      table.kda_head(clean.Args());
      EXPECT_TRUE(SameBits(dirty.out, clean.out));
      EXPECT_TRUE(SameBits(dirty.state, clean.state));
      EXPECT_TRUE(SameBits(dirty.histories, clean.histories));
    }
  });
}

/// States and histories after the last rows of a run, with canaries; full of NaN at first.
template <typename Act>
struct KdaDrafts {
  KdaDrafts(const KdaCase<Act>& c, std::int64_t num_drafts) {
    states.reserve(static_cast<std::size_t>(num_drafts));
    histories.reserve(static_cast<std::size_t>(num_drafts));
    const auto nan = [] { return std::numeric_limits<float>::quiet_NaN(); };
    for (std::int64_t i = 0; i < num_drafts; ++i) {
      states.emplace_back(c.state.size(), i % 3).Fill(nan);
      histories.emplace_back(c.histories.size(), i % 3).Fill(nan);
      state_pointers.push_back(states.back().data());
      history_pointers.push_back(histories.back().data());
    }
  }
  KdaHeadArgs<Act> AddTo(KdaHeadArgs<Act> args) const {
    args.num_drafts = static_cast<std::int64_t>(states.size());
    args.draft_states = state_pointers.data();
    args.draft_histories = history_pointers.data();
    return args;
  }
  /// Whether draft i holds the state and the histories of `c`, and nothing between them.
  void ExpectHolds(std::size_t i, const KdaCase<Act>& c) const {
    EXPECT_TRUE(SameBits(states[i], c.state)) << "state of draft " << i;
    for (std::int64_t row = 0; row < 3 * c.kernel; ++row) {
      const Act* held = histories[i].data() + row * c.stride;
      const bool is_history = row < 3 * (c.kernel - 1);
      const std::int64_t count = is_history ? c.head_dim : 0;
      EXPECT_TRUE(SameBits(held, c.histories.data() + row * c.stride, count))
          << "history row " << row << " of draft " << i;
      for (std::int64_t d = count; d < c.stride; ++d) EXPECT_TRUE(test::IsNan(held[d]));
    }
    EXPECT_TRUE(states[i].CanariesIntact());
    EXPECT_TRUE(histories[i].CanariesIntact());
  }
  std::vector<Buffer<float>> states;
  std::vector<Buffer<Act>> histories;
  std::vector<float*> state_pointers;
  std::vector<Act*> history_pointers;
};

// Whichever rows are taken back, the sequence stands where a run without them would have left it.
TEST_P(KdaHeadTest, DraftsHoldWhatEachRowAloneLeaves) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    Random random(15);
    for (int repeat = 0; repeat < 120; ++repeat) {
      const std::int64_t rows = 2 + random.Below(8);
      const std::int64_t num_drafts = 1 + random.Below(rows - 1);
      const std::int64_t dim = 1 + random.Below(repeat % 4 == 0 ? 140 : 40);
      const std::int64_t kernel = 1 + repeat % 4;
      const bool zero = random.Below(2) == 0;
      const float bound = random.Below(2) == 0 ? -5.0f : 0.0f;
      const std::uint64_t seed = random.Next();
      SCOPED_TRACE("rows " + std::to_string(rows) + " drafts " + std::to_string(num_drafts) +
                   " dim " + std::to_string(dim) + " kernel " + std::to_string(kernel) +
                   (zero ? " from zero" : ""));
      KdaCase<Act> run(rows, dim, kernel, zero, bound, seed);
      KdaCase<Act> by_reference(rows, dim, kernel, zero, bound, seed);
      KdaCase<Act> one_by_one(rows, dim, kernel, zero, bound, seed);
      const KdaDrafts<Act> drafts(run, num_drafts);
      const KdaDrafts<Act> reference_drafts(by_reference, num_drafts);
      table.kda_head(drafts.AddTo(run.Args()));
      reference::KdaHead(reference_drafts.AddTo(by_reference.Args()));
      for (std::int64_t r = 0; r < rows - num_drafts; ++r) table.kda_head(one_by_one.Rows(r, 1));
      EXPECT_TRUE(SameBits(run.state, one_by_one.state)) << "state before the drafts";
      EXPECT_TRUE(SameBits(run.histories, one_by_one.histories)) << "histories before the drafts";
      for (std::int64_t i = 0; i < num_drafts; ++i) {
        table.kda_head(one_by_one.Rows(rows - num_drafts + i, 1));
        drafts.ExpectHolds(static_cast<std::size_t>(i), one_by_one);
        reference_drafts.ExpectHolds(static_cast<std::size_t>(i), one_by_one);
      }
      EXPECT_TRUE(SameBits(run.out, one_by_one.out));
      run.ExpectSameResults(by_reference);
      if (::testing::Test::HasFailure()) return;
    }
  });
}

TEST_P(KdaHeadTest, DraftsOfALongRunMatchReference) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    KdaCase<Act> actual(40, 128, 4, false, -5.0f, 8);
    KdaCase<Act> expected(40, 128, 4, false, -5.0f, 8);
    const KdaDrafts<Act> drafts(actual, 7);
    const KdaDrafts<Act> expected_drafts(expected, 7);
    table.kda_head(drafts.AddTo(actual.Args()));
    reference::KdaHead(expected_drafts.AddTo(expected.Args()));
    actual.ExpectSameResults(expected);
    for (std::size_t i = 0; i < 7; ++i) {
      EXPECT_TRUE(SameBits(drafts.states[i], expected_drafts.states[i]));
      EXPECT_TRUE(SameBits(drafts.histories[i], expected_drafts.histories[i]));
    }
  });
}

class KdaChunksTest : public test::PathTest {};

TEST_P(KdaChunksTest, EveryShapeMatchesReference) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    for (const std::int64_t dim : {1, 3, 15, 16, 17, 32, 48, 64, 80, 128, 131}) {
      for (const std::int64_t rows : {1, 2, 15, 16, 17, 50}) {
        const std::int64_t first = 1 + (5 * dim + 3 * rows) % kKdaChunkRows;
        const bool zero = (dim + rows) % 2 == 0;
        const float bound = rows % 2 == 1 ? -5.0f : 0.0f;
        SCOPED_TRACE("dim " + std::to_string(dim) + " rows " + std::to_string(rows) +
                     " first chunk " + std::to_string(first) + (zero ? " from zero" : ""));
        KdaCase<Act> actual(rows, dim, 1 + (dim + rows) % 5, zero, bound, 7);
        KdaCase<Act> expected(rows, dim, 1 + (dim + rows) % 5, zero, bound, 7);
        table.kda_chunks(actual.Chunks(first));
        reference::KdaChunks(expected.Chunks(first));
        actual.ExpectSameResults(expected);
      }
    }
  });
}

TEST_P(KdaChunksTest, ARunCutAtChunkBordersGivesTheSameBits) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    constexpr std::int64_t kRows = 60;
    constexpr std::int64_t kFirst = 5;
    for (const bool zero : {false, true}) {
      KdaCase<Act> whole(kRows, 40, 4, zero, -5.0f, 3);
      table.kda_chunks(whole.Chunks(kFirst));
      for (const std::int64_t cut_at : {5, 21, 53}) {
        SCOPED_TRACE("cut after " + std::to_string(cut_at));
        KdaCase<Act> cut(kRows, 40, 4, zero, -5.0f, 3);
        KdaHeadArgs<Act> head = cut.Rows(0, cut_at);
        head.first_chunk_rows = kFirst;
        KdaHeadArgs<Act> tail = cut.Rows(cut_at, kRows - cut_at);
        tail.first_chunk_rows = kKdaChunkRows;
        head.scratch = tail.scratch = cut.chunk_scratch.data();
        table.kda_chunks(head);
        table.kda_chunks(tail);
        cut.ExpectSameResults(whole);
      }
    }
  });
}

TEST_P(KdaChunksTest, ZeroStateIgnoresWhatStateAndHistoryHold) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    for (const std::int64_t rows : {1, 3, 20}) {
      KdaCase<Act> dirty(rows, 20, 4, true, -5.0f, 4);
      KdaCase<Act> clean(rows, 20, 4, true, -5.0f, 4);
      dirty.state.Fill([] { return std::numeric_limits<float>::quiet_NaN(); });
      for (std::int64_t i = 0; i < 3 * 3; ++i) {
        std::fill_n(dirty.histories.data() + i * dirty.stride, 20,
                    RoundTo<Act>(std::numeric_limits<float>::quiet_NaN()));
      }
      table.kda_chunks(dirty.Chunks());
      table.kda_chunks(clean.Chunks());
      dirty.ExpectSameResults(clean);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, KdaChunksTest, ::testing::ValuesIn(test::kAllPaths),
                         test::PathName);

INSTANTIATE_TEST_SUITE_P(Paths, KdaHeadTest, ::testing::ValuesIn(test::kAllPaths), test::PathName);

double ExactSigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// Section 5.4 of the model description in double: outputs of every row of a run.
std::vector<double> ExactKda(KdaCase<float>& c) {
  const auto dim = static_cast<std::size_t>(c.head_dim);
  const auto at = [&](const Buffer<float>& b, std::int64_t row, std::size_t d) {
    return static_cast<double>(b[row * c.stride + static_cast<std::int64_t>(d)]);
  };
  const auto convolved = [&](const Buffer<float>& x, std::int64_t stream, const Buffer<float>& taps,
                             std::int64_t row, std::size_t d) {
    double y = 0.0;
    for (std::int64_t t = 0; t < c.kernel; ++t) {
      const std::int64_t source = row - (c.kernel - 1) + t;
      double input = 0.0;
      if (source >= 0) {
        input = at(x, source, d);
      } else if (!c.zero) {
        input = at(c.histories, 3 * (c.kernel - 1 + source) + stream, d);
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
      q[d] = convolved(c.q, 0, c.q_taps, r, d);
      k[d] = convolved(c.k, 1, c.k_taps, r, d);
      v[d] = convolved(c.v, 2, c.v_taps, r, d);
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

// The chunk form adds the same products in another order, and a chunk's rows meet in sums of at
// most kKdaChunkRows more products. Decays between almost 1 and e^-5 (softplus: e^-30, whose
// quotients would not fit in a float) must not matter.
TEST_P(KdaAccuracyTest, ChunksFollowTheDoubleRecurrence) {
  constexpr std::int64_t kRows = 120;
  constexpr std::int64_t kDim = 24;
  for (const float shift : {-12.0f, 0.0f, 12.0f}) {
    for (const std::int64_t first : {1, 7, 16}) {
      SCOPED_TRACE("decay shifted by " + std::to_string(shift) + " first chunk " +
                   std::to_string(first));
      KdaCase<float> c(kRows, kDim, 4, first == 7, GetParam(), 12);
      for (std::int64_t d = 0; d < kDim; ++d)
        c.dt_bias[d] += shift * (GetParam() < 0.0f ? 1 : 2.5f);
      const std::vector<double> expected = ExactKda(c);
      reference::KdaChunks(c.Chunks(first));
      double largest = 0.0;
      for (const double x : expected) largest = std::max(largest, std::fabs(x));
      const double bound = kRows * 3 * (kDim + kKdaChunkRows + 30) * 0x1p-24 * largest;
      double worst = 0.0;
      for (std::int64_t r = 0; r < kRows; ++r) {
        for (std::int64_t d = 0; d < kDim; ++d) {
          const double difference = std::fabs(static_cast<double>(c.out[r * c.stride + d]) -
                                              expected[static_cast<std::size_t>(r * kDim + d)]);
          worst = std::max(worst, difference);
        }
      }
      EXPECT_LE(worst, bound);
      RecordProperty("share_of_bound", std::to_string(worst / bound));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(GateForms, KdaAccuracyTest, ::testing::Values(-5.0f, 0.0f),
                         [](const auto& param_info) {
                           return param_info.param < 0.0f ? "sigmoid" : "softplus";
                         });

}  // namespace
}  // namespace megalith::kernels
