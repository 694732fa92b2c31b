#include <algorithm>

#include "kernels/mla_expanded_scratch.h"
#include "kernels/reference/reference.h"
#include "kernels/test_paths.h"

namespace megalith::kernels {
namespace {

using test::Buffer;
using test::Random;
using test::SameBits;

struct MlaShape {
  std::int64_t nope, extra, rank, value_dim;
};

/// One head of a run over a shuffled page pool.
struct ExpandedCase {
  ExpandedCase(MlaShape s, std::int64_t first_position, std::int64_t row_count, bool gated,
               std::uint64_t seed, std::int64_t tokens_per_page = 5, std::int64_t split_count = 32)
      : shape(s),
        first(first_position),
        rows(row_count),
        page_tokens(tokens_per_page),
        split(split_count),
        query(row_count * (s.nope + s.extra + 3), 1),
        key_weights(CeilDiv<std::int64_t>(s.rank, kPanelOutputs) * Panel(s.nope)),
        value_weights(CeilDiv<std::int64_t>(s.value_dim, kPanelOutputs) * Panel(s.rank)),
        key_rows(s.nope * s.rank),
        value_rows(s.value_dim * s.rank),
        pages(CeilDiv(first_position + row_count, tokens_per_page)),
        cache((pages.size() + 2) * tokens_per_page * (s.rank + s.extra), 1),
        gate(row_count * (s.value_dim + 1), 3),
        out(row_count * (s.value_dim + 2), 1),
        scratch(MlaExpandedScratch(row_count, s.nope, s.extra, s.rank, s.value_dim, split_count)
                    .floats),
        has_gate(gated) {
    Random random(seed);
    query.FillNormal(random);
    const float scale = 1.0f / std::sqrt(static_cast<float>(s.rank));
    key_rows.FillNormal(random, scale);
    value_rows.FillNormal(random, scale);
    gate.FillNormal(random);
    out.Fill([] { return 7.0f; });
    cache.Fill([] { return std::numeric_limits<float>::quiet_NaN(); });
    for (std::int64_t i = 0; i < pages.size(); ++i) {
      pages[i] = static_cast<std::int32_t>(pages.size() + 1 - i);
    }
    for (std::int64_t t = 0; t < first + rows; ++t) {
      for (std::int64_t c = 0; c < s.rank + s.extra; ++c) Latent(t)[c] = ToBf16(random.Normal());
    }
    Pack(key_rows, 1, s.rank, s.rank, s.nope, key_weights);
    Pack(value_rows, s.rank, 1, s.value_dim, s.rank, value_weights);
  }

  static std::int64_t Panel(std::int64_t inputs) {
    return PanelBytes(PanelFormat::kBf16, inputs) / static_cast<std::int64_t>(sizeof(Bf16));
  }
  static void Pack(const Buffer<Bf16>& source, std::int64_t output_stride,
                   std::int64_t input_stride, std::int64_t outputs, std::int64_t inputs,
                   Buffer<Bf16>& panels) {
    for (std::int64_t n = 0; n < outputs; n += kPanelOutputs) {
      PackPanelBf16(
          source.data() + n * output_stride, output_stride, input_stride,
          std::min<std::int64_t>(kPanelOutputs, outputs - n), inputs,
          reinterpret_cast<std::byte*>(panels.data() + n / kPanelOutputs * Panel(inputs)));
    }
  }
  Bf16* Latent(std::int64_t t) {
    return cache.data() +
           (pages[t / page_tokens] * page_tokens + t % page_tokens) * (shape.rank + shape.extra);
  }
  MlaExpandedArgs Args(const KernelTable<Bf16>* table) {
    return {rows,
            first,
            query.data(),
            shape.nope + shape.extra + 3,
            shape.nope,
            shape.extra,
            shape.rank,
            shape.value_dim,
            key_weights.data(),
            value_weights.data(),
            cache.data(),
            pages.data(),
            page_tokens,
            split,
            0.2f,
            has_gate ? gate.data() : nullptr,
            shape.value_dim + 1,
            out.data(),
            shape.value_dim + 2,
            table == nullptr ? nullptr : table->matmul[static_cast<int>(PanelFormat::kBf16)],
            scratch.data()};
  }

  MlaShape shape;
  std::int64_t first, rows, page_tokens, split;
  Buffer<Bf16> query, key_weights, value_weights, key_rows, value_rows;
  Buffer<std::int32_t> pages;
  Buffer<Bf16> cache, gate, out;
  Buffer<float> scratch;
  bool has_gate;
};

const MlaShape kShapes[] = {
    {16, 8, 32, 16}, {1, 0, 1, 1}, {24, 3, 40, 17}, {17, 16, 33, 40}, {64, 16, 64, 64}};

class MlaExpandedTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override{MEGALITH_SKIP_IF_UNSUPPORTED(GetParam())} ScopedFlushDenormals flush_;
};

TEST_P(MlaExpandedTest, EveryShapeMatchesReference) {
  const KernelTable<Bf16>& table = Bf16Kernels(GetParam());
  std::uint64_t seed = 0;
  for (const MlaShape& shape : kShapes) {
    for (const std::int64_t first : {0, 1, 31, 32, 75}) {
      for (const std::int64_t rows : {1, 5, 64, 67}) {
        if (rows > 5 && shape.rank > 40 && first != 31) continue;  // the reference takes its time
        SCOPED_TRACE("rank " + std::to_string(shape.rank) + " from position " +
                     std::to_string(first) + " rows " + std::to_string(rows));
        ++seed;
        ExpandedCase c(shape, first, rows, seed % 2 == 0, seed);
        reference::MlaExpanded(c.Args(nullptr), table.numerics);
        const Buffer<Bf16> expected(c.out);
        c.out.Fill([] { return 7.0f; });
        table.mla_expanded(c.Args(&table));
        EXPECT_TRUE(SameBits(c.out, expected));
        EXPECT_TRUE(c.out.CanariesIntact());
        EXPECT_TRUE(c.scratch.CanariesIntact());
      }
    }
  }
}

TEST_P(MlaExpandedTest, ARunCutAnywhereGivesTheSameBits) {
  const KernelTable<Bf16>& table = Bf16Kernels(GetParam());
  constexpr std::int64_t kRows = 150;
  for (const std::int64_t first : {0, 13}) {
    ExpandedCase c({24, 8, 40, 24}, first, kRows, true, 5);
    table.mla_expanded(c.Args(&table));
    const Buffer<Bf16> whole(c.out);
    for (const std::int64_t cut : {1, 19, 64, 100, 149}) {
      c.out.Fill([] { return 7.0f; });
      MlaExpandedArgs args = c.Args(&table);
      args.rows = cut;
      table.mla_expanded(args);
      args.rows = kRows - cut;
      args.first_position += cut;
      args.query += cut * args.query_stride;
      args.gate += cut * args.gate_stride;
      args.out += cut * args.out_stride;
      table.mla_expanded(args);
      EXPECT_TRUE(SameBits(c.out, whole)) << "cut after " << cut;
    }
  }
}

TEST_P(MlaExpandedTest, PageSizeDoesNotChangeBits) {
  const KernelTable<Bf16>& table = Bf16Kernels(GetParam());
  ExpandedCase small({24, 8, 40, 24}, 20, 90, true, 5, 3);
  ExpandedCase large({24, 8, 40, 24}, 20, 90, true, 5, 64);
  table.mla_expanded(small.Args(&table));
  table.mla_expanded(large.Args(&table));
  EXPECT_TRUE(SameBits(small.out, large.out));
}

// What the values may be off by, relative to exact attention with the same bf16 inputs: a key is
// rounded to 2^-9 of itself, which moves a score by at most 2^-9 of the sum of its products'
// magnitudes, and a probability by that, twice for the division. Values are rounded, p is cut to
// 16 bits, the result is rounded once. Sums in float add far less: 2^-12 covers them.
TEST_P(MlaExpandedTest, FollowsExactAttention) {
  const KernelTable<Bf16>& table = Bf16Kernels(GetParam());
  const MlaShape shape{48, 8, 64, 32};
  ExpandedCase c(shape, 40, 70, false, 9);
  table.mla_expanded(c.Args(&table));
  const std::int64_t positions = c.first + c.rows;
  const auto dot = [&](const Buffer<Bf16>& weights, std::int64_t row, std::int64_t t) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < shape.rank; ++i) {
      sum += test::ToDouble(weights[row * shape.rank + i]) * test::ToDouble(c.Latent(t)[i]);
    }
    return sum;
  };
  std::vector<std::vector<double>> keys, values;
  for (std::int64_t t = 0; t < positions; ++t) {
    keys.emplace_back();
    for (std::int64_t i = 0; i < shape.nope; ++i) keys.back().push_back(dot(c.key_rows, i, t));
    for (std::int64_t i = 0; i < shape.extra; ++i) {
      keys.back().push_back(test::ToDouble(c.Latent(t)[shape.rank + i]));
    }
    values.emplace_back();
    for (std::int64_t i = 0; i < shape.value_dim; ++i) {
      values.back().push_back(dot(c.value_rows, i, t));
    }
  }
  double used = 0.0;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const auto visible = static_cast<std::size_t>(c.first + row + 1);
    std::vector<double> p(visible);
    double magnitude = 0.0;
    double largest = -1e300;
    for (std::size_t t = 0; t < visible; ++t) {
      double products = 0.0;
      for (std::int64_t i = 0; i < shape.nope + shape.extra; ++i) {
        const double product = 0.2 * keys[t][static_cast<std::size_t>(i)] *
                               test::ToDouble(c.query[row * (shape.nope + shape.extra + 3) + i]);
        p[t] += product;
        products += std::fabs(product);
      }
      magnitude = std::max(magnitude, products);
      largest = std::max(largest, p[t]);
    }
    double total = 0.0;
    for (double& value : p) total += value = std::exp(value - largest);
    const double relative = std::exp(2.0 * 0x1p-9 * magnitude) - 1.0 + 2.0 * 0x1p-9 + 0x1p-12;
    for (std::int64_t i = 0; i < shape.value_dim; ++i) {
      double expected = 0.0;
      double weight = 0.0;
      for (std::size_t t = 0; t < visible; ++t) {
        const double term = p[t] / total * values[t][static_cast<std::size_t>(i)];
        expected += term;
        weight += std::fabs(term);
      }
      const double difference =
          std::fabs(test::ToDouble(c.out[row * (shape.value_dim + 2) + i]) - expected);
      EXPECT_LE(difference, relative * weight) << "row " << row << " channel " << i;
      used = std::max(used, difference / (relative * weight));
    }
  }
  RecordProperty("share_of_bound", std::to_string(used));
  EXPECT_GT(used, 1e-3);  // else the bound is no bound
}

INSTANTIATE_TEST_SUITE_P(Paths, MlaExpandedTest, ::testing::ValuesIn(test::kAllIsas),
                         test::IsaTestName);

}  // namespace
}  // namespace megalith::kernels
