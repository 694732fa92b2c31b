#include "weights/checkpoint.h"

#include <gtest/gtest.h>

namespace megalith::weights {
namespace {

class GoldenCheckpoint : public testing::TestWithParam<std::string> {};

TEST_P(GoldenCheckpoint, OpensWithNothingUnknown) {
  const auto checkpoint = Checkpoint::Open(GetParam());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->census().num_unknown, 0u);
  EXPECT_EQ(checkpoint->census().warnings, std::vector<std::string>());
}
const std::string kData = MEGALITH_TEST_DATA;
INSTANTIATE_TEST_SUITE_P(All, GoldenCheckpoint,
                         testing::Values(kData + "/golden/k3-odd", kData + "/golden/k3-realdims",
                                         kData + "/golden/k3-tiny", kData + "/golden/k3-unit",
                                         MEGALITH_SOURCE_DIR "/models/k3-nano"));
}  // namespace
}  // namespace megalith::weights
