#pragma once

// Only mpi.cc and mpi_engine.cc know MPI's header.
#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "fabric/job_control.h"
#include "fabric/mailboxes.h"

namespace megalith::fabric {

class MpiMailboxes;

/// All messages of one process to and from ranks of other hosts: puts, heartbeats, failures and
/// farewells, over one communicator. A message's tag says which it is, or which slot it fills.
///
/// Threads: MPI is called by one thread at a time, whoever holds `busy_`: a worker that puts or
/// waits and finds it free, or the monitor. Nobody waits for it on the way of a step: a put that
/// finds it taken leaves its message in a queue, which the holder empties before and looks at again
/// after letting go.
class MpiEngine {
 public:
  /// `world`: of all ranks of the job, not used by others; its errors return. `remote_ranks`: those
  /// this process exchanges messages with.
  MpiEngine(MPI_Comm world, const JobControl& control, std::uint32_t rank,
            std::vector<std::uint32_t> remote_ranks);
  ~MpiEngine();
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;

  /// A transport for these mailboxes; the engine must outlive it. In the same order on all ranks.
  /// kUsage if there are more mailboxes than MPI has tags, or larger ones than its counts.
  Result<std::shared_ptr<Transport>> Attach(const SlotPlan& plan, const MailboxMemory& memory);

  /// Sends and receives what can be, unless another thread is at it.
  void Progress();
  /// The monitor's: sends a heartbeat, and the failure if there is one; makes progress.
  void Tick();
  /// After the last put: tells the others that this rank leaves.
  void SayFarewell();
  /// Whether all remote ranks have left and all messages are out.
  bool Finished();

  /// Calls something of MPI in place of this engine; blocking is fine.
  template <typename Call>
  void Exclusively(Call&& call) {
    Acquire();
    call();
    Release();
    if (num_queued_.load(std::memory_order_seq_cst) != 0) Progress();
  }

 private:
  friend class MpiMailboxes;

  enum ControlTag { kHeartbeatTag = 0, kFailureTag, kFarewellTag, kFirstMailboxTag };
  struct Heartbeat {
    std::uint64_t heartbeat, action, action_sequence, pid;
    std::uint64_t label[RankLine::kLabelBytes / 8];
  };
  struct Sending {
    std::atomic<std::uint32_t>* in_flight;  // to count down; null for control messages
  };
  struct Receiving {
    SlotHeader* slot;
    std::uint32_t source;
  };

  void Acquire();
  void Release() { busy_.store(false, std::memory_order_seq_cst); }
  // All below: by the thread that holds busy_.
  void Work();
  void Send(const void* data, std::size_t bytes, std::uint32_t to, int tag,
            std::atomic<std::uint32_t>* in_flight);
  void CompleteSends();
  bool ReceiveOne();
  void ReceiveControl(MPI_Message* message, const MPI_Status& status);
  void ReceivePut(MPI_Message* message, const MPI_Status& status);
  void CompleteReceives();
  void NoteFarewells();
  void SendHeartbeats();
  void SendFailure();
  /// Whether an MPI call worked; else the job fails.
  bool Fine(int result, const char* call);

  MPI_Comm world_;
  JobControl control_;
  std::uint32_t rank_;
  std::vector<std::uint32_t> remote_ranks_;
  int max_tag_ = 0;

  std::atomic<bool> busy_{false};
  std::atomic<std::uint64_t> num_queued_{0};
  std::vector<std::shared_ptr<MpiMailboxes>> sets_;

  // Requests and what they are for, position by position; completed ones are replaced by the last.
  std::vector<MPI_Request> send_requests_;
  std::vector<Sending> sends_;
  std::vector<MPI_Request> receive_requests_;
  std::vector<Receiving> receives_;
  std::vector<int> completed_;  // scratch of MPI_Testsome

  std::vector<Heartbeat> heartbeats_;                         // by position in remote_ranks_
  std::vector<std::atomic<std::uint32_t>> heartbeat_flight_;  // likewise: still being sent
  std::string failure_;                                       // what SendFailure sends
  bool failure_sent_ = false;
  bool said_farewell_ = false;
  std::vector<bool> leaving_;  // by rank: its farewell has come, perhaps before its last put
  std::uint32_t num_left_ = 0;
};

}  // namespace megalith::fabric
