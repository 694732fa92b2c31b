#include <algorithm>

#include "kernels/reference/reference.h"
#include "kernels/test_paths.h"

namespace megalith::kernels {
namespace {

using test::Buffer;
using test::Random;
using test::SameBits;

/// Some heads of a few rows over a shuffled page pool. Chunks of two parts unless said.
template <typename Act>
struct MlaCase {
  MlaCase(std::int64_t head_count, std::int64_t rank_count, std::int64_t extra_count,
          std::int64_t num_positions, std::int64_t tokens_per_page, std::int64_t split_count,
          std::uint64_t seed, std::int64_t num_rows = 1, std::int64_t parts_per_chunk = 2)
      : heads(head_count),
        rank(rank_count),
        extra(extra_count),
        positions(num_positions),
        page_tokens(tokens_per_page),
        split(split_count),
        chunk(parts_per_chunk * split_count),
        rows(num_rows),
        cached(num_positions + num_rows - 1),
        latent_query(num_rows * head_count * (rank_count + 1), 1),
        extra_query(num_rows * head_count * (extra_count + 2), 3),
        pages(CeilDiv(cached, tokens_per_page)),
        cache((CeilDiv(cached, tokens_per_page) + 2) * tokens_per_page * (rank_count + extra_count),
              1),
        out(num_rows * head_count * (rank_count + 3), 1),
        scratch(MlaScratchFloats(head_count, rank_count, extra_count, split_count)) {
    Random random(seed);
    latent_query.FillNormal(random);
    extra_query.FillNormal(random);
    // Pages in descending order, the first two unused. Tokens beyond the context are NaN.
    cache.Fill([] { return std::numeric_limits<float>::quiet_NaN(); });
    for (std::int64_t i = 0; i < pages.size(); ++i) {
      pages[i] = static_cast<std::int32_t>(pages.size() + 1 - i);
    }
    for (std::int64_t p = 0; p < cached; ++p) {
      for (std::int64_t c = 0; c < rank + extra; ++c) Row(p)[c] = RoundTo<Act>(random.Normal());
    }
  }
  Act* Row(std::int64_t position) {
    return cache.data() +
           (pages[position / page_tokens] * page_tokens + position % page_tokens) * (rank + extra);
  }
  MlaAttentionArgs<Act> Args() {
    return {heads,
            latent_query.data(),
            rank + 1,
            extra_query.data(),
            extra + 2,
            rank,
            extra,
            cache.data(),
            pages.data(),
            page_tokens,
            positions,
            split,
            chunk,
            0.15f,
            out.data(),
            rank + 3,
            scratch.data(),
            rows,
            heads * (rank + 1),
            heads * (extra + 2),
            heads * (rank + 3)};
  }
  /// Arguments for row r alone.
  MlaAttentionArgs<Act> RowArgs(std::int64_t r) {
    MlaAttentionArgs<Act> args = Args();
    args.latent_query += r * args.latent_query_row_stride;
    args.extra_query += r * args.extra_query_row_stride;
    args.out += r * args.out_row_stride;
    args.num_positions += r;
    args.rows = 1;
    return args;
  }
  std::int64_t heads, rank, extra;
  std::int64_t positions;  ///< of the first row
  std::int64_t page_tokens, split, chunk, rows;
  std::int64_t cached;  ///< positions of the last row
  Buffer<float> latent_query;
  Buffer<Act> extra_query;
  Buffer<std::int32_t> pages;
  Buffer<Act> cache;
  Buffer<float> out;
  Buffer<float> scratch;
};

class MlaAttentionTest : public test::PathTest {};

TEST_P(MlaAttentionTest, EveryShapeMatchesReference) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    const std::int64_t shapes[][2] = {{1, 1},  {16, 8},   {17, 3},  {32, 16},
                                      {40, 0}, {144, 33}, {512, 64}};
    for (const auto& shape : shapes) {
      for (const std::int64_t positions : {1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 64, 70, 133}) {
        SCOPED_TRACE("rank " + std::to_string(shape[0]) + " extra " + std::to_string(shape[1]) +
                     " positions " + std::to_string(positions));
        const std::int64_t page_tokens = 1 + positions % 7;
        const std::int64_t heads = 1 + positions % 6;
        MlaCase<Act> c(heads, shape[0], shape[1], positions, page_tokens, 32,
                       static_cast<std::uint64_t>(positions));
        c.out.Fill([] { return 7.0f; });
        reference::MlaAttention(c.Args());
        const Buffer<float> expected(c.out);
        c.out.Fill([] { return 7.0f; });
        table.mla_attention(c.Args());
        EXPECT_TRUE(SameBits(c.out, expected));
        EXPECT_TRUE(c.out.CanariesIntact());
        EXPECT_TRUE(c.scratch.CanariesIntact());
      }
    }
  });
}

TEST_P(MlaAttentionTest, PageSizeDoesNotChangeBits) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    MlaCase<Act> small(3, 40, 8, 100, 3, 32, 5);
    MlaCase<Act> large(3, 40, 8, 100, 64, 32, 5);
    table.mla_attention(small.Args());
    table.mla_attention(large.Args());
    EXPECT_TRUE(SameBits(small.out, large.out));
  });
}

TEST_P(MlaAttentionTest, BitsOfAHeadDoNotDependOnTheOtherHeads) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    MlaCase<Act> c(7, 40, 8, 100, 16, 32, 5);
    table.mla_attention(c.Args());
    const Buffer<float> together(c.out);
    for (std::int64_t head = 0; head < c.heads; ++head) {
      MlaAttentionArgs<Act> args = c.Args();
      args.heads = 1;
      args.latent_query += head * args.latent_query_stride;
      args.extra_query += head * args.extra_query_stride;
      table.mla_attention(args);
      EXPECT_TRUE(SameBits(c.out.data(), together.data() + head * args.out_stride, c.rank));
    }
  });
}

// Over the borders of parts and pages, and of the blocks that are scored together.
TEST_P(MlaAttentionTest, RowsTogetherHaveTheBitsOfEachAlone) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    const std::int64_t shapes[][2] = {{1, 1}, {17, 3}, {64, 16}, {144, 33}};
    for (const auto& shape : shapes) {
      for (const std::int64_t positions : {1, 2, 13, 30, 31, 32, 33, 63, 70}) {
        for (const std::int64_t rows : {2, 3, 8}) {
          SCOPED_TRACE("rank " + std::to_string(shape[0]) + " positions " +
                       std::to_string(positions) + " rows " + std::to_string(rows));
          const std::int64_t heads = 1 + (positions + rows) % 5;
          MlaCase<Act> c(heads, shape[0], shape[1], positions, 1 + positions % 7, 32,
                         static_cast<std::uint64_t>(positions), rows);
          c.out.Fill([] { return 7.0f; });
          for (std::int64_t r = 0; r < rows; ++r) reference::MlaAttention(c.RowArgs(r));
          const Buffer<float> one_by_one(c.out);
          c.out.Fill([] { return 7.0f; });
          reference::MlaAttention(c.Args());
          EXPECT_TRUE(SameBits(c.out, one_by_one)) << "reference";
          c.out.Fill([] { return 7.0f; });
          table.mla_attention(c.Args());
          EXPECT_TRUE(SameBits(c.out, one_by_one));
          EXPECT_TRUE(c.out.CanariesIntact());
          EXPECT_TRUE(c.scratch.CanariesIntact());
        }
      }
    }
  });
}

TEST_P(MlaAttentionTest, RowsDoNotSeeWhatLaterRowsBring) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    constexpr std::int64_t kRows = 5;
    MlaCase<Act> c(2, 40, 8, 60, 16, 32, 5, kRows);
    table.mla_attention(c.Args());
    const Buffer<float> finite(c.out);
    for (std::int64_t i = 0; i < c.rank + c.extra; ++i) {
      c.Row(c.positions + 1)[i] = RoundTo<Act>(std::numeric_limits<float>::infinity());
    }
    table.mla_attention(c.Args());
    const std::int64_t stride = c.Args().out_row_stride;
    EXPECT_TRUE(SameBits(c.out.data(), finite.data(), 2 * stride - 3));
    for (std::int64_t r = 2; r < kRows; ++r) EXPECT_TRUE(test::IsNan(c.out[r * stride]));
  });
}

/// The first `rows` rows, chunk by chunk and then merged, by these kernels.
template <typename Act>
void AttendByChunks(MlaCase<Act>& c, std::int64_t rows,
                    void (*partial)(const MlaAttentionArgs<Act>&, std::int64_t),
                    void (*merge)(const MlaMergeArgs&)) {
  const std::int64_t stride = RoundUp<std::int64_t>(c.rank + 2, kLanes);
  const std::int64_t num_chunks = CeilDiv(c.positions + rows - 1, c.chunk);
  const std::int64_t per_row = c.heads * stride;
  Buffer<float> partials(num_chunks * rows * per_row);
  partials.Fill([] { return 3.0f; });
  Buffer<float> scratch(MlaPartialScratchFloats(c.heads, c.rank, c.extra, c.split));
  MlaAttentionArgs<Act> args = c.Args();
  args.rows = rows;
  args.scratch = scratch.data();
  args.out_stride = stride;
  args.out_row_stride = per_row;
  for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    args.out = partials.data() + chunk * rows * per_row;
    partial(args, chunk);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t head = 0; head < c.heads; ++head) {
        const float* out = args.out + row * per_row + head * stride;
        const bool is_seen = chunk * c.chunk < c.positions + row;
        const std::int64_t end = is_seen ? c.rank + 2 : 0;
        EXPECT_TRUE(std::all_of(out + end, out + stride, [](float x) { return x == 3.0f; }))
            << "chunk " << chunk << " row " << row << " head " << head;
      }
    }
  }
  EXPECT_TRUE(partials.CanariesIntact());
  EXPECT_TRUE(scratch.CanariesIntact());
  std::vector<const float*> of_chunks(static_cast<std::size_t>(num_chunks));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t head = 0; head < c.heads; ++head) {
      for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) {
        of_chunks[static_cast<std::size_t>(chunk)] =
            partials.data() + (chunk * rows + row) * per_row + head * stride;
      }
      const MlaAttentionArgs<Act> whole = c.Args();
      merge({c.rank, CeilDiv(c.positions + row, c.chunk), of_chunks.data(),
             whole.out + row * whole.out_row_stride + head * whole.out_stride});
    }
  }
  EXPECT_TRUE(c.out.CanariesIntact());
}

/// Both forms of a path and of the reference, for the first `rows` rows.
template <typename Act>
void ExpectOneDefinition(MlaCase<Act>& c, std::int64_t rows, const KernelTable<Act>& table) {
  const auto clear = [&] { c.out.Fill([] { return 7.0f; }); };
  MlaAttentionArgs<Act> args = c.Args();
  args.rows = rows;
  clear();
  reference::MlaAttention(args);
  const Buffer<float> expected(c.out);
  clear();
  table.mla_attention(args);
  EXPECT_TRUE(SameBits(c.out, expected)) << "whole";
  EXPECT_TRUE(c.scratch.CanariesIntact());
  clear();
  AttendByChunks<Act>(c, rows, reference::MlaPartial<Act>, reference::MlaMerge);
  EXPECT_TRUE(SameBits(c.out, expected)) << "reference, by chunks";
  clear();
  AttendByChunks<Act>(c, rows, table.mla_partial, table.mla_merge);
  EXPECT_TRUE(SameBits(c.out, expected)) << "by chunks";
}

TEST_P(MlaAttentionTest, ChunkByChunkGivesTheSameBits) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    const std::int64_t shapes[][2] = {{1, 1}, {17, 3}, {64, 16}, {144, 33}};
    for (const auto& shape : shapes) {
      for (const std::int64_t positions : {1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 330}) {
        for (const std::int64_t rows : {1, 2, 8}) {
          SCOPED_TRACE("rank " + std::to_string(shape[0]) + " positions " +
                       std::to_string(positions) + " rows " + std::to_string(rows));
          const std::int64_t parts = 1 + positions % 3;
          MlaCase<Act> c(1 + (positions + rows) % 5, shape[0], shape[1], positions,
                         1 + positions % 7, 32, static_cast<std::uint64_t>(positions), rows, parts);
          ExpectOneDefinition(c, rows, table);
        }
      }
    }
  });
}

// The sizes that models run with (program::kAttentionSplit, kAttentionChunk).
TEST_P(MlaAttentionTest, ChunkByChunkGivesTheSameBitsAtTheBordersOfChunks) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    for (const std::int64_t positions : {1, 511, 512, 513, 2047, 2048, 2049, 4096, 5000}) {
      MlaCase<Act> c(2, 17, 3, positions, 64, 512, static_cast<std::uint64_t>(positions),
                     kMaxMlaRows, 4);
      for (std::int64_t rows = 1; rows <= kMaxMlaRows; ++rows) {
        SCOPED_TRACE("positions " + std::to_string(positions) + " rows " + std::to_string(rows));
        ExpectOneDefinition(c, rows, table);
      }
    }
  });
}

// Contexts of one chunk have the bits that they had before there were chunks.
TEST_P(MlaAttentionTest, OneChunkIsPartsAlone) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    for (const std::int64_t positions : {64, 95, 128}) {
      MlaCase<Act> one(3, 40, 8, positions, 16, 32, 5, 1, 4);
      MlaCase<Act> unlimited(3, 40, 8, positions, 16, 32, 5, 1, 1000);
      MlaCase<Act> small(3, 40, 8, positions, 16, 32, 5, 1, 1);
      for (MlaCase<Act>* c : {&one, &unlimited, &small}) table.mla_attention(c->Args());
      EXPECT_TRUE(SameBits(one.out, unlimited.out));
      // A chunk of one part each merges in the same order, too.
      EXPECT_TRUE(SameBits(one.out, small.out));
    }
  });
}

// Which heads are computed together, and where, changes nothing.
TEST_P(MlaAttentionTest, PartialOfAHeadDoesNotDependOnTheOtherHeads) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    constexpr std::int64_t kRows = 3;
    MlaCase<Act> c(7, 40, 8, 100, 16, 32, 5, kRows);
    const std::int64_t stride = 48;
    Buffer<float> together(kRows * c.heads * stride);
    MlaAttentionArgs<Act> args = c.Args();
    args.out = together.data();
    args.out_stride = stride;
    args.out_row_stride = c.heads * stride;
    table.mla_partial(args, 1);
    Buffer<float> alone(kRows * stride);
    args.out = alone.data();
    args.out_row_stride = stride;
    args.heads = 1;
    for (std::int64_t head = 0; head < c.heads; ++head) {
      table.mla_partial(args, 1);
      for (std::int64_t row = 0; row < kRows; ++row) {
        EXPECT_TRUE(SameBits(alone.data() + row * stride,
                             together.data() + (row * c.heads + head) * stride, c.rank + 2));
      }
      args.latent_query += args.latent_query_stride;
      args.extra_query += args.extra_query_stride;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, MlaAttentionTest, ::testing::ValuesIn(test::kAllPaths),
                         test::PathName);

// Softmax attention in double, without parts. A score is off by about (additions + 2) half-ulps of
// the sum of its products' magnitudes; that is the relative error of a probability, twice for the
// division; the sum over the positions adds one half-ulp each.
TEST(ReferenceMlaAttention, EqualsSoftmaxOverTheWholeContext) {
  const ScopedFlushDenormals flush;
  MlaCase<float> c(1, 48, 8, 150, 16, 32, 9);
  reference::MlaAttention(c.Args());
  std::vector<double> scores(150);
  double max = -1e300;
  double score_magnitude = 0.0;
  for (std::int64_t p = 0; p < 150; ++p) {
    double dot = 0.0;
    double magnitude = 0.0;
    for (std::int64_t i = 0; i < 56; ++i) {
      const float query = i < 48 ? c.latent_query[i] : c.extra_query[i - 48];
      const double product = static_cast<double>(query) * static_cast<double>(c.Row(p)[i]);
      dot += product;
      magnitude += std::fabs(product);
    }
    scores[static_cast<std::size_t>(p)] = dot * static_cast<double>(0.15f);
    score_magnitude = std::max(score_magnitude, magnitude * static_cast<double>(0.15f));
    max = std::max(max, scores[static_cast<std::size_t>(p)]);
  }
  double total = 0.0;
  for (double& score : scores) total += score = std::exp(score - max);
  const double relative = (2.0 * (4 + 4 + 2 + 4) * score_magnitude + 2.0 * 10 + 150.0) * 0x1p-24;
  for (std::int64_t i = 0; i < 48; ++i) {
    double expected = 0.0;
    double magnitude = 0.0;
    for (std::int64_t p = 0; p < 150; ++p) {
      const double term =
          scores[static_cast<std::size_t>(p)] / total * static_cast<double>(c.Row(p)[i]);
      expected += term;
      magnitude += std::fabs(term);
    }
    EXPECT_NEAR(static_cast<double>(c.out[i]), expected, relative * magnitude) << i;
  }
}

// With bf16 activations two roundings come in, each by up to 2^-9 of a value: of the latent query,
// which moves a score by at most that share of the magnitudes of its products, and of the
// exponentials. The weights stay weights: their sum is what divides.
TEST(ReferenceMlaAttention, Bf16StaysWithinTheBoundOfItsRoundings) {
  const ScopedFlushDenormals flush;
  MlaCase<Bf16> rounded(1, 48, 8, 150, 16, 32, 9);
  MlaCase<float> exact(1, 48, 8, 150, 16, 32, 9);
  for (std::int64_t i = 0; i < 8; ++i) exact.extra_query[i] = ToFloat(rounded.extra_query[i]);
  double score_magnitude = 0.0;
  for (std::int64_t p = 0; p < 150; ++p) {
    double magnitude = 0.0;
    for (std::int64_t i = 0; i < 56; ++i) {
      exact.Row(p)[i] = ToFloat(rounded.Row(p)[i]);
      if (i < 48) magnitude += std::fabs(exact.latent_query[i] * exact.Row(p)[i]);
    }
    score_magnitude = std::max(score_magnitude, magnitude * static_cast<double>(0.15f));
  }
  reference::MlaAttention(rounded.Args());
  reference::MlaAttention(exact.Args());
  // Of a weight, relative: the score's shift, the rounding, and both again in the total.
  const double relative = 2.0 * (std::expm1(score_magnitude * 0x1p-9) + 0x1p-9);
  std::size_t differ = 0;
  for (std::int64_t i = 0; i < 48; ++i) {
    double largest = 0.0;
    for (std::int64_t p = 0; p < 150; ++p) {
      largest = std::max(largest, std::fabs(static_cast<double>(exact.Row(p)[i])));
    }
    EXPECT_NEAR(rounded.out[i], exact.out[i], relative * largest) << i;
    differ += rounded.out[i] != exact.out[i] ? 1 : 0;
  }
  EXPECT_GT(differ, 0U);
}

TEST(ReferenceMlaAttention, OnePositionReturnsItsLatent) {
  MlaCase<Bf16> c(1, 33, 4, 1, 16, 32, 2);
  reference::MlaAttention(c.Args());
  for (std::int64_t i = 0; i < 33; ++i) EXPECT_EQ(c.out[i], ToFloat(c.Row(0)[i]));
}

}  // namespace
}  // namespace megalith::kernels
