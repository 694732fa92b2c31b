// The small parts of base that need a few cases each.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/cancel.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/cpu_info.h"
#include "base/kernel_text.h"
#include "base/log.h"
#include "base/result.h"
#include "base/spin.h"
#include "base/units.h"

namespace megalith {
namespace {

TEST(ErrorCodeName, EveryCodeHasItsOwn) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    const std::string_view name = ErrorCodeName(static_cast<ErrorCode>(code));
    EXPECT_NE(name, "unknown") << code;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
}

TEST(Check, FailureNamesConditionAndPlace) {
  const auto fail = [](int value) { MEGALITH_CHECK(value == 2); };
  fail(2);
  EXPECT_DEATH(fail(3), "base_test.cc:.*value == 2");
}

TEST(FormatBytes, ThreeDigitsAndTheRightUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1000), "0.977 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(std::uint64_t{32} << 20), "32 MiB");
  EXPECT_EQ(FormatBytes(std::uint64_t{1415} << 30), "1.38 TiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16 EiB");
}

TEST(ParseNumber, ReadsWhatStandsInFront) {
  EXPECT_EQ(ParseNumber("  12 kB"), 12U);
  EXPECT_EQ(ParseNumber("18446744073709551615\n"), UINT64_MAX);
  for (const char* text : {"", " ", "-1", "max", "18446744073709551616"}) {
    EXPECT_FALSE(ParseNumber(text)) << text;
  }
}

TEST(FindNumber, OnlyWholeKeysAtLineStartsCount) {
  const std::string_view text = "MemFree: 1 kB\nxMemTotal: 2\nMemTotal:       3 kB\nlast 4";
  EXPECT_EQ(FindNumber(text, "MemTotal:"), 3U);
  EXPECT_EQ(FindNumber(text, "last"), 4U);
  EXPECT_FALSE(FindNumber(text, "las"));
  EXPECT_FALSE(FindNumber(text, "Mem"));
  EXPECT_FALSE(FindNumber("", "last"));
}

TEST(ReadKernelText, FileWithoutSizeIsReadWhole) {
  const auto status = ReadKernelText("/proc/self/status");
  ASSERT_TRUE(status);
  EXPECT_NE(status->find("Pid:"), std::string::npos);
  EXPECT_FALSE(ReadKernelText("/proc/self/no_such_file"));
  EXPECT_FALSE(ReadKernelText("/proc/self"));
}

TEST(Log, WithoutASinkIsDropped) {
  SetLogSink({});
  EXPECT_FALSE(LogEnabled());
  Log(LogLevel::kError, "nobody hears this");
}

TEST(Log, MessagesReachTheSinkOneAtATime) {
  std::vector<std::string> messages;  // unguarded: the sink is called by one thread at a time
  SetLogSink([&](LogLevel level, std::string_view message) {
    messages.push_back(std::string(LogLevelName(level)) + " " + std::string(message));
  });
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      for (int i = 0; i < 100; ++i) LogFormat(LogLevel::kInfo, "{} {}", thread, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  SetLogSink({});
  Log(LogLevel::kError, "after");
  EXPECT_EQ(messages.size(), 400U);
  EXPECT_EQ(std::set<std::string>(messages.begin(), messages.end()).size(), 400U);
  EXPECT_EQ(messages[0].substr(0, 5), "info ");
}

CancelFlag signal_flag;

TEST(CancelFlag, SetFromASignalHandlerIsSeen) {
  EXPECT_TRUE(CheckCancelled(nullptr, "work"));
  EXPECT_TRUE(CheckCancelled(&signal_flag, "work"));
  const auto old = std::signal(SIGUSR1, [](int) { signal_flag.Cancel(); });
  ASSERT_EQ(std::raise(SIGUSR1), 0);
  std::signal(SIGUSR1, old);
  const Status status = CheckCancelled(&signal_flag, "work");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_NE(status.error().message.find("work"), std::string::npos);
  signal_flag.Reset();
  EXPECT_FALSE(signal_flag.IsCancelled());
}

TEST(SpinThenYield, YieldsAfterItsSpinsAndStartsAgainAfterReset) {
  SpinThenYield wait(3);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(wait.Once());
    EXPECT_TRUE(wait.Once());
    EXPECT_TRUE(wait.Once());
    wait.Reset();
  }
  EXPECT_TRUE(SpinThenYield(0).Once());
}

TEST(SpinThenYield, MoreThreadsThanCoresAllMakeProgress) {
  // A token goes round; each thread waits for its turn.
  const int num_threads = 4 * static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  constexpr int kRounds = 20;
  std::atomic<int> turn{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        SpinThenYield wait;
        while (turn.load(std::memory_order_acquire) != round * num_threads + i) wait.Once();
        turn.fetch_add(1, std::memory_order_release);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(turn.load(), kRounds * num_threads);
}

TEST(Clock, DoesNotRunBackwards) {
  std::int64_t last = NowNs();
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t now = NowNs();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_GE(SecondsSince(last), 0);
}

TEST(DetectCpu, FeaturesAgreeWithTheCompilersOwnDetection) {
  const CpuInfo cpu = DetectCpu();
  EXPECT_FALSE(cpu.Usable("no_such_feature"));
#if defined(__x86_64__)
  EXPECT_FALSE(cpu.vendor.empty());
  __builtin_cpu_init();
  EXPECT_EQ(cpu.Usable("sse4_2"), __builtin_cpu_supports("sse4.2") != 0);
  EXPECT_EQ(cpu.Usable("fma"), __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(cpu.Usable("avx2"), __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(cpu.Usable("avx512f"), __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ(cpu.Usable("avx512bw"), __builtin_cpu_supports("avx512bw") != 0);
  EXPECT_EQ(cpu.Usable("avx512_vnni"), __builtin_cpu_supports("avx512vnni") != 0);
  for (const CpuFeature& feature : cpu.features) {
    EXPECT_TRUE(feature.present || !feature.usable) << feature.name;
  }
#endif
}

}  // namespace
}  // namespace megalith
