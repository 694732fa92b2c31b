// Ranks as forked processes: how they meet, exchange, and end when one of them does.
#include "fabric/shm.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <set>
#include <thread>

#include "base/clock.h"
#include "fabric/agreement.h"
#include "fabric/testing/exercises.h"

namespace megalith::fabric {
namespace {

/// What a rank's process came to.
struct RankEnd {
  bool ended = false;  ///< by itself or killed, before this test lost patience
  int wait_status = 0;
  std::string text;  ///< "fine" or the error's message
};

/// Processes that are forked and talked to; none survives the object.
class Ranks {
 public:
  using Body = std::function<Status(std::uint32_t rank)>;

  Ranks(std::uint32_t num_ranks, const Body& body) {
    for (std::uint32_t rank = 0; rank < num_ranks; ++rank) Add(rank, body);
  }
  ~Ranks() {
    for (const Process& process : processes_) {
      if (process.pid > 0) {
        ::kill(process.pid, SIGKILL);
        ::waitpid(process.pid, nullptr, 0);
      }
      ::close(process.pipe);
    }
  }

  void Add(std::uint32_t rank, const Body& body) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      const Status status = body(rank);
      const std::string text = status ? "fine" : status.error().message;
      if (::write(ends[1], text.data(), text.size()) < 0) ::_exit(3);
      // What the sanitizers have to say at the end is for processes that end in order.
      ::_exit(status ? 0 : 1);
    }
    ::close(ends[1]);
    processes_.push_back({pid, ends[0]});
  }

  pid_t pid(std::uint32_t rank) const { return processes_[rank].pid; }

  /// Waits for all, at most 40 s in total; whoever has not ended then is killed.
  std::vector<RankEnd> Join() {
    std::vector<RankEnd> ends(processes_.size());
    const std::int64_t deadline_ns = NowNs() + 40'000'000'000;
    for (std::size_t i = 0; i < processes_.size(); ++i) {
      Process& process = processes_[i];
      while (!ends[i].ended && NowNs() < deadline_ns) {
        ends[i].ended = ::waitpid(process.pid, &ends[i].wait_status, WNOHANG) == process.pid;
        if (!ends[i].ended) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      if (!ends[i].ended) {
        ::kill(process.pid, SIGKILL);
        ::waitpid(process.pid, nullptr, 0);
      }
      process.pid = -1;
      char text[2000];
      for (ssize_t got = 0; (got = ::read(process.pipe, text, sizeof text)) > 0;) {
        ends[i].text.append(text, static_cast<std::size_t>(got));
      }
    }
    return ends;
  }

 private:
  struct Process {
    pid_t pid;
    int pipe;
  };
  std::vector<Process> processes_;
};

std::string NewJobId() {
  static int count = 0;
  return "test-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

/// Joins a job and does something with it.
Ranks::Body Joined(const std::string& job_id, std::uint32_t num_ranks,
                   const std::function<Status(Fabric&)>& body, const FabricOptions& options = {}) {
  return [=](std::uint32_t rank) -> Status {
    MEGALITH_ASSIGN_OR_RETURN(const auto fabric, JoinShmJob(job_id, rank, num_ranks, options));
    return body(*fabric);
  };
}

std::vector<RankEnd> RunRanks(std::uint32_t num_ranks, const std::function<Status(Fabric&)>& body,
                              const FabricOptions& options = {}) {
  return Ranks(num_ranks, Joined(NewJobId(), num_ranks, body, options)).Join();
}

void ExpectFine(const std::vector<RankEnd>& ends) {
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    EXPECT_TRUE(ends[rank].ended) << rank;
    EXPECT_EQ(ends[rank].wait_status, 0) << rank;
    EXPECT_EQ(ends[rank].text, "fine") << rank;
  }
}

std::set<std::string> SharedMemoryNames() {
  std::set<std::string> names;
  if (DIR* directory = ::opendir("/dev/shm")) {
    while (const dirent* entry = ::readdir(directory)) names.insert(entry->d_name);
    ::closedir(directory);
  }
  return names;
}

class ShmRanks : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(All, ShmRanks, testing::Values(1, 2, 3, 8, 32),
                         testing::PrintToStringParamName());

TEST_P(ShmRanks, ExchangesDeliverWhatWasPut) {
  ExchangeExercise exercise;
  exercise.num_exchanges = GetParam() == 32 ? 40 : 300;
  exercise.num_workers = GetParam() < 8 ? 2 : 1;
  ExpectFine(RunRanks(GetParam(), [&](Fabric& f) { return ExerciseExchanges(f, exercise); }));
}

TEST_P(ShmRanks, ExchangesWithDelaysDeliverWhatWasPut) {
  ExchangeExercise exercise;
  exercise.num_exchanges = GetParam() == 32 ? 20 : 100;
  exercise.max_delay_us = 300;
  exercise.seed = 2;
  ExpectFine(RunRanks(GetParam(), [&](Fabric& f) { return ExerciseExchanges(f, exercise); }));
}

TEST_P(ShmRanks, CollectivesDeliverWhatWasGiven) {
  const int count = GetParam() == 32 ? 60 : 200;
  ExpectFine(
      RunRanks(GetParam(), [&](Fabric& f) { return ExerciseCollectives(f, count, 100, 5); }));
}

TEST(Shm, TenThousandExchanges) {
  ExchangeExercise exercise;
  exercise.num_exchanges = 10'000;
  exercise.max_bytes = 512;
  ExpectFine(RunRanks(4, [&](Fabric& f) { return ExerciseExchanges(f, exercise); }));
}

TEST(Shm, RanksMayComeInAnyOrder) {
  const std::string job = NewJobId();
  const auto body = [](Fabric& fabric) { return fabric.Barrier(); };
  Ranks ranks(0, nullptr);
  for (const std::uint32_t rank : {2U, 1U, 0U}) {
    ranks.Add(rank, Joined(job, 3, body));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  ExpectFine(ranks.Join());
}

TEST(Shm, TwoJobsOfOneUserDoNotMeet) {
  const auto body = [](Fabric& f) { return ExerciseCollectives(f, 50, 50, f.num_ranks()); };
  Ranks first(2, Joined(NewJobId(), 2, body));
  Ranks second(3, Joined(NewJobId(), 3, body));
  ExpectFine(first.Join());
  ExpectFine(second.Join());
}

/// How a rank is made to fail, and what the others then say of it.
struct Fault {
  int signal;
  const char* message;
};

/// Each of four ranks in turn gets the signal in the middle of exchanges.
void EndRankInTurn(const Fault& fault) {
  const std::set<std::string> names_before = SharedMemoryNames();
  for (std::uint32_t victim = 0; victim < 4; ++victim) {
    Ranks ranks(4, Joined(NewJobId(), 4, ExchangeUntilFailure));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ASSERT_EQ(::kill(ranks.pid(victim), fault.signal), 0);
    const std::string name = "rank " + std::to_string(victim) + " (process " +
                             std::to_string(ranks.pid(victim)) + ") " + fault.message;
    const std::vector<RankEnd> ends = ranks.Join();
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(ends[rank].ended) << rank;
      if (rank == victim) {
        EXPECT_TRUE(WIFSIGNALED(ends[rank].wait_status));
        continue;
      }
      EXPECT_EQ(ends[rank].text.substr(0, name.size()), name);
      EXPECT_NE(ends[rank].text.find("last seen: step "), std::string::npos) << ends[rank].text;
      EXPECT_TRUE(WIFEXITED(ends[rank].wait_status));
    }
  }
  EXPECT_EQ(SharedMemoryNames(), names_before);
}

TEST(Shm, AKilledRankEndsTheJobAndIsNamed) { EndRankInTurn({SIGKILL, "has died"}); }

TEST(Shm, AStoppedRankEndsTheJobAndIsNamed) { EndRankInTurn({SIGSTOP, "has not run for 3000 ms"}); }

TEST(Shm, AKilledRankAmong32EndsTheJob) {
  Ranks ranks(32, Joined(NewJobId(), 32, ExchangeUntilFailure));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ASSERT_EQ(::kill(ranks.pid(17), SIGKILL), 0);
  const std::vector<RankEnd> ends = ranks.Join();
  for (std::uint32_t rank = 0; rank < 32; ++rank) {
    EXPECT_TRUE(ends[rank].ended) << rank;
    if (rank != 17) {
      EXPECT_EQ(ends[rank].text.substr(0, 17), "rank 17 (process ") << ends[rank].text;
    }
  }
}

TEST(Shm, ARankKilledWhileOthersWaitForABroadcastEndsTheJob) {
  Ranks ranks(3, Joined(NewJobId(), 3, [](Fabric& fabric) -> Status {
                Bytes bytes;
                // Rank 0 has nothing to say for now.
                while (fabric.rank() == 0 && !fabric.failed()) ::usleep(1000);
                return fabric.Broadcast(&bytes);
              }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ASSERT_EQ(::kill(ranks.pid(1), SIGKILL), 0);
  const std::vector<RankEnd> ends = ranks.Join();
  for (const std::uint32_t rank : {0U, 2U}) {
    EXPECT_TRUE(ends[rank].ended);
    EXPECT_NE(ends[rank].text.find("rank 1 (process "), std::string::npos) << ends[rank].text;
  }
}

TEST(Shm, AbortReachesAllWithItsReason) {
  const auto ends = RunRanks(4, [](Fabric& fabric) -> Status {
    if (fabric.rank() == 3) {
      MEGALITH_RETURN_IF_ERROR(fabric.Barrier());
      fabric.Abort("disk on fire");
      return fabric.status();
    }
    MEGALITH_RETURN_IF_ERROR(fabric.Barrier());
    return ExchangeUntilFailure(fabric);
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.text, "rank 3 gave up: disk on fire");
}

TEST(Shm, ARankThatLeavesEarlyIsNamedByThoseWhoWaitForIt) {
  const auto ends = RunRanks(
      3, [](Fabric& fabric) -> Status { return fabric.rank() == 1 ? Status() : fabric.Barrier(); });
  EXPECT_EQ(ends[1].text, "fine");
  EXPECT_EQ(ends[0].text.substr(0, 23), "rank 1 has left the job") << ends[0].text;
  EXPECT_EQ(ends[0].text, ends[2].text);
}

TEST(Shm, LeavingInOrderIsNoFailure) {
  ExpectFine(RunRanks(4, [](Fabric& fabric) -> Status {
    MEGALITH_RETURN_IF_ERROR(fabric.Barrier());
    // Long enough for the monitors to see those that have ended.
    ::usleep(fabric.rank() == 0 ? 500'000 : 0);
    return fabric.status();
  }));
}

TEST(Shm, ADifferenceInTheAgreementIsEverybodysError) {
  const auto ends = RunRanks(3, [](Fabric& fabric) -> Status {
    return CheckAgreement(fabric, {{"build", fabric.rank() == 2 ? "old" : "new"}});
  });
  for (const RankEnd& end : ends) {
    EXPECT_EQ(end.text, "rank 2: build: 'new' expected as on rank 0, 'old' found");
  }
}

TEST(ShmStart, MissingRanksAreNamed) {
  FabricOptions options;
  options.start_timeout_ms = 300;
  const std::string job = NewJobId();
  const auto body = [](Fabric&) { return Status(); };
  Ranks ranks(3, Joined(job, 5, body, options));
  for (const RankEnd& end : ranks.Join()) {
    EXPECT_NE(end.text.find("not all of 5 ranks of this host have come within 300 ms; missing: 3, "
                            "4"),
              std::string::npos)
        << end.text;
  }
}

TEST(ShmStart, WithoutRank0TheOthersGiveUp) {
  FabricOptions options;
  options.start_timeout_ms = 100;
  const std::string job = NewJobId();
  Ranks ranks(0, nullptr);
  ranks.Add(1, Joined(
                   job, 2, [](Fabric&) { return Status(); }, options));
  EXPECT_EQ(ranks.Join()[0].text, "rank 1: rank 0 of job '" + job + "' has not come within 100 ms");
}

TEST(ShmStart, ARankKilledDuringTheStartEndsIt) {
  for (const std::uint32_t victim : {0U, 1U}) {
    Ranks ranks(2, Joined(NewJobId(), 3, [](Fabric&) { return Status(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ASSERT_EQ(::kill(ranks.pid(victim), SIGKILL), 0);
    const RankEnd other = ranks.Join()[1 - victim];
    EXPECT_TRUE(other.ended);
    EXPECT_NE(
        other.text.find("rank " + std::to_string(victim) + " has gone during the start of the job"),
        std::string::npos)
        << other.text;
  }
}

TEST(ShmStart, WrongNumbersAreRefused) {
  FabricOptions options;
  options.start_timeout_ms = 500;
  const std::string job = NewJobId();
  const auto body = [](Fabric&) { return Status(); };
  Ranks ranks(0, nullptr);
  ranks.Add(0, Joined(job, 2, body, options));
  ranks.Add(2, Joined(job, 3, body, options));
  const std::vector<RankEnd> ends = ranks.Join();
  EXPECT_EQ(ends[1].text, "rank 2: rank 2 of 3 wanted to join a job of 2 ranks");
  EXPECT_NE(ends[0].text.find("missing: 1"), std::string::npos) << ends[0].text;
  EXPECT_FALSE(JoinShmJob("with space", 0, 1));
  EXPECT_FALSE(JoinShmJob("", 0, 1));
  EXPECT_FALSE(JoinShmJob(job, 2, 2));
  EXPECT_FALSE(JoinShmJob(job, 0, 0));
}

TEST(ShmStart, TwoProcessesForOneRankAreRefused) {
  FabricOptions options;
  options.start_timeout_ms = 500;
  const std::string job = NewJobId();
  const auto body = [](Fabric&) { return Status(); };
  Ranks ranks(0, nullptr);
  for (const std::uint32_t rank : {0U, 1U, 1U}) ranks.Add(rank, Joined(job, 3, body, options));
  int num_doubles = 0;
  for (const RankEnd& end : ranks.Join()) {
    EXPECT_TRUE(end.ended);
    EXPECT_NE(end.text, "fine");
    if (end.text == "rank 1: there are two processes for rank 1") ++num_doubles;
  }
  EXPECT_EQ(num_doubles, 1);
}

TEST(ShmStart, TheJobIdOfARunningStartIsTaken) {
  FabricOptions options;
  options.start_timeout_ms = 500;
  const std::string job = NewJobId();
  const auto body = [](Fabric&) { return Status(); };
  Ranks ranks(0, nullptr);
  ranks.Add(0, Joined(job, 2, body, options));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ranks.Add(0, Joined(job, 2, body, options));
  EXPECT_EQ(ranks.Join()[1].text, "job id '" + job + "': another job of this user has it");
}

}  // namespace
}  // namespace megalith::fabric
