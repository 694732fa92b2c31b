#include <algorithm>

#include "kernels/reference/reference.h"
#include "kernels/test_paths.h"

namespace megalith::kernels {
namespace {

using test::Buffer;
using test::Random;
using test::SameBits;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kScale = 0.3f;

struct DraftShape {
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t head_dim;
  std::int64_t first_position;
  std::int64_t end_position;
  std::int64_t capacity;
  bool causal;
};

std::string Describe(const DraftShape& shape) {
  return "rows " + std::to_string(shape.rows) + " heads " + std::to_string(shape.heads) + " dim " +
         std::to_string(shape.head_dim) + " positions " + std::to_string(shape.first_position) +
         " .. " + std::to_string(shape.end_position) + " of " + std::to_string(shape.capacity) +
         (shape.causal ? " causal" : "");
}

/// A block with its context. Ring entries outside the context and gaps between rows are NaN.
template <typename Act>
struct DraftCase {
  DraftCase(const DraftShape& s, std::uint64_t seed)
      : shape(s),
        q(s.rows * s.heads * (s.head_dim + 3), 1),
        context_k(s.capacity * ContextStride(), 2),
        context_v(s.capacity * ContextStride(), 3),
        block_k(s.rows * BlockStride(), 1),
        block_v(s.rows * BlockStride(), 2),
        out(s.rows * s.heads * (s.head_dim + 3), 3),
        scratch(DraftAttentionScratchFloats(s.rows, s.heads, s.head_dim)) {
    Random random(seed);
    q.FillNormal(random);
    for (auto* buffer : {&context_k, &context_v, &block_k, &block_v}) {
      buffer->Fill([] { return kNan; });
    }
    for (std::int64_t t = s.first_position; t < s.end_position; ++t) {
      const std::int64_t at = t % s.capacity * ContextStride();
      FillRow(context_k.data() + at, random);
      FillRow(context_v.data() + at, random);
    }
    for (std::int64_t r = 0; r < s.rows; ++r) {
      FillRow(block_k.data() + r * BlockStride(), random);
      FillRow(block_v.data() + r * BlockStride(), random);
    }
    out.Fill([] { return 7.0f; });
    scratch.Fill([] { return kNan; });
  }
  DraftAttentionArgs<Act> Args() {
    return {shape.rows,
            shape.heads,
            shape.head_dim,
            q.data(),
            shape.heads * (shape.head_dim + 3),
            shape.head_dim + 3,
            context_k.data(),
            context_v.data(),
            ContextStride(),
            shape.capacity,
            shape.first_position,
            shape.end_position,
            block_k.data(),
            block_v.data(),
            BlockStride(),
            shape.causal,
            kScale,
            out.data(),
            shape.heads * (shape.head_dim + 3),
            shape.head_dim + 3,
            scratch.data()};
  }
  void FillRow(Act* row, Random& random) {
    for (std::int64_t d = 0; d < shape.head_dim; ++d) row[d] = RoundTo<Act>(random.Normal());
  }
  std::int64_t ContextStride() const { return shape.head_dim + 2; }
  std::int64_t BlockStride() const { return shape.head_dim + 1; }
  std::int64_t OutAt(std::int64_t row, std::int64_t head) const {
    return (row * shape.heads + head) * (shape.head_dim + 3);
  }

  DraftShape shape;
  Buffer<Act> q, context_k, context_v, block_k, block_v, out;
  Buffer<float> scratch;
};

template <typename Act>
void ExpectReferenceBits(const KernelTable<Act>& table, const DraftShape& shape,
                         std::uint64_t seed) {
  SCOPED_TRACE(Describe(shape));
  DraftCase<Act> actual(shape, seed);
  DraftCase<Act> expected(shape, seed);
  table.draft_attention(actual.Args());
  reference::DraftAttention(expected.Args());
  EXPECT_TRUE(SameBits(actual.out, expected.out));
  EXPECT_TRUE(actual.out.CanariesIntact());
  EXPECT_TRUE(actual.scratch.CanariesIntact());
  for (std::int64_t d = 0; d < shape.head_dim; ++d) {
    EXPECT_FALSE(test::IsNan(expected.out[d])) << "something that is not visible was read";
  }
}

class DraftAttentionTest : public test::PathTest {};

TEST_P(DraftAttentionTest, EveryShapeMatchesReference) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    Random random(21);
    const std::int64_t dims[] = {1, 3, 4, 8, 15, 16, 17, 32, 40, 64, 80, 128, 130};
    for (int repeat = 0; repeat < 150; ++repeat) {
      DraftShape shape;
      shape.rows = 1 + random.Below(10);
      shape.heads = 1 + random.Below(7);
      shape.head_dim = dims[repeat % static_cast<int>(std::size(dims))];
      const std::int64_t context = repeat % 5 == 0 ? 0 : random.Below(200);
      shape.first_position = random.Below(300);
      shape.end_position = shape.first_position + context;
      shape.capacity = std::max<std::int64_t>(1, context + random.Below(30));
      shape.causal = random.Below(2) == 0;
      ExpectReferenceBits(table, shape, random.Next());
      if (::testing::Test::HasFailure()) return;
    }
  });
}

TEST_P(DraftAttentionTest, ContextsThatEndAroundAPartMatchReference) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    for (const std::int64_t parts : {1, 2}) {
      for (const std::int64_t more : {-1, 0, 1}) {
        const std::int64_t context = parts * kDraftPartKeys + more;
        ExpectReferenceBits(table, {8, 6, 64, 1000, 1000 + context, context, true}, 1);
      }
    }
  });
}

// More rows than fit a part: the first ones see nothing of the block's second part.
TEST_P(DraftAttentionTest, LongBlocksMatchReference) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    for (const bool causal : {false, true}) {
      ExpectReferenceBits(table, {kDraftPartKeys + 9, 1, 24, 5, 12, 16, causal}, 2);
    }
  });
}

TEST_P(DraftAttentionTest, BitsDoNotDependOnTheOtherHeadsAndRows) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    DraftCase<Act> c({8, 6, 40, 70, 170, 128, true}, 3);
    table.draft_attention(c.Args());
    const Buffer<Act> together(c.out);
    for (std::int64_t head = 0; head < 6; ++head) {
      DraftAttentionArgs<Act> args = c.Args();
      args.heads = 1;
      args.q += c.OutAt(0, head);
      args.out += c.OutAt(0, head);
      c.out.Fill([] { return 7.0f; });
      table.draft_attention(args);
      for (std::int64_t row = 0; row < 8; ++row) {
        EXPECT_TRUE(
            SameBits(c.out.data() + c.OutAt(row, head), together.data() + c.OutAt(row, head), 40));
      }
    }
    // A causal row sees the rows up to itself, so a shorter block has the same first rows.
    for (std::int64_t rows = 1; rows < 8; ++rows) {
      DraftAttentionArgs<Act> args = c.Args();
      args.rows = rows;
      c.out.Fill([] { return 7.0f; });
      table.draft_attention(args);
      for (std::int64_t head = 0; head < 6; ++head) {
        EXPECT_TRUE(SameBits(c.out.data() + c.OutAt(rows - 1, head),
                             together.data() + c.OutAt(rows - 1, head), 40));
      }
    }
  });
}

TEST_P(DraftAttentionTest, ACausalRowIsUntouchedByNanInLaterRows) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    DraftCase<Act> clean({8, 6, 40, 0, 70, 70, true}, 4);
    DraftCase<Act> dirty({8, 6, 40, 0, 70, 70, true}, 4);
    for (std::int64_t d = 0; d < 40; ++d) {
      dirty.block_k[3 * dirty.BlockStride() + d] = RoundTo<Act>(kNan);
      dirty.block_v[5 * dirty.BlockStride() + d] =
          RoundTo<Act>(std::numeric_limits<float>::infinity());
    }
    table.draft_attention(clean.Args());
    table.draft_attention(dirty.Args());
    for (std::int64_t row = 0; row < 8; ++row) {
      for (std::int64_t head = 0; head < 6; ++head) {
        const Act* out = dirty.out.data() + dirty.OutAt(row, head);
        if (row < 3) {
          EXPECT_TRUE(SameBits(out, clean.out.data() + clean.OutAt(row, head), 40)) << row;
        } else {
          EXPECT_TRUE(test::IsNan(out[0])) << row;
        }
      }
    }
  });
}

TEST_P(DraftAttentionTest, TheRingsCapacityDoesNotChangeBits) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    DraftCase<Act> tight({4, 3, 32, 90, 190, 100, false}, 5);
    DraftCase<Act> loose({4, 3, 32, 90, 190, 400, false}, 5);
    table.draft_attention(tight.Args());
    table.draft_attention(loose.Args());
    EXPECT_TRUE(SameBits(tight.out, loose.out));
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, DraftAttentionTest, ::testing::ValuesIn(test::kAllPaths),
                         test::PathName);

// Softmax attention in double, without parts. A score is off by (dim + 2) half-ulps of the sum of
// its products' magnitudes; that is the relative error of a weight, twice for the division; the sum
// over the keys adds two half-ulps each, rescaling a few for every part.
TEST(ReferenceDraftAttention, EqualsSoftmaxOverContextAndBlock) {
  const ScopedFlushDenormals flush;
  constexpr std::int64_t kDim = 24;
  for (const bool causal : {false, true}) {
    DraftCase<float> c({5, 2, kDim, 40, 190, 160, causal}, 6);
    reference::DraftAttention(c.Args());
    for (std::int64_t row = 0; row < 5; ++row) {
      for (std::int64_t head = 0; head < 2; ++head) {
        std::vector<const float*> keys;
        std::vector<const float*> values;
        for (std::int64_t t = 40; t < 190; ++t) {
          keys.push_back(c.context_k.data() + t % 160 * c.ContextStride());
          values.push_back(c.context_v.data() + t % 160 * c.ContextStride());
        }
        for (std::int64_t r = 0; r < (causal ? row + 1 : 5); ++r) {
          keys.push_back(c.block_k.data() + r * c.BlockStride());
          values.push_back(c.block_v.data() + r * c.BlockStride());
        }
        const float* q = c.q.data() + c.OutAt(row, head);
        std::vector<double> weights(keys.size());
        double score_magnitude = 0.0;
        double total = 0.0;
        for (std::size_t i = 0; i < keys.size(); ++i) {
          double dot = 0.0;
          double magnitude = 0.0;
          for (std::int64_t d = 0; d < kDim; ++d) {
            const double product = static_cast<double>(q[d]) * static_cast<double>(keys[i][d]);
            dot += product;
            magnitude += std::fabs(product);
          }
          weights[i] = std::exp(dot * static_cast<double>(kScale));
          score_magnitude = std::max(score_magnitude, magnitude * static_cast<double>(kScale));
          total += weights[i];
        }
        const double relative =
            (2.0 * (kDim + 2) * score_magnitude + 2.0 * static_cast<double>(keys.size()) + 40.0) *
            0x1p-24;
        for (std::int64_t d = 0; d < kDim; ++d) {
          double expected = 0.0;
          double magnitude = 0.0;
          for (std::size_t i = 0; i < keys.size(); ++i) {
            const double term = weights[i] / total * static_cast<double>(values[i][d]);
            expected += term;
            magnitude += std::fabs(term);
          }
          EXPECT_NEAR(static_cast<double>(c.out[c.OutAt(row, head) + d]), expected,
                      relative * magnitude)
              << "row " << row << " head " << head << " channel " << d;
        }
      }
    }
  }
}

TEST(ReferenceDraftAttention, ARowAloneReturnsItsValue) {
  DraftCase<Bf16> c({1, 2, 33, 0, 0, 1, true}, 7);
  reference::DraftAttention(c.Args());
  for (std::int64_t head = 0; head < 2; ++head) {
    EXPECT_TRUE(SameBits(c.out.data() + c.OutAt(0, head), c.block_v.data(), 33));
  }
}

}  // namespace
}  // namespace megalith::kernels
