// Ranks under mpiexec: each case starts testing/mpi_rank.cc as a job and looks at how it ends.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace megalith::fabric {
namespace {

struct Ending {
  int exit_code;  ///< of mpiexec; 124 if it had to be ended
  std::string output;
};

std::string FirstLine(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::array<char, 300> line{};
  if (std::fgets(line.data(), static_cast<int>(line.size()), pipe) == nullptr) line[0] = '\0';
  ::pclose(pipe);
  return line.data();
}

bool IsHydra() {
  static const bool is =
      FirstLine(MEGALITH_MPIEXEC " --version 2>&1").find("HYDRA") != std::string::npos;
  return is;
}

/// A job of `num_ranks`; `launcher`: options of mpiexec before -n, `variables`: assignments.
Ending RunJob(const std::string& arguments, int num_ranks = 4, const std::string& launcher = "",
              const std::string& variables = "") {
  // LeakSanitizer stumbles over threads that MPI libraries leave running; fabric_test looks for
  // leaks. Open MPI refuses to run as root or with more ranks than cores unless told; MPICH does
  // not care.
  const std::string command = fmt::format(
      "ASAN_OPTIONS=detect_leaks=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe "
      "{} timeout -k 2 300 {} {} -n {} {} {} 2>&1 </dev/null",
      variables, MEGALITH_MPIEXEC, launcher, num_ranks, MEGALITH_MPI_RANK, arguments);
  Ending ending{-1, ""};
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return ending;
  std::array<char, 4096> block;
  for (std::size_t got = 0; (got = std::fread(block.data(), 1, block.size(), pipe)) > 0;) {
    ending.output.append(block.data(), got);
  }
  const int status = ::pclose(pipe);
  ending.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ending;
}

/// Processes with the token on their command line. Dead ones that nobody has asked for have none.
int NumRunning(const std::string& token) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string line((std::istreambuf_iterator<char>(file)), {});
    if (line.find("mpi_rank") != std::string::npos && line.find(token) != std::string::npos) {
      ++count;
    }
  }
  return count;
}

/// Whether no process of the job is left. The launcher does not wait for those it has killed.
bool AllGone(const std::string& token) {
  for (int i = 0; i < 12'000 && NumRunning(token) > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return NumRunning(token) == 0;
}

/// Two "hosts" on this machine, between which MPICH's launcher and MPI see a network.
constexpr const char* kTwoHosts = "-launcher fork -hosts 127.0.0.2,127.0.0.3";
/// The launcher does not end the other ranks when one is killed.
const std::string kNoCleanUp = "-disable-auto-cleanup";
constexpr const char* kTcp = "UCX_TLS=tcp,self FI_PROVIDER=tcp";

class MpiSharing : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, MpiSharing, testing::Values(0, 1, 2),
                         testing::PrintToStringParamName());

TEST_P(MpiSharing, ExchangesDeliverWhatWasPut) {
  const Ending ending = RunJob(fmt::format("exchange {}", GetParam()));
  EXPECT_EQ(ending.exit_code, 0) << ending.output;
}

TEST(Mpi, TenThousandExchanges) {
  const Ending ending = RunJob("many 0");
  EXPECT_EQ(ending.exit_code, 0) << ending.output;
}

TEST(Mpi, WithoutALauncherThereIsOneRank) {
  EXPECT_EQ(FirstLine(MEGALITH_MPI_RANK " describe"), "one rank; local 0 of 1\n");
}

TEST(Mpi, UnderALauncherAProgramWithoutTheModuleSaysSo) {
  const std::string folder = testing::TempDir() + fmt::format("mpi-{}", ::getpid());
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(MEGALITH_MPI_RANK, folder + "/mpi_rank");
  const std::string line = FirstLine("PMI_RANK=0 " + folder + "/mpi_rank describe 2>&1");
  std::filesystem::remove_all(folder);
  EXPECT_NE(line.find("started by an MPI launcher, but this build has no MPI"), std::string::npos)
      << line;
}

TEST(Mpi, OneRankUnderTheLauncherWorks) {
  const Ending ending = RunJob("exchange 0", 1);
  EXPECT_EQ(ending.exit_code, 0) << ending.output;
}

TEST(Mpi, TwoHostsUseSharedMemoryInsideAndMpiBetween) {
  if (!IsHydra()) GTEST_SKIP() << "only MPICH's launcher pretends to have several hosts";
  const Ending described = RunJob("describe 0", 4, kTwoHosts);
  EXPECT_NE(described.output.find("rank 2 of 4, shared memory with 1 of them, MPI with 2"),
            std::string::npos)
      << described.output;
  for (const char* network : {"", kTcp}) {
    const Ending ending = RunJob("exchange 0", 4, kTwoHosts, network);
    EXPECT_EQ(ending.exit_code, 0) << network << ending.output;
  }
}

TEST(Mpi, RanksThatLeaveAtOtherTimesEndInOrder) {
  for (const char* sharing : {"0", "1"}) {
    const Ending ending = RunJob(fmt::format("idle {}", sharing));
    EXPECT_EQ(ending.exit_code, 0) << ending.output;
  }
}

TEST(Mpi, MailboxesMayGoBeforeTheirLastMessages) {
  for (const char* network : {"", kTcp}) {
    const Ending ending = RunJob("unread 1", 4, "", network);
    EXPECT_EQ(ending.exit_code, 0) << network << ending.output;
  }
}

TEST(Mpi, ADifferenceInTheAgreementIsTold) {
  const Ending ending = RunJob("agree 0");
  EXPECT_NE(ending.exit_code, 0);
  EXPECT_NE(ending.output.find("rank 2: build: 'new' expected as on rank 0, 'old' found"),
            std::string::npos)
      << ending.output;
}

/// How a job of four fails, on one host, with MPI between all, and on two hosts.
struct Fault {
  const char* exercise;
  std::vector<std::string> messages;  ///< one of them must be there
};

void ExpectEndOfAll(const Fault& fault) {
  std::vector<std::array<std::string, 3>> ways = {{"0", "", ""}, {"1", "", ""}};
  if (IsHydra()) {
    ways.push_back({"0", kTwoHosts, kTcp});
    // Without the launcher's own cleaning up the ranks must notice by themselves.
    ways.push_back({"1", kNoCleanUp, ""});
  }
  int count = 0;
  for (const auto& [sharing, launcher, variables] : ways) {
    const std::string token = fmt::format("token{}-{}-{}", fault.exercise, ::getpid(), count++);
    const Ending ending =
        RunJob(fmt::format("{} {} {}", fault.exercise, sharing, token), 4, launcher, variables);
    SCOPED_TRACE(fmt::format("sharing {} {} {}", sharing, launcher, variables));
    EXPECT_NE(ending.exit_code, 0);
    EXPECT_NE(ending.exit_code, 124) << "ended only by the test's time limit";
    EXPECT_TRUE(AllGone(token));
    // In that mode the launcher drops what it has not printed yet when a rank aborts.
    bool told = fault.messages.empty() || launcher == kNoCleanUp;
    for (const std::string& message : fault.messages) {
      told = told || ending.output.find(message) != std::string::npos;
    }
    EXPECT_TRUE(told) << ending.output;
  }
}

TEST(MpiFailure, AStoppedRankEndsTheJobAndIsNamed) {
  ExpectEndOfAll({"stop", {"rank 2 (process "}});
}

TEST(MpiFailure, AKilledRankEndsTheJob) {
  // The launcher kills the others, who may or may not be faster in saying who it was.
  ExpectEndOfAll({"kill", {}});
}

TEST(MpiFailure, AbortEndsTheJobWithItsReason) {
  ExpectEndOfAll({"abort", {"rank 3 gave up: disk on fire"}});
}

TEST(MpiFailure, RankZeroMaySayWhatItHasToBeforeTheJobEnds) {
  ExpectEndOfAll({"speak", {"the clients have been told"}});
}

TEST(MpiFailure, ARankThatLeavesEarlyEndsTheJob) {
  ExpectEndOfAll({"leave", {"rank 1 has left the job"}});
}

}  // namespace
}  // namespace megalith::fabric
