// Ranks as forked processes: how they meet, exchange, and end when one of them does.
#include "fabric/shm.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <thread>

#include "base/clock.h"
#include "fabric/agreement.h"
#include "fabric/testing/exercises.h"

namespace megalith::fabric {
namespace {

/// How long a test waits for what must happen; never a measure of speed.
constexpr std::int64_t kPatienceNs = 120'000'000'000;

/// For jobs in which no time-out is to come: a busy machine may keep any rank from running.
FabricOptions Patient() {
  FabricOptions options;
  options.start_timeout_ms = 600'000;
  options.stall_timeout_ms = 0;
  return options;
}

bool WaitUntil(const std::function<bool()>& condition) {
  const std::int64_t deadline_ns = NowNs() + kPatienceNs;
  while (!condition()) {
    if (NowNs() >= deadline_ns) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// How many processes have come to a place: forked ones count in the memory of the test.
class Milestone {
 public:
  Milestone()
      : memory_(::mmap(nullptr, sizeof(Count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0)),
        count_(new (memory_) Count(0)) {}
  ~Milestone() { ::munmap(memory_, sizeof(Count)); }
  Milestone(const Milestone&) = delete;
  Milestone& operator=(const Milestone&) = delete;

  void Reach() { count_->fetch_add(1); }
  bool Await(int count) const {
    return WaitUntil([&] { return count_->load() >= count; });
  }

 private:
  using Count = std::atomic<int>;
  static_assert(Count::is_always_lock_free, "shared between processes");
  void* memory_;
  Count* count_;
};

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

  /// Waits for the first that ends; its place in the order of Add, or -1 if none does.
  int AwaitFirst() {
    int first = -1;
    WaitUntil([&] {
      for (std::size_t i = 0; i < processes_.size() && first < 0; ++i) {
        if (HasEnded(&processes_[i])) first = static_cast<int>(i);
      }
      return first >= 0;
    });
    return first;
  }

  /// Waits for all; whoever does not end is killed.
  std::vector<RankEnd> Join() {
    WaitUntil([&] {
      bool all = true;
      for (Process& process : processes_) all = HasEnded(&process) && all;
      return all;
    });
    std::vector<RankEnd> ends;
    for (Process& process : processes_) {
      if (!process.end.ended) {
        ::kill(process.pid, SIGKILL);
        ::waitpid(process.pid, nullptr, 0);
        process.pid = -1;
      }
      char text[2000];
      for (ssize_t got = 0; (got = ::read(process.pipe, text, sizeof text)) > 0;) {
        process.end.text.append(text, static_cast<std::size_t>(got));
      }
      ends.push_back(process.end);
    }
    return ends;
  }

 private:
  struct Process {
    pid_t pid;  ///< -1: nobody any more
    int pipe;
    RankEnd end{};
  };

  static bool HasEnded(Process* process) {
    if (process->pid > 0 &&
        ::waitpid(process->pid, &process->end.wait_status, WNOHANG) == process->pid) {
      process->pid = -1;
      process->end.ended = true;
    }
    return process->end.ended;
  }

  std::vector<Process> processes_;
};

std::string NewJobId() {
  static int count = 0;
  return "test-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

/// Joins a job and does something with it.
Ranks::Body Joined(const std::string& job_id, std::uint32_t num_ranks,
                   const std::function<Status(Fabric&)>& body,
                   const FabricOptions& options = Patient()) {
  return [=](std::uint32_t rank) -> Status {
    MEGALITH_ASSIGN_OR_RETURN(const auto fabric, JoinShmJob(job_id, rank, num_ranks, options));
    return body(*fabric);
  };
}

std::vector<RankEnd> RunRanks(std::uint32_t num_ranks, const std::function<Status(Fabric&)>& body,
                              const FabricOptions& options = Patient()) {
  return Ranks(num_ranks, Joined(NewJobId(), num_ranks, body, options)).Join();
}

void ExpectFine(const std::vector<RankEnd>& ends) {
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    EXPECT_TRUE(ends[rank].ended) << rank;
    EXPECT_EQ(ends[rank].wait_status, 0) << rank;
    EXPECT_EQ(ends[rank].text, "fine") << rank;
  }
}

/// Of this program: others come and go as they like.
std::set<std::string> SharedMemoryNames() {
  std::set<std::string> names;
  if (DIR* directory = ::opendir("/dev/shm")) {
    while (const dirent* entry = ::readdir(directory)) {
      const std::string name = entry->d_name;
      if (name.find("megalith") != std::string::npos) names.insert(name);
    }
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

/// A job of ranks that exchange until it fails.
struct Exchanging {
  Exchanging(std::uint32_t num_ranks, const FabricOptions& options)
      : ranks(num_ranks, Joined(
                             NewJobId(), num_ranks,
                             [this](Fabric& fabric) {
                               return ExchangeUntilFailure(fabric, [this] { middle.Reach(); });
                             },
                             options)) {
    EXPECT_TRUE(middle.Await(static_cast<int>(num_ranks)));
  }

  Milestone middle;
  Ranks ranks;
};

/// How a rank is made to fail, and what the others then say of it.
struct Fault {
  int signal;
  const char* message;
};

/// In each of four jobs another rank gets the signal in the middle of exchanges.
void EndRankInTurn(const Fault& fault, const FabricOptions& options) {
  const std::set<std::string> names_before = SharedMemoryNames();
  std::vector<std::unique_ptr<Exchanging>> jobs;
  std::vector<std::string> names;
  for (std::uint32_t victim = 0; victim < 4; ++victim) {
    jobs.push_back(std::make_unique<Exchanging>(4, options));
    const pid_t process = jobs.back()->ranks.pid(victim);
    ASSERT_EQ(::kill(process, fault.signal), 0);
    names.push_back("rank " + std::to_string(victim) + " (process " + std::to_string(process) +
                    ") " + fault.message);
  }
  for (std::uint32_t victim = 0; victim < 4; ++victim) {
    const std::vector<RankEnd> ends = jobs[victim]->ranks.Join();
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(ends[rank].ended) << rank;
      if (rank == victim) {
        EXPECT_TRUE(WIFSIGNALED(ends[rank].wait_status));
        continue;
      }
      EXPECT_EQ(ends[rank].text.substr(0, names[victim].size()), names[victim]);
      EXPECT_NE(ends[rank].text.find("last seen: step "), std::string::npos) << ends[rank].text;
      EXPECT_TRUE(WIFEXITED(ends[rank].wait_status));
    }
  }
  EXPECT_EQ(SharedMemoryNames(), names_before);
}

TEST(Shm, AKilledRankEndsTheJobAndIsNamed) { EndRankInTurn({SIGKILL, "has died"}, Patient()); }

TEST(Shm, AStoppedRankEndsTheJobAndIsNamed) {
  FabricOptions options = Patient();
  options.stall_timeout_ms = 10'000;  // so that no other rank seems to be stopped
  EndRankInTurn({SIGSTOP, "has not run for 10000 ms"}, options);
}

TEST(Shm, AKilledRankAmong32EndsTheJob) {
  Exchanging job(32, Patient());
  ASSERT_EQ(::kill(job.ranks.pid(17), SIGKILL), 0);
  const std::vector<RankEnd> ends = job.ranks.Join();
  for (std::uint32_t rank = 0; rank < 32; ++rank) {
    EXPECT_TRUE(ends[rank].ended) << rank;
    if (rank != 17) {
      EXPECT_EQ(ends[rank].text.substr(0, 17), "rank 17 (process ") << ends[rank].text;
    }
  }
}

TEST(Shm, ARankKilledWhileOthersWaitForABroadcastEndsTheJob) {
  Milestone joined;
  Ranks ranks(3, Joined(NewJobId(), 3, [&](Fabric& fabric) -> Status {
                joined.Reach();
                Bytes bytes;
                // Rank 0 has nothing to say for now.
                while (fabric.rank() == 0 && !fabric.failed()) ::usleep(1000);
                return fabric.Broadcast(&bytes);
              }));
  ASSERT_TRUE(joined.Await(3));
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

/// Does nothing in a job, or is in none.
Status Nothing(Fabric& /*fabric*/) { return {}; }

/// Whether the process has the memory that the ranks of its job share.
bool HasSharedMemory(pid_t process) {
  std::ifstream maps("/proc/" + std::to_string(process) + "/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  return text.find("/memfd:megalith") != std::string::npos;
}

TEST(ShmStart, MissingRanksAreNamed) {
  const std::string job = NewJobId();
  Milestone coming;
  Ranks ranks(0, nullptr);
  for (const std::uint32_t rank : {1U, 2U}) {
    ranks.Add(rank, [&](std::uint32_t self) {
      coming.Reach();
      return Joined(job, 5, Nothing)(self);
    });
  }
  ASSERT_TRUE(coming.Await(2));
  // The time of rank 0 alone counts, and these two come at once.
  FabricOptions options = Patient();
  options.start_timeout_ms = 5'000;
  ranks.Add(0, Joined(job, 5, Nothing, options));
  for (const RankEnd& end : ranks.Join()) {
    EXPECT_NE(end.text.find("not all of 5 ranks of this host have come within 5000 ms; missing: 3, "
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
  ranks.Add(1, Joined(job, 2, Nothing, options));
  EXPECT_EQ(ranks.Join()[0].text, "rank 1: rank 0 of job '" + job + "' has not come within 100 ms");
}

TEST(ShmStart, ARankKilledDuringTheStartEndsIt) {
  for (const std::uint32_t victim : {0U, 1U}) {
    Ranks ranks(2, Joined(NewJobId(), 3, Nothing));
    // Rank 0 gives it to those who have come.
    ASSERT_TRUE(WaitUntil([&] { return HasSharedMemory(ranks.pid(1)); }));
    ASSERT_EQ(::kill(ranks.pid(victim), SIGKILL), 0);
    const RankEnd other = ranks.Join()[1 - victim];
    EXPECT_TRUE(other.ended);
    EXPECT_NE(
        other.text.find("rank " + std::to_string(victim) + " has gone during the start of the job"),
        std::string::npos)
        << other.text;
  }
}

// Whoever is refused does not keep the others from starting.

TEST(ShmStart, WrongNumbersAreRefused) {
  const std::string job = NewJobId();
  Ranks ranks(0, nullptr);
  ranks.Add(0, Joined(job, 2, Nothing));
  ranks.Add(2, Joined(job, 3, Nothing));
  ASSERT_EQ(ranks.AwaitFirst(), 1);
  ranks.Add(1, Joined(job, 2, Nothing));
  const std::vector<RankEnd> ends = ranks.Join();
  EXPECT_EQ(ends[1].text, "rank 2: rank 2 of 3 wanted to join a job of 2 ranks");
  EXPECT_EQ(ends[0].text, "fine");
  EXPECT_EQ(ends[2].text, "fine");
  EXPECT_FALSE(JoinShmJob("with space", 0, 1));
  EXPECT_FALSE(JoinShmJob("", 0, 1));
  EXPECT_FALSE(JoinShmJob(job, 2, 2));
  EXPECT_FALSE(JoinShmJob(job, 0, 0));
}

/// All processes but one, which is refused for this reason, come to a good end once `last` has
/// come.
void ExpectOneRefused(Ranks* ranks, const std::string& reason, std::uint32_t last,
                      const Ranks::Body& body) {
  const int refused = ranks->AwaitFirst();
  ASSERT_GE(refused, 0);
  ranks->Add(last, body);
  const std::vector<RankEnd> ends = ranks->Join();
  for (std::size_t i = 0; i < ends.size(); ++i) {
    EXPECT_TRUE(ends[i].ended);
    EXPECT_EQ(ends[i].text, i == static_cast<std::size_t>(refused) ? reason : "fine");
  }
}

TEST(ShmStart, TwoProcessesForOneRankAreRefused) {
  const Ranks::Body body = Joined(NewJobId(), 3, Nothing);
  Ranks ranks(0, nullptr);
  for (const std::uint32_t rank : {0U, 1U, 1U}) ranks.Add(rank, body);
  ExpectOneRefused(&ranks, "rank 1: there are two processes for rank 1", 2, body);
}

TEST(ShmStart, TheJobIdOfARunningStartIsTaken) {
  const std::string job = NewJobId();
  const Ranks::Body body = Joined(job, 2, Nothing);
  Ranks ranks(0, nullptr);
  for (int i = 0; i < 2; ++i) ranks.Add(0, body);
  ExpectOneRefused(&ranks, "job id '" + job + "': another job of this user has it", 1, body);
}

}  // namespace
}  // namespace megalith::fabric
