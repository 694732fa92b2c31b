// megalith bench fabric: what an exchange between ranks costs.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <thread>

#include "base/affinity.h"
#include "bench/exchange.h"
#include "bench_report.h"
#include "commands_bench.h"
#include "console.h"
#include "fabric/inproc.h"
#include "fabric/shm.h"
#include "progress_bar.h"

namespace megalith::apps {
namespace {

using bench::ExchangeCost;
using fabric::Fabric;

struct Options {
  std::vector<int> ranks = {2, 4};
  std::vector<std::string> fabrics = {"inproc", "shm"};
  std::vector<std::size_t> bytes = {64, 1024, 4096, 16384, 65536, 262144, 1048576};
  int exchanges = 1000;
  int rounds = 3;
  bool json = false;
};

/// The costs of one job.
struct Job {
  std::string fabric;
  int ranks;
  std::vector<ExchangeCost> costs;
};

/// Each rank to its own CPU if there are enough, as the workers of a step would be: two that wait
/// for each other on one CPU measure the length of a spin. Threads that are forked or started later
/// must set their own.
void Pin(std::size_t local_rank, std::size_t num_local_ranks, const std::vector<int>& cpus) {
  if (num_local_ranks > cpus.size()) return;
  static_cast<void>(PinThisThread(cpus[local_rank]));  // where it cannot, the system chooses
}

/// Measures as one rank; an error becomes that of the job.
Result<std::vector<ExchangeCost>> MeasureAsRank(Fabric& fabric, const Options& options,
                                                const std::vector<int>& cpus, bool with_mpi) {
  Pin(fabric.local_rank(), fabric.num_local_ranks(), cpus);
  auto costs =
      bench::MeasureExchange(fabric, {options.bytes, options.exchanges, options.rounds, with_mpi});
  if (!costs) fabric.Abort(costs.error().message);
  return costs;
}

/// Ranks as threads of this process.
Result<std::vector<ExchangeCost>> MeasureInproc(const Options& options, int num_ranks,
                                                const std::vector<int>& cpus) {
  MEGALITH_ASSIGN_OR_RETURN(auto job, fabric::MakeInprocJob(static_cast<std::uint32_t>(num_ranks)));
  std::vector<std::thread> threads;
  for (std::size_t rank = 1; rank < job.size(); ++rank) {
    threads.emplace_back(
        [&, rank] { static_cast<void>(MeasureAsRank(*job[rank], options, cpus, false)); });
  }
  auto costs = MeasureAsRank(*job[0], options, cpus, false);
  for (std::thread& thread : threads) thread.join();
  return costs;
}

/// Ranks as processes: this one is rank 0, the others are forked. They end with the job, which ends
/// with this process at the latest.
Result<std::vector<ExchangeCost>> MeasureShm(const Options& options, int num_ranks,
                                             const std::vector<int>& cpus) {
  const std::string job_id = fmt::format("bench-{}-{}", ::getpid(), num_ranks);
  const auto run = [&](int rank) -> Result<std::vector<ExchangeCost>> {
    MEGALITH_ASSIGN_OR_RETURN(const auto fabric,
                              fabric::JoinShmJob(job_id, static_cast<std::uint32_t>(rank),
                                                 static_cast<std::uint32_t>(num_ranks)));
    return MeasureAsRank(*fabric, options, cpus, false);
  };
  std::fflush(nullptr);  // so that no child writes what is in the buffers
  std::vector<pid_t> children;
  for (int rank = 1; rank < num_ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(run(rank) ? 0 : 1);
    if (child > 0) children.push_back(child);
  }
  // A child that could not be started is missing at the start of the job, which says so.
  auto costs = run(0);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  return costs;
}

Result<std::vector<Job>> MeasureHere(const Options& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<int> cpus, AllowedCpus());
  std::vector<Job> jobs;
  for (const std::string& fabric : options.fabrics) {
    for (const int num_ranks : options.ranks) {
      MEGALITH_RETURN_IF_ERROR(CheckCancelled(cli.cancel, "bench fabric"));
      MEGALITH_ASSIGN_OR_RETURN(std::vector<ExchangeCost> costs,
                                fabric == "shm" ? MeasureShm(options, num_ranks, cpus)
                                                : MeasureInproc(options, num_ranks, cpus));
      // This thread was rank 0, on a CPU of its own.
      MEGALITH_RETURN_IF_ERROR(SetThisThreadCpus(cpus));
      jobs.push_back({fabric, num_ranks, std::move(costs)});
    }
  }
  return jobs;
}

void Print(const Options& options, const std::vector<Job>& jobs, const std::string& where) {
  Json results = Json::array();
  std::vector<std::vector<std::string>> table = {
      {"fabric", "ranks", "operation", "bytes", "median us", "p99 us", "min us", "exchanges"}};
  for (const Job& job : jobs) {
    for (const ExchangeCost& cost : job.costs) {
      results.push_back(
          {{"fabric", job.fabric},
           {"ranks", job.ranks},
           {"operation", bench::ExchangeOpName(cost.op)},
           {"bytes", cost.bytes},
           {"exchanges", cost.num_exchanges},
           {"us", {{"median", cost.median_us}, {"p99", cost.p99_us}, {"min", cost.min_us}}}});
      table.push_back({job.fabric, fmt::format("{}", job.ranks), bench::ExchangeOpName(cost.op),
                       fmt::format("{}", cost.bytes), fmt::format("{:.1f}", cost.median_us),
                       fmt::format("{:.1f}", cost.p99_us), fmt::format("{:.1f}", cost.min_us),
                       fmt::format("{}", cost.num_exchanges)});
    }
  }
  if (options.json) {
    const Json json = {{"command", "fabric"},
                       {"conditions", ConditionsJson()},
                       {"where", where},
                       {"results", results}};
    Put("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
    return;
  }
  const auto cpus = AllowedCpus();
  Put("{}\n{}; {} CPUs; bytes are those each rank gives; times are rank 0's\n{}", ConditionsLine(),
      where, cpus ? cpus->size() : 0, FormatTable(table));
}

/// One rank of a job that mpirun has started.
Status MeasureUnderMpi(fabric::Fabric& fabric, const Options& options) {
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<int> cpus, AllowedCpus());
  auto costs = MeasureAsRank(fabric, options, cpus, true);
  MEGALITH_RETURN_IF_ERROR(SetThisThreadCpus(cpus));
  if (!costs) return tl::unexpected(costs.error());
  if (fabric.rank() == 0) {
    const std::string name = fabric.num_local_ranks() == fabric.num_ranks() ? "mpi, shm" : "mpi";
    Print(options, {{name, static_cast<int>(fabric.num_ranks()), std::move(*costs)}},
          fabric.Describe());
    std::fflush(stdout);
  }
  return fabric.Barrier();
}

Status MeasureFabric(const Options& options, const Cli& cli) {
  if (cli.fabric != nullptr) return MeasureUnderMpi(*cli.fabric, options);
  ProgressBar bar(cli.common.quiet);
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<Job> jobs, MeasureHere(options, cli));
  bar.Clear();
  Print(options, jobs, "ranks of this host");
  return {};
}

}  // namespace

void RegisterBenchFabric(CLI::App& group, Cli& cli) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(
      group, cli, "fabric",
      "Exchange bytes between ranks: threads, processes of this host, or, under mpirun, its "
      "processes beside MPI's own collectives",
      "megalith bench fabric\n"
      "megalith bench fabric --fabric shm --ranks 2,8,32 --bytes 1024,65536\n"
      "mpirun -n 4 megalith bench fabric\n"
      "MEGALITH_RANKS_SHARING=1 mpirun -n 4 megalith bench fabric --json",
      [options, &cli] { return MeasureFabric(*options, cli); });
  command->preparse_callback([&cli](std::size_t /*num_left*/) { cli.runs_on_every_rank = true; });
  command->add_option("--fabric", options->fabrics, "How ranks are connected; not under mpirun")
      ->delimiter(',')
      ->check(CLI::IsMember({"inproc", "shm"}))
      ->type_name("NAME,..")
      ->capture_default_str();
  command->add_option("--ranks", options->ranks, "Numbers of ranks; not under mpirun")
      ->delimiter(',')
      ->check(CLI::Range(1, 256))
      ->type_name("N,..")
      ->capture_default_str();
  command->add_option("--bytes", options->bytes, "What each rank gives; multiples of 4")
      ->delimiter(',')
      ->check(CLI::Range(4, 1 << 28))
      ->type_name("N,..")
      ->capture_default_str();
  command->add_option("--exchanges", options->exchanges, "Exchanges of a turn, fewer of large ones")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  AddRoundsOption(*command, options->rounds);
  AddJsonFlag(*command, options->json);
}

}  // namespace megalith::apps
