#include "base/read_probe.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(ReadProbe, GivesOneRateForEveryPassOfEveryMethod) {
  for (const int threads : {1, 3}) {
    ReadProbeOptions options;
    options.num_threads = threads;
    options.total_bytes = std::size_t{1} << 20;
    const auto probe = ReadProbe::Start(options);
    ASSERT_TRUE(probe) << probe.error().message;
    EXPECT_GE((*probe)->total_bytes(), options.total_bytes / 3 * 3);
    for (const int streams : {1, 2, 4, 8}) {
      for (const std::int64_t prefetch : {0, 4096}) {
        const auto rates = (*probe)->Read({streams, prefetch}, 2);
        ASSERT_TRUE(rates) << rates.error().message;
        ASSERT_EQ(rates->size(), 2u);
        for (const double rate : *rates) EXPECT_GT(rate, 0);
      }
    }
    const auto pages = (*probe)->Pages();
    ASSERT_TRUE(pages) << pages.error().message;
    EXPECT_GE(pages->resident_bytes, (*probe)->total_bytes());
  }
}

TEST(ReadProbe, OptionsThatDoNotFitAreRefused) {
  ReadProbeOptions options;
  options.num_threads = 0;
  EXPECT_EQ(ReadProbe::Start(options).error().code, ErrorCode::kUsage);
  options.num_threads = 2;
  options.cpus = {0};
  EXPECT_EQ(ReadProbe::Start(options).error().code, ErrorCode::kUsage);
  options.num_threads = 1;
  options.cpus = {1 << 19};
  options.total_bytes = 1;
  EXPECT_EQ(ReadProbe::Start(options).error().code, ErrorCode::kUsage);
  options.cpus.clear();
  const auto probe = ReadProbe::Start(options);
  ASSERT_TRUE(probe) << probe.error().message;
  EXPECT_EQ((*probe)->Read({3, 0}, 1).error().code, ErrorCode::kUsage);
  EXPECT_EQ((*probe)->Read({4, 0}, 0).error().code, ErrorCode::kUsage);
}

}  // namespace
}  // namespace megalith
