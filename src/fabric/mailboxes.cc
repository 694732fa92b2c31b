#include "fabric/mailboxes.h"

#include <fmt/format.h>

namespace megalith::fabric {

Mailboxes::Mailboxes(const SlotPlan& plan, MailboxMemory memory, const JobControl& control,
                     std::uint32_t rank, std::uint32_t max_spins)
    : plan_(plan),
      memory_(std::move(memory)),
      control_(control),
      rank_(rank),
      max_spins_(max_spins) {}

bool Mailboxes::AwaitSent(std::uint32_t mailbox, std::uint32_t reader, std::uint64_t sequence) {
  PatientWait turn(max_spins_);
  while (memory_.transport->Sending(mailbox, reader == kEverybody ? 0 : reader, sequence)) {
    memory_.transport->Progress();
    if (turn.Once() && failed()) return false;
  }
  return true;
}

void Mailboxes::BeginWait(std::uint32_t mailbox, std::uint32_t source,
                          std::uint64_t sequence) const {
  control_.line(rank_).SetAction(MailboxAction::kWaiting, source, mailbox, sequence);
}

void Mailboxes::EndWait(std::uint32_t mailbox, std::uint32_t source, std::uint64_t sequence) const {
  control_.line(rank_).SetAction(MailboxAction::kReceived, source, mailbox, sequence);
}

bool Mailboxes::CanStillArrive(std::uint32_t mailbox, std::uint32_t source,
                               std::uint64_t sequence) const {
  const RankState state = control_.line(source).state.load(std::memory_order_acquire);
  if (state != RankState::kLeft && !failed()) return true;
  // Its last put came before it left, or before the failure.
  if (Arrived(mailbox, source, sequence)) return true;
  if (failed()) return false;
  control_.Fail(
      fmt::format("rank {} has left the job, but rank {} waits for mailbox {} of it, "
                  "sequence {}",
                  source, rank_, mailbox, sequence));
  return false;
}

std::span<const std::byte> Mailboxes::Overwritten(std::uint32_t mailbox, std::uint32_t source,
                                                  std::uint64_t sequence) const {
  const std::uint64_t found =
      Slot(source, mailbox, rank_, sequence)->sequence.load(std::memory_order_relaxed);
  control_.Fail(fmt::format("rank {}: mailbox {} of rank {} holds sequence {}, {} expected: {}",
                            rank_, mailbox, source, found, sequence,
                            found > sequence ? "it was written again before it had been read"
                                             : "it was read before it had arrived"));
  return {};
}

}  // namespace megalith::fabric
