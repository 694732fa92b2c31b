#pragma once

// The exchange instructions: how a rank's columns get to the other ranks of the job.

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "exec/device_memory.h"
#include "exec/instruction_view.h"
#include "fabric/mailboxes.h"
#include "program/verifier.h"

namespace megalith::exec {

/// The mailboxes that the Programs of one model need; the same on every rank.
fabric::MailboxLayout MailboxLayoutFor(std::span<const program::VerifiedProgram> programs);

/// kUsage if the Programs are for several ranks and `mailboxes` is null, or for another rank, or of
/// another layout.
Status CheckMailboxes(std::span<const program::VerifiedProgram> programs,
                      const fabric::Mailboxes* mailboxes);

/// This rank's place in the sequence of exchanges. The functions that run an instruction may be
/// called by all workers at once; they return null, or why the step has failed (a literal).
class ExchangePort {
 public:
  /// `mailboxes` may be null for Programs of one rank.
  explicit ExchangePort(fabric::Mailboxes* mailboxes) : mailboxes_(mailboxes) {}

  /// `go_on` is called while a receive waits, again and again; false abandons the wait.
  template <typename GoOn>
  const char* Run(const InstructionView& view, const DeviceMemory& device, GoOn&& go_on) {
    switch (view.instruction.opcode) {
      case program::Opcode::kExchangeFill:
        return Fill(view, device);
      case program::Opcode::kExchangePublish:
        return Publish(view, device);
      default:
        return Copy(view, device,
                    mailboxes_->Wait(Mailbox(view), Source(view), Sequence(view), go_on));
    }
  }

  /// Between steps: the Program's exchanges are over.
  void FinishStep(const program::Program& program);

  static std::uint32_t Mailbox(const InstructionView& view) {
    return static_cast<std::uint32_t>(view.instruction.imm[0]);
  }
  static std::uint32_t Source(const InstructionView& view) {
    return static_cast<std::uint32_t>(view.instruction.imm[2]);
  }
  std::uint64_t Sequence(const InstructionView& view) const;

 private:
  const char* Fill(const InstructionView& view, const DeviceMemory& device);
  const char* Publish(const InstructionView& view, const DeviceMemory& device);
  const char* Copy(const InstructionView& view, const DeviceMemory& device,
                   std::span<const std::byte> message);

  fabric::Mailboxes* mailboxes_;
  std::vector<std::uint64_t> finished_;  // exchanges of the steps before, by mailbox
};

}  // namespace megalith::exec
