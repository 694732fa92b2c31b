// Golden data: logits an independent implementation computed. Limits from the golden set's README.

#include "exec/testing/golden.h"

#include <gtest/gtest.h>

#include "exec/testing/executors.h"

namespace megalith::exec::testing {
namespace {

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  std::string Directory() const {
    return std::string(MEGALITH_TEST_DATA) + "/golden/" + GetParam();
  }
};

/// Feeds every case of the set and continues it greedily; `check` compares the logits.
template <typename Check>
void RunCases(const ExecutorSpec& spec, Check check) {
  const auto cases = LoadGoldenCases(spec.directory);
  ASSERT_TRUE(cases.has_value()) << cases.error().message;
  auto executor = MakeExecutor(spec);
  ASSERT_TRUE(executor.has_value()) << executor.error().message;
  for (const GoldenCase& golden : *cases) {
    const auto want = LoadRows(golden.logits_path);
    ASSERT_TRUE(want.has_value()) << want.error().message;
    const auto have = Feed(**executor, 0, golden.Tokens(), 64);
    ASSERT_TRUE(have.has_value()) << have.error().message;
    check(golden, Compare(*want, *have));
    const auto generated = Greedy(**executor, 1, golden.prompt, golden.generated.size(), 64);
    ASSERT_TRUE(generated.has_value()) << generated.error().message;
    EXPECT_EQ(*generated, golden.generated) << golden.tag << " " << Describe(spec);
  }
}

TEST_P(Golden, Float32LogitsMatchInEngineAndInterpreter) {
  for (const bool reference : {false, true}) {
    ExecutorSpec spec;
    spec.directory = Directory();
    spec.reference = reference;
    spec.activation_dtype = DType::kF32;
    spec.num_workers = 2;
    spec.row_buckets = {64};
    RunCases(spec, [&spec](const GoldenCase& golden, const Distance& distance) {
      EXPECT_LE(distance.max_abs, 1e-3) << golden.tag << " " << Describe(spec);
    });
  }
}

TEST_P(Golden, Bf16LogitsAreAsCloseAsTheReleasedCode) {
  for (const kernels::Isa isa : kernels::SupportedIsas()) {
    ExecutorSpec spec;
    spec.directory = Directory();
    spec.isa = isa;
    spec.num_workers = 2;
    spec.row_buckets = {64};
    RunCases(spec, [&spec](const GoldenCase& golden, const Distance& distance) {
      EXPECT_LE(distance.relative_l2, 3 * golden.bf16_relative_l2)
          << golden.tag << " " << Describe(spec);
      EXPECT_LE(distance.mean_abs, 3 * golden.bf16_mean_abs) << golden.tag << " " << Describe(spec);
    });
  }
}

/// The interpreter in fp32, looked into layer by layer.
class GoldenTrace : public Golden {
 protected:
  void RunCase(const GoldenCase& golden, std::vector<std::string> buffers) {
    ExecutorSpec spec;
    spec.directory = Directory();
    spec.reference = true;
    spec.activation_dtype = DType::kF32;
    spec.row_buckets = {64};
    spec.observer = trace_.Observer(std::move(buffers));
    auto executor = MakeExecutor(spec);
    ASSERT_TRUE(executor.has_value()) << executor.error().message;
    const std::vector<std::int32_t> tokens = golden.Tokens();
    ASSERT_LE(tokens.size(), 64U);
    trace_.set_rows(static_cast<std::int64_t>(tokens.size()));
    const auto logits = Feed(**executor, 0, tokens, 64);
    ASSERT_TRUE(logits.has_value()) << logits.error().message;
  }

  LayerTrace trace_;
};

TEST_P(GoldenTrace, ResidualStreamLeavingEveryLayerMatches) {
  const auto cases = LoadGoldenCases(Directory());
  ASSERT_TRUE(cases.has_value()) << cases.error().message;
  const GoldenCase& golden = cases->at(1);
  ASSERT_FALSE(golden.layer_out_path.empty()) << golden.tag;
  const auto want = LoadRows(golden.layer_out_path);
  ASSERT_TRUE(want.has_value()) << want.error().message;
  RunCase(golden, {"prefix"});
  const std::size_t rows = golden.prompt.size();
  for (std::size_t layer = 0; layer * rows < want->size(); ++layer) {
    const auto begin = want->begin() + static_cast<std::ptrdiff_t>(layer * rows);
    const LogitRows& have = trace_.Rows(static_cast<std::int32_t>(layer), "prefix");
    ASSERT_GE(have.size(), rows) << "layer " << layer;
    const Distance distance =
        Compare({begin, begin + static_cast<std::ptrdiff_t>(rows)},
                {have.begin(), have.begin() + static_cast<std::ptrdiff_t>(rows)});
    EXPECT_LE(distance.max_abs, 1e-3) << "layer " << layer;
  }
}

TEST_P(GoldenTrace, RouterChoosesTheSameExpertsWithTheSameWeights) {
  constexpr float kNoise = 1e-4f;
  const auto cases = LoadGoldenCases(Directory());
  ASSERT_TRUE(cases.has_value()) << cases.error().message;
  const GoldenCase& golden = cases->at(1);
  const auto want_ids = LoadIdRows(golden.router_ids_path);
  const auto want_weights = LoadRows(golden.router_weights_path);
  const auto gaps = LoadRows(golden.router_gap_path);  // [MoE layers][rows]
  ASSERT_TRUE(want_ids && want_weights && gaps);
  RunCase(golden, {"router_ids", "router_weights"});
  const std::size_t rows = golden.Tokens().size();
  std::size_t num_checked = 0;
  for (std::size_t moe_layer = 0; moe_layer < gaps->size(); ++moe_layer) {
    const auto layer = static_cast<std::int32_t>(moe_layer) + 1;  // layer 0 is dense
    const LogitRows& ids = trace_.Rows(layer, "router_ids");
    const LogitRows& weights = trace_.Rows(layer, "router_weights");
    ASSERT_EQ(ids.size(), rows);
    for (std::size_t row = 0; row < rows; ++row) {
      if ((*gaps)[moe_layer][row] < kNoise) continue;
      const std::size_t i = moe_layer * rows + row;
      const std::vector<float> expected((*want_ids)[i].begin(), (*want_ids)[i].end());
      EXPECT_EQ(ids[row], expected) << "layer " << layer << ", row " << row;
      for (std::size_t k = 0; k < weights[row].size(); ++k) {
        EXPECT_NEAR(weights[row][k], (*want_weights)[i][k], kNoise);
      }
      ++num_checked;
    }
  }
  EXPECT_GE(num_checked, rows - 2);
}

std::string TestName(const ::testing::TestParamInfo<const char*>& test) {
  std::string name = test.param;
  name[2] = '_';
  return name;
}
const auto kModels = ::testing::Values("k3-unit", "k3-tiny", "k3-odd", "k3-realdims");
INSTANTIATE_TEST_SUITE_P(, Golden, kModels, TestName);
INSTANTIATE_TEST_SUITE_P(, GoldenTrace, kModels, TestName);

}  // namespace
}  // namespace megalith::exec::testing
