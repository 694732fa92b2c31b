#pragma once

// Mailboxes: how the workers of one rank hand activations to those of others during a step.
//
// Every rank has the same mailboxes, numbered from 0. In each, every rank may write for the others,
// again and again: the n-th time with sequence n = 1, 2, 3, ... (never 0, never a gap). Sequence n
// lies in slot n mod 2; slots are never zeroed. A reader waits for (mailbox, source, sequence).
//
// Who uses them keeps these rules; for a Program the verifier proves them:
//   1. One writer: of one (mailbox, source) exactly one thread puts a sequence, and the puts of
//      consecutive sequences are ordered.
//   2. Reuse: before a rank puts sequence n, it knows that every reader has finished with n - 2,
//      e.g. because it has received something that the reader put after reading. An exchange in
//      which every rank puts n and then waits for n from all keeps this by itself.
//   3. A reader is done with a slot before its rank puts what tells the writer so.
//
// Memory order: a put writes the data, then the slot's sequence with release; a reader that has
// seen the sequence with acquire sees the data. In the other direction, a reader's loads come
// before its rank's next put (release), which the writer has received (acquire) before it writes
// the slot again.
//
// Where slots lie: those of ranks on the same host in memory of the writer, on the writer's NUMA
// node, read by everybody in place; those of ranks on other hosts in memory of the reading process,
// filled by the transport.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "fabric/job_control.h"
#include "fabric/mailbox_layout.h"
#include "fabric/memory_region.h"
#include "fabric/wait.h"

namespace megalith::fabric {

/// In front of a slot's data. The last 16 bytes travel with the data between hosts.
struct SlotHeader {
  std::atomic<std::uint64_t> sequence;  ///< of what can be read; 0: nothing yet
  std::byte unused[SlotPlan::kHeaderBytes - 3 * sizeof(std::uint64_t)];
  std::uint64_t put_sequence;
  std::uint64_t put_bytes;

  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
};
static_assert(sizeof(SlotHeader) == SlotPlan::kHeaderBytes);

/// Carries puts to ranks of other hosts.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Whether a message out of this slot is still being sent, so that it must not be written.
  virtual bool Sending(std::uint32_t mailbox, std::uint32_t reader, std::uint64_t sequence) = 0;
  /// Sends the slot's content to the rank, or with kAllRemote to all ranks of other hosts. Does not
  /// wait. Thread-safe.
  static constexpr std::uint32_t kAllRemote = ~std::uint32_t{0};
  virtual void Send(std::uint32_t mailbox, std::uint32_t reader, std::uint64_t sequence) = 0;
  /// Moves messages, unless another thread is at it. Thread-safe, does not wait.
  virtual void Progress() = 0;
};

/// What a Mailboxes object is made of; put together by the fabric.
struct MailboxMemory {
  std::vector<std::byte*> sections;  ///< by writing rank
  std::vector<bool> remote;          ///< by rank: it is on another host
  std::vector<std::shared_ptr<MemoryRegion>> regions;
  std::shared_ptr<Transport> transport;  ///< null if all ranks are on this host
};

/// One rank's view. Made by Fabric::CreateMailboxes; must not outlive the fabric. All functions may
/// be called from any thread. Nothing here allocates, takes a lock or throws.
class Mailboxes {
 public:
  Mailboxes(const SlotPlan& plan, MailboxMemory memory, const JobControl& control,
            std::uint32_t rank, std::uint32_t max_spins);

  std::uint32_t rank() const { return rank_; }
  std::uint32_t num_ranks() const { return control_.num_ranks(); }
  std::size_t num_mailboxes() const { return plan_.num_mailboxes(); }
  std::size_t MaxBytes(std::uint32_t mailbox) const { return plan_.MaxBytes(mailbox); }
  /// Pauses before a waiting thread begins to yield; 0 if there are more threads than cores.
  std::uint32_t max_spins() const { return max_spins_; }
  /// While nobody waits.
  void set_max_spins(std::uint32_t max_spins) { max_spins_ = max_spins; }

  /// For everybody, this rank included: a mailbox of kAllPeers. False if the job has failed.
  bool Put(std::uint32_t mailbox, std::uint64_t sequence, std::span<const std::byte> bytes) {
    return PutInto(mailbox, kEverybody, sequence, bytes);
  }
  /// For one rank, which may be this one: a mailbox of kEachPeer. False if the job has failed.
  bool PutTo(std::uint32_t reader, std::uint32_t mailbox, std::uint64_t sequence,
             std::span<const std::byte> bytes) {
    return PutInto(mailbox, reader, sequence, bytes);
  }

  /// The two halves of a put, to compute straight into the slot: where its MaxBytes() of data lie
  /// (aligned to 64 bytes), and then its publication. Outgoing is null if the job has failed.
  std::byte* Outgoing(std::uint32_t mailbox, std::uint64_t sequence) {
    return OutgoingFor(mailbox, kEverybody, sequence);
  }
  std::byte* OutgoingTo(std::uint32_t reader, std::uint32_t mailbox, std::uint64_t sequence) {
    return OutgoingFor(mailbox, reader, sequence);
  }
  void Publish(std::uint32_t mailbox, std::uint64_t sequence, std::size_t bytes) {
    PublishFor(mailbox, kEverybody, sequence, bytes);
  }
  void PublishTo(std::uint32_t reader, std::uint32_t mailbox, std::uint64_t sequence,
                 std::size_t bytes) {
    PublishFor(mailbox, reader, sequence, bytes);
  }

  /// Whether what `source` put for this rank can be read. Between two calls that say no, call
  /// Progress(), and look at failed() now and then.
  bool Arrived(std::uint32_t mailbox, std::uint32_t source, std::uint64_t sequence) const {
    return Slot(source, mailbox, rank_, sequence)->sequence.load(std::memory_order_acquire) >=
           sequence;
  }
  /// What `source` put, once it has arrived: the bytes that were put, not MaxBytes(). Aligned to 64
  /// bytes; valid until the rules above let the writer write again. With a null pointer if a later
  /// sequence is there, which breaks rule 2; the job has failed then.
  std::span<const std::byte> Data(std::uint32_t mailbox, std::uint32_t source,
                                  std::uint64_t sequence) const {
    SlotHeader* slot = Slot(source, mailbox, rank_, sequence);
    if (slot->sequence.load(std::memory_order_relaxed) != sequence) [[unlikely]] {
      return Overwritten(mailbox, source, sequence);
    }
    return {slot->data(), slot->put_bytes};
  }
  /// Moves messages of other hosts; nothing where there are none.
  void Progress() {
    if (memory_.transport != nullptr) memory_.transport->Progress();
  }

  /// Waits for arrival and returns Data(). A null pointer (`data() == nullptr`) if the job fails,
  /// `source` has left without putting, or `go_on` says no. `go_on` is called again and again while
  /// waiting: work to fill the time with, e.g. prefetching; false abandons the wait.
  template <typename GoOn>
  std::span<const std::byte> Wait(std::uint32_t mailbox, std::uint32_t source,
                                  std::uint64_t sequence, GoOn&& go_on) {
    if (!Arrived(mailbox, source, sequence)) {
      BeginWait(mailbox, source, sequence);
      PatientWait turn(max_spins_);
      do {
        Progress();
        if (!go_on()) return {};
        if (turn.Once() && !CanStillArrive(mailbox, source, sequence)) return {};
      } while (!Arrived(mailbox, source, sequence));
      EndWait(mailbox, source, sequence);
    }
    return Data(mailbox, source, sequence);
  }
  std::span<const std::byte> Wait(std::uint32_t mailbox, std::uint32_t source,
                                  std::uint64_t sequence) {
    return Wait(mailbox, source, sequence, [] { return true; });
  }

  /// Whether the job has failed; Fabric::status() says why.
  bool failed() const { return control_.failed(); }

 private:
  static constexpr std::uint32_t kEverybody = Transport::kAllRemote;

  SlotHeader* Slot(std::uint32_t writer, std::uint32_t mailbox, std::uint32_t reader,
                   std::uint64_t sequence) const {
    return reinterpret_cast<SlotHeader*>(memory_.sections[writer] +
                                         plan_.Offset(mailbox, reader, sequence));
  }
  std::byte* OutgoingFor(std::uint32_t mailbox, std::uint32_t reader, std::uint64_t sequence) {
    // One of kEachPeer has no slot for everybody, and the other way round.
    MEGALITH_CHECK(sequence > 0 && plan_.ForEachPeer(mailbox) == (reader != kEverybody));
    if (memory_.transport != nullptr && !AwaitSent(mailbox, reader, sequence)) return nullptr;
    if (failed()) return nullptr;
    return Slot(rank_, mailbox, reader == kEverybody ? 0 : reader, sequence)->data();
  }
  void PublishFor(std::uint32_t mailbox, std::uint32_t reader, std::uint64_t sequence,
                  std::size_t bytes) {
    SlotHeader* slot = Slot(rank_, mailbox, reader == kEverybody ? 0 : reader, sequence);
    slot->put_sequence = sequence;
    slot->put_bytes = bytes;
    slot->sequence.store(sequence, std::memory_order_release);
    if (memory_.transport == nullptr) return;
    if (reader == kEverybody || memory_.remote[reader]) {
      memory_.transport->Send(mailbox, reader, sequence);
    }
  }
  bool PutInto(std::uint32_t mailbox, std::uint32_t reader, std::uint64_t sequence,
               std::span<const std::byte> bytes) {
    MEGALITH_CHECK(bytes.size() <= plan_.MaxBytes(mailbox));
    std::byte* destination = OutgoingFor(mailbox, reader, sequence);
    if (destination == nullptr) return false;
    if (!bytes.empty()) std::memcpy(destination, bytes.data(), bytes.size());
    PublishFor(mailbox, reader, sequence, bytes.size());
    return true;
  }

  bool AwaitSent(std::uint32_t mailbox, std::uint32_t reader, std::uint64_t sequence);
  void BeginWait(std::uint32_t mailbox, std::uint32_t source, std::uint64_t sequence) const;
  void EndWait(std::uint32_t mailbox, std::uint32_t source, std::uint64_t sequence) const;
  bool CanStillArrive(std::uint32_t mailbox, std::uint32_t source, std::uint64_t sequence) const;
  std::span<const std::byte> Overwritten(std::uint32_t mailbox, std::uint32_t source,
                                         std::uint64_t sequence) const;

  SlotPlan plan_;
  MailboxMemory memory_;
  JobControl control_;
  std::uint32_t rank_;
  std::uint32_t max_spins_;
};

}  // namespace megalith::fabric
