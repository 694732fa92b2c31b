#include "base/bandwidth.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(MeasureReadBandwidth, SmallBufferGivesPlausibleNumbers) {
  for (const int threads : {1, 3}) {
    BandwidthOptions options;
    options.num_threads = threads;
    options.total_bytes = std::size_t{1} << 20;
    options.num_passes = 2;
    const auto result = MeasureReadBandwidth(options);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_GT(result->best_gb_per_s, 0);
    EXPECT_GE(result->best_gb_per_s, result->median_gb_per_s);
    EXPECT_GE(result->total_bytes, options.total_bytes / 3 * 3);
    EXPECT_TRUE(result->num_streams == 1 || result->num_streams == 4 || result->num_streams == 8);
  }
}

TEST(MeasureReadBandwidth, OptionsThatDoNotFitAreRefused) {
  BandwidthOptions options;
  options.num_threads = 0;
  EXPECT_EQ(MeasureReadBandwidth(options).error().code, ErrorCode::kUsage);
  options.num_threads = 2;
  options.cpus = {0};
  EXPECT_EQ(MeasureReadBandwidth(options).error().code, ErrorCode::kUsage);
  options.num_threads = 1;
  options.cpus = {1 << 19};
  options.total_bytes = 1;
  EXPECT_EQ(MeasureReadBandwidth(options).error().code, ErrorCode::kUsage);
}

TEST(MeasureReadBandwidth, CancelStopsIt) {
  CancelFlag cancel;
  cancel.Cancel();
  BandwidthOptions options;
  options.num_threads = 2;
  options.total_bytes = 1 << 20;
  options.cancel = &cancel;
  EXPECT_EQ(MeasureReadBandwidth(options).error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace megalith
