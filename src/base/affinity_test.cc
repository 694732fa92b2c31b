#include "base/affinity.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <thread>

namespace megalith {
namespace {

TEST(PinThisThread, EachAllowedCpuRunsThere) {
  const auto allowed = AllowedCpus();
  ASSERT_TRUE(allowed) << allowed.error().message;
  ASSERT_FALSE(allowed->empty());
  EXPECT_TRUE(std::is_sorted(allowed->begin(), allowed->end()));
  std::thread([&] {
    for (const int cpu : *allowed) {
      const Status pinned = PinThisThread(cpu);
      ASSERT_TRUE(pinned) << pinned.error().message;
      EXPECT_EQ(sched_getcpu(), cpu);
      EXPECT_EQ(AllowedCpus().value(), std::vector<int>{cpu});
    }
    ASSERT_TRUE(SetThisThreadCpus(*allowed));
    EXPECT_EQ(AllowedCpus().value(), *allowed);
  }).join();
  EXPECT_EQ(AllowedCpus().value(), *allowed) << "pinning one thread moved another";
}

TEST(PinThisThread, CpuThatDoesNotExistIsRefused) {
  for (const int cpu : {-1, 1 << 19, 1 << 30}) {
    const Status pinned = PinThisThread(cpu);
    ASSERT_FALSE(pinned);
    EXPECT_EQ(pinned.error().code, ErrorCode::kUsage);
    EXPECT_NE(pinned.error().message.find(std::to_string(cpu)), std::string::npos);
  }
}

}  // namespace
}  // namespace megalith
