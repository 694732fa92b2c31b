#pragma once

// Moves bytes between the ranks of one job. Ranks may be groups of threads of one process
// (inproc.h), processes of one host (shm.h) or MPI processes of many hosts (mpi.h); start.h
// chooses. All of them come out as this class, and during a step as Mailboxes.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fabric/job_control.h"
#include "fabric/mailboxes.h"

namespace megalith::fabric {

struct FabricOptions {
  /// Pauses before a waiting thread yields. Default: 0 if the host has more ranks than this process
  /// may use CPUs, else SpinThenYield's.
  static constexpr std::uint32_t kChooseSpins = ~std::uint32_t{0};
  std::uint32_t max_spins = kChooseSpins;
  /// Whoever is late to the start fails it.
  std::int64_t start_timeout_ms = 60'000;
  /// A process that does not run for so long (stopped) fails the job; 0: never, for debuggers. Time
  /// in which the observer did not run either does not count.
  std::int64_t stall_timeout_ms = 3'000;
  /// The same for a process of another host, of which nothing is heard (its host or the network is
  /// gone). TCP sends again 0.2, 0.6, 1.4, 3 and 6.2 s after a loss: so this bridges every
  /// interruption of up to 3 s, as any limit below 6.2 s would, and the job ends within 5 s.
  std::int64_t remote_stall_timeout_ms = 3'800;
};

/// Bytes owned by the caller.
using Bytes = std::vector<std::byte>;

/// One rank's side of a job.
///
/// "Collective" functions are called by every rank, in the same order, by one thread of it; they
/// wait for the other ranks. They are for starting and for what rank 0 tells the others before a
/// step, not for the inside of a step.
///
/// When a rank dies, stalls, leaves early or calls Abort, the job has failed on all ranks, for
/// good: waits end, and every function returns the first failure as kIo. The program then reports
/// it, destroys the fabric and ends.
class Fabric {
 public:
  /// Leaves the job. Others that still wait for this rank fail then.
  virtual ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  std::uint32_t rank() const { return rank_; }
  std::uint32_t num_ranks() const { return control_.num_ranks(); }
  /// Position among the ranks of this host, e.g. to divide its cores, and how many these are.
  std::uint32_t local_rank() const { return local_rank_; }
  std::uint32_t num_local_ranks() const { return num_local_ranks_; }
  /// One line for people: "rank 1 of 4, 2 on this host, shared memory and MPI".
  virtual std::string Describe() const = 0;

  /// Collective: mailboxes for the Programs of this job. They must not outlive the fabric. Errors:
  /// kUsage if the layout cannot be or is not that of rank 0; kOutOfMemory; kIo if the job fails.
  /// All ranks get the error of the first rank that has one.
  Result<std::unique_ptr<Mailboxes>> CreateMailboxes(const MailboxLayout& layout);

  /// Collective: returns when all ranks have called it.
  Status Barrier();
  /// Collective: rank 0's bytes replace those of the others. Rank 0 returns at once if the others
  /// have taken what it sent before; they may wait for as long as it likes, and sleep meanwhile.
  Status Broadcast(Bytes* bytes);
  /// Collective: what each rank gave, by rank; sizes may differ.
  Result<std::vector<Bytes>> AllGather(std::span<const std::byte> bytes);
  /// Collective: fine if `mine` is on every rank; else the error of the first rank that has one,
  /// with its number. So one rank that cannot load a file stops all with the reason.
  Status AllOrNone(const Status& mine);

  /// Ends the job on all ranks within a moment: `reason` is what they get. Thread-safe.
  void Abort(std::string_view reason);
  bool failed() const { return control_.failed(); }
  /// Fine, or why the job has failed. Thread-safe.
  Status status() const;

  /// Whether threads of several ranks share CPUs, once somebody has found out: then nobody pauses
  /// in waits (FabricOptions::max_spins, which goes first). Before mailboxes are made, by one
  /// thread.
  void SetSharesCpus(bool shares_cpus);

  /// What this rank is doing, for messages of others should it die: "step 12". Cut to 48 bytes;
  /// cheap enough for once per step. Thread-safe.
  void SetActivity(std::string_view what) { control_.line(rank_).SetLabel(what); }

 protected:
  Fabric(const JobControl& control, std::uint32_t rank, std::uint32_t local_rank,
         std::uint32_t num_local_ranks, const FabricOptions& options);

  const JobControl& control() const { return control_; }
  std::uint32_t max_spins() const { return max_spins_; }
  const FabricOptions& options() const { return options_; }

  /// The mailboxes behind the collective functions, which the constructor of a derived class makes.
  static MailboxLayout HostLayout();
  void SetHostMailboxes(std::unique_ptr<Mailboxes> mailboxes) { host_ = std::move(mailboxes); }
  void ReleaseHostMailboxes() { host_.reset(); }
  /// Says that no more puts will come from this rank.
  void Leave() { control_.line(rank_).state.store(RankState::kLeft, std::memory_order_release); }

  /// Collective: memory for the slots. All ranks call it, and then agree on whether it worked.
  virtual Result<MailboxMemory> AllocateMailboxes(const SlotPlan& plan) = 0;
  /// The job has failed by this process's doing: wake whoever tells other hosts.
  virtual void OnFailure() {}

 private:
  enum class Flow { kAll, kFromRank0 };
  Status Exchange(std::span<const std::byte> chunk, Flow flow);

  JobControl control_;
  std::uint32_t rank_;
  std::uint32_t local_rank_;
  std::uint32_t num_local_ranks_;
  FabricOptions options_;
  std::uint32_t max_spins_;
  std::unique_ptr<Mailboxes> host_;
  std::uint64_t sequence_ = 0;  // of the last exchange through host_
};

}  // namespace megalith::fabric
