// Whole models on real checkpoints: every executor gives the same bits.

#include <gtest/gtest.h>

#include "exec/testing/executors.h"
#include "exec/testing/golden.h"

namespace megalith::exec::testing {
namespace {

const std::string kGolden = std::string(MEGALITH_TEST_DATA) + "/golden/";

TEST(ReferenceExecutor, Float32LogitsOfGoldenPromptMatch) {
  for (const char* model : {"k3-unit", "k3-tiny", "k3-odd", "k3-realdims"}) {
    ExecutorSpec spec;
    spec.directory = kGolden + model;
    spec.reference = true;
    spec.activation_dtype = DType::kF32;
    spec.num_workers = 2;
    const auto cases = LoadGoldenCases(spec.directory);
    ASSERT_TRUE(cases.has_value()) << cases.error().message;
    auto executor = MakeExecutor(spec);
    ASSERT_TRUE(executor.has_value()) << executor.error().message;
    for (const GoldenCase& golden : *cases) {
      if (golden.prompt.size() > 7) continue;
      const auto want = LoadRows(golden.logits_path);
      ASSERT_TRUE(want.has_value()) << want.error().message;
      const auto have = Feed(**executor, 0, golden.Tokens(), 8);
      ASSERT_TRUE(have.has_value()) << have.error().message;
      const Distance distance = Compare(*want, *have);
      std::printf("%s %s max %g mean %g l2 %g\n", model, golden.tag.c_str(), distance.max_abs, distance.mean_abs, distance.relative_l2);
      EXPECT_LE(distance.max_abs, 1e-3) << model << " " << golden.tag;
    }
  }
}

}  // namespace
}  // namespace megalith::exec::testing
