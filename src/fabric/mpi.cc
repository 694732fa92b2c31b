// The MPI module: see mpi_module.h.

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "fabric/host_memory.h"
#include "fabric/monitor.h"
#include "fabric/mpi_engine.h"
#include "fabric/mpi_finalize.h"
#include "fabric/mpi_module.h"
#include "fabric/wait.h"

namespace megalith::fabric {
namespace {

/// For the last words of a failed job: messages to other ranks, and what all ranks report. MPICH's
/// launcher drops output that it has not passed on when a rank aborts.
constexpr std::int64_t kLastWordsNs = 500'000'000;
/// The longest that other ranks let rank 0 go on: it may have clients to tell.
constexpr std::int64_t kMostPatienceNs = 5'000'000'000;
/// A rank 0 that has not run for so long has no more to say.
constexpr std::int64_t kSilenceNs = 1'000'000'000;
/// Between the farewells of all and the end of MPI.
constexpr std::int64_t kLingerNs = 50'000'000;
/// For MPI_Abort, which waits until the launcher ends this process: one that has lost the
/// launcher's host would wait, with all its memory, until the network is back. A launcher that is
/// only slow sees the exit code instead, and ends the others for it.
constexpr std::chrono::milliseconds kAbortLimit(250);

tl::unexpected<Error> MpiError(int result, const char* call) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, text, &length);
  return Fail(ErrorCode::kIo, "{}: {}", call, text);
}

#define MEGALITH_RETURN_IF_MPI_ERROR(call)                  \
  do {                                                      \
    if (const int result = (call); result != MPI_SUCCESS) { \
      return MpiError(result, #call);                       \
    }                                                       \
  } while (false)

/// The ranks that exchange through this host's memory, and a name for them that nobody else has.
struct Group {
  std::vector<std::uint32_t> ranks;  // ascending, the caller's among them
  std::string job_id;
};

Result<Group> FindGroup(MPI_Comm world, std::uint32_t max_ranks) {
  int rank = 0;
  MEGALITH_RETURN_IF_MPI_ERROR(MPI_Comm_rank(world, &rank));
  MPI_Comm host = MPI_COMM_NULL;
  MEGALITH_RETURN_IF_MPI_ERROR(
      MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host));
  int size = 0;
  int position = 0;
  MEGALITH_RETURN_IF_MPI_ERROR(MPI_Comm_size(host, &size));
  MEGALITH_RETURN_IF_MPI_ERROR(MPI_Comm_rank(host, &position));
  std::vector<int> ranks(static_cast<std::size_t>(size));
  MEGALITH_RETURN_IF_MPI_ERROR(MPI_Allgather(&rank, 1, MPI_INT, ranks.data(), 1, MPI_INT, host));
  MEGALITH_RETURN_IF_MPI_ERROR(MPI_Comm_free(&host));
  if (max_ranks > 0) {
    const int limit = static_cast<int>(max_ranks);
    const int first = position / limit * limit;
    ranks =
        std::vector<int>(ranks.begin() + first, ranks.begin() + std::min<int>(first + limit, size));
  }
  std::uint64_t number = 0;
  if (rank == 0 && ::getrandom(&number, sizeof number, 0) != sizeof number) {
    number = static_cast<std::uint64_t>(NowNs());
  }
  MEGALITH_RETURN_IF_MPI_ERROR(MPI_Bcast(&number, sizeof number, MPI_BYTE, 0, world));
  Group group;
  for (const int each : ranks) group.ranks.push_back(static_cast<std::uint32_t>(each));
  group.job_id = fmt::format("mpi-{:016x}-{}", number, group.ranks.front());
  return group;
}

class MpiFabric : public Fabric {
 public:
  MpiFabric(MPI_Comm world, bool ends_mpi, std::unique_ptr<HostMemory> memory, std::uint32_t rank,
            const FabricOptions& options)
      : Fabric(memory->control(), rank, memory->local_rank(),
               static_cast<std::uint32_t>(memory->local_ranks().size()), options),
        world_(world),
        ends_mpi_(ends_mpi),
        memory_(std::move(memory)) {
    const std::vector<std::uint32_t>& local = memory_->local_ranks();
    for (std::uint32_t each = 0; each < num_ranks(); ++each) {
      if (!std::binary_search(local.begin(), local.end(), each)) remote_ranks_.push_back(each);
    }
    engine_ = std::make_unique<MpiEngine>(world, control(), rank, remote_ranks_);
  }

  ~MpiFabric() override {
    if (!failed()) engine_->SayFarewell();
    Leave();
    PatientWait turn(max_spins());
    while (!failed() && !engine_->Finished()) turn.Once();
    if (failed()) EndFailedJob();
    // What MPI calls sent may still be in its own buffers.
    if (!remote_ranks_.empty()) MoveMessagesFor(kLingerNs);
    monitor_.reset();
    ReleaseHostMailboxes();
    MPI_Comm_free(&world_);
    if (ends_mpi_) FinalizeMpi(!remote_ranks_.empty());
  }

  Status Start() {
    MEGALITH_ASSIGN_OR_RETURN(const SlotPlan plan, SlotPlan::Make(HostLayout(), num_ranks()));
    MEGALITH_ASSIGN_OR_RETURN(MailboxMemory memory, AllocateMailboxes(plan));
    SetHostMailboxes(
        std::make_unique<Mailboxes>(plan, std::move(memory), control(), rank(), max_spins()));
    // Nobody may put before all have their mailboxes.
    MEGALITH_RETURN_IF_MPI_ERROR(MPI_Barrier(world_));
    MEGALITH_ASSIGN_OR_RETURN(
        monitor_,
        Monitor::Start(control(),
                       {rank(), memory_->local_ranks(), remote_ranks_, options().stall_timeout_ms,
                        options().remote_stall_timeout_ms, [this] { engine_->Tick(); }}));
    return Barrier();
  }

  std::string Describe() const override {
    if (remote_ranks_.empty()) {
      return fmt::format("rank {} of {}, shared memory, started by MPI", rank(), num_ranks());
    }
    return fmt::format("rank {} of {}, shared memory with {} of them, MPI with {}", rank(),
                       num_ranks(), num_local_ranks() - 1, remote_ranks_.size());
  }

  /// Runs an MPI call between the engine's.
  template <typename Call>
  void Exclusively(Call&& call) {
    engine_->Exclusively([&] { call(world_); });
  }

 protected:
  Result<MailboxMemory> AllocateMailboxes(const SlotPlan& plan) override {
    MEGALITH_ASSIGN_OR_RETURN(MailboxMemory memory, memory_->Allocate(plan));
    if (!remote_ranks_.empty()) {
      MEGALITH_ASSIGN_OR_RETURN(memory.transport, engine_->Attach(plan, memory));
    }
    return memory;
  }

  void OnFailure() override { monitor_->Wake(); }

 private:
  void MoveMessagesFor(std::int64_t duration_ns) {
    const std::int64_t start_ns = NowNs();
    PatientWait turn(0);
    while (NowNs() - start_ns < duration_ns) {
      engine_->Progress();
      turn.Once();
    }
  }

  /// The first rank to abort ends all, and rank 0 may need longer than the others to say what it
  /// has to. Where it goes on for too long or has failed itself, they do not wait for it.
  void AwaitRank0() {
    const RankLine& line = control().line(0);
    const std::int64_t start_ns = NowNs();
    std::int64_t heard_ns = start_ns;
    std::uint64_t heartbeat = line.heartbeat.load(std::memory_order_relaxed);
    PatientWait turn(0);
    while (line.state.load(std::memory_order_acquire) != RankState::kLeft) {
      const std::int64_t now_ns = NowNs();
      const std::uint64_t last = line.heartbeat.load(std::memory_order_relaxed);
      if (last != heartbeat) heard_ns = now_ns;
      heartbeat = last;
      if (now_ns - heard_ns > kSilenceNs || now_ns - start_ns > kMostPatienceNs) return;
      engine_->Progress();
      turn.Once();
    }
  }

  /// Does not return.
  void EndFailedJob() {
    monitor_->Wake();
    if (rank() != 0) AwaitRank0();
    MoveMessagesFor(kLastWordsNs);
    try {
      std::thread([] {
        std::this_thread::sleep_for(kAbortLimit);
        std::_Exit(1);
      }).detach();
    } catch (const std::system_error&) {
      // No thread to be had: then without the limit.
    }
    engine_->Exclusively([] { MPI_Abort(MPI_COMM_WORLD, 1); });
  }

  MPI_Comm world_;
  bool ends_mpi_;
  std::unique_ptr<HostMemory> memory_;
  std::vector<std::uint32_t> remote_ranks_;
  std::unique_ptr<MpiEngine> engine_;
  std::unique_ptr<Monitor> monitor_;  // before engine_ goes
};

Status InitMpi(bool* started_here) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  *started_here = initialized == 0;
  int level = MPI_THREAD_SINGLE;
  if (initialized != 0) {
    MEGALITH_RETURN_IF_MPI_ERROR(MPI_Query_thread(&level));
  } else {
    MEGALITH_RETURN_IF_MPI_ERROR(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level));
  }
  if (level < MPI_THREAD_SERIALIZED) {
    return Fail(ErrorCode::kUnsupported,
                "this MPI library has thread level {}, MPI_THREAD_SERIALIZED ({}) expected", level,
                MPI_THREAD_SERIALIZED);
  }
  return {};
}

Result<std::unique_ptr<Fabric>> Start(const MpiOptions& options) {
  bool ends_mpi = false;
  MEGALITH_RETURN_IF_ERROR(InitMpi(&ends_mpi));
  MPI_Comm world = MPI_COMM_NULL;
  MEGALITH_RETURN_IF_MPI_ERROR(MPI_Comm_dup(MPI_COMM_WORLD, &world));
  MEGALITH_RETURN_IF_MPI_ERROR(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN));
  int rank = 0;
  int num_ranks = 0;
  MEGALITH_RETURN_IF_MPI_ERROR(MPI_Comm_rank(world, &rank));
  MEGALITH_RETURN_IF_MPI_ERROR(MPI_Comm_size(world, &num_ranks));
  if (num_ranks > static_cast<int>(kMaxRanks)) {
    return Fail(ErrorCode::kUsage, "{} ranks; 1 to {} are possible", num_ranks, kMaxRanks);
  }
  MEGALITH_ASSIGN_OR_RETURN(const Group group, FindGroup(world, options.max_ranks_sharing));
  MEGALITH_ASSIGN_OR_RETURN(
      auto memory,
      HostMemory::Join({group.job_id, static_cast<std::uint32_t>(num_ranks),
                        static_cast<std::uint32_t>(rank), group.ranks, options.start_timeout_ms}));
  auto fabric = std::make_unique<MpiFabric>(world, ends_mpi, std::move(memory),
                                            static_cast<std::uint32_t>(rank), options);
  MEGALITH_RETURN_IF_ERROR(fabric->Start());
  return fabric;
}

bool AllGather(Fabric& fabric, std::span<const std::byte> mine, std::span<std::byte> all) {
  auto* mpi = dynamic_cast<MpiFabric*>(&fabric);
  if (mpi == nullptr) return false;
  const auto count = static_cast<int>(mine.size());
  mpi->Exclusively([&](MPI_Comm world) {
    MPI_Allgather(mine.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, world);
  });
  return true;
}

bool AllReduce(Fabric& fabric, std::span<const float> mine, std::span<float> sum) {
  auto* mpi = dynamic_cast<MpiFabric*>(&fabric);
  if (mpi == nullptr) return false;
  mpi->Exclusively([&](MPI_Comm world) {
    MPI_Allreduce(mine.data(), sum.data(), static_cast<int>(mine.size()), MPI_FLOAT, MPI_SUM,
                  world);
  });
  return true;
}

}  // namespace
}  // namespace megalith::fabric

extern "C" {
extern const megalith::fabric::MpiModule megalith_mpi_module;
const megalith::fabric::MpiModule megalith_mpi_module = {
    megalith::fabric::kMpiModuleVersion, megalith::SetLogSink, megalith::fabric::Start,
    megalith::fabric::AllGather, megalith::fabric::AllReduce};
}
