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

TEST_P(Golden, Float32LogitsMatch) {
  ExecutorSpec spec;
  spec.directory = Directory();
  spec.activation_dtype = DType::kF32;
  spec.num_workers = 2;
  spec.row_buckets = {64};
  const auto cases = LoadGoldenCases(spec.directory);
  ASSERT_TRUE(cases.has_value()) << cases.error().message;
  auto executor = MakeExecutor(spec);
  ASSERT_TRUE(executor.has_value()) << executor.error().message;
  for (const GoldenCase& golden : *cases) {
    const auto want = LoadRows(golden.logits_path);
    ASSERT_TRUE(want.has_value()) << want.error().message;
    const auto have = Feed(**executor, 0, golden.Tokens(), 64);
    ASSERT_TRUE(have.has_value()) << have.error().message;
    const Distance distance = Compare(*want, *have);
    EXPECT_LE(distance.max_abs, 1e-3) << golden.tag;
    const auto generated = Greedy(**executor, 1, golden.prompt, golden.generated.size(), 64);
    ASSERT_TRUE(generated.has_value()) << generated.error().message;
    EXPECT_EQ(*generated, golden.generated) << golden.tag;
  }
}

TEST_P(Golden, Bf16LogitsAreAsCloseAsTheReleasedCode) {
  for (const kernels::Isa isa : kernels::SupportedIsas()) {
    ExecutorSpec spec;
    spec.directory = Directory();
    spec.isa = isa;
    spec.num_workers = 2;
    spec.row_buckets = {64};
    const auto cases = LoadGoldenCases(spec.directory);
    ASSERT_TRUE(cases.has_value()) << cases.error().message;
    auto executor = MakeExecutor(spec);
    ASSERT_TRUE(executor.has_value()) << executor.error().message;
    for (const GoldenCase& golden : *cases) {
      const auto want = LoadRows(golden.logits_path);
      ASSERT_TRUE(want.has_value()) << want.error().message;
      const auto have = Feed(**executor, 0, golden.Tokens(), 64);
      ASSERT_TRUE(have.has_value()) << have.error().message;
      const Distance distance = Compare(*want, *have);
      EXPECT_LE(distance.relative_l2, 3 * golden.bf16_relative_l2)
          << golden.tag << " " << kernels::IsaName(isa);
      EXPECT_LE(distance.mean_abs, 3 * golden.bf16_mean_abs)
          << golden.tag << " " << kernels::IsaName(isa);
      const auto generated = Greedy(**executor, 1, golden.prompt, golden.generated.size(), 64);
      ASSERT_TRUE(generated.has_value()) << generated.error().message;
      EXPECT_EQ(*generated, golden.generated) << golden.tag << " " << kernels::IsaName(isa);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Golden, ::testing::Values("k3-unit", "k3-tiny", "k3-odd", "k3-realdims"),
                         [](const auto& test) {
                           std::string name = test.param;
                           name[2] = '_';
                           return name;
                         });

}  // namespace
}  // namespace megalith::exec::testing
