#include "exec/exchange.h"

#include <algorithm>
#include <cstring>

#include "base/align.h"
#include "exec/route_plan.h"
#include "program/exchange.h"

namespace megalith::exec {
namespace {

using program::BufferKind;

constexpr const char kJobFailed[] = "the ranks' job has failed";
constexpr const char kOtherSize[] = "another rank has published a message of another size";

/// Rows [first, last) of a part's buffer travel.
struct Rows {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Which rows of a buffer an exchange instruction is about.
Rows RowsOfPart(const InstructionView& view, const DeviceMemory& device,
                const program::Buffer& buffer) {
  if (buffer.kind != BufferKind::kPairs) return {0, device.reg(view.instruction.trip)};
  const std::int64_t columns = view.OperandColumns(1);
  const std::int64_t experts = (columns - 1 - 2 * buffer.rows) / 2;
  const RoutePlan plan = RoutePlan::FromColumns(view.Rows<std::int32_t>(1).data, experts, columns);
  const std::int64_t active = device.reg(program::Register::kActiveExperts);
  return {plan.FirstPair(plan.FirstActive(view.instruction.imm[3], active)),
          plan.FirstPair(plan.FirstActive(view.instruction.imm[4], active))};
}

/// Calls function(rows, memory of the buffer's row 0, bytes between rows, bytes of a row's columns,
/// offset in the message) for each part; returns the size of the message.
template <typename Function>
std::int64_t ForEachPart(const InstructionView& view, const DeviceMemory& device,
                         Function function) {
  std::int64_t offset = 0;
  for (std::size_t part = program::kFirstExchangePart; part < program::kMaxOperands; ++part) {
    const program::Operand& operand = view.operand(part);
    if (operand.buffer == program::kNone) continue;
    const program::Buffer& buffer = view.program.buffers[operand.buffer];
    const std::int64_t element = DTypeBytes(buffer.dtype);
    const Rows rows = RowsOfPart(view, device, buffer);
    const std::int64_t row_bytes = view.OperandColumns(part) * element;
    function(rows, view.memory.Data(operand), buffer.row_stride * element, row_bytes, offset);
    offset += RoundUp((rows.last - rows.first) * row_bytes, program::kExchangeAlignment);
  }
  return offset;
}

/// Calls function(row) for the instruction's share of the rows.
template <typename Function>
void ForShare(const InstructionView& view, Rows rows, Function function) {
  const program::RowSet& share = view.instruction.rows;
  // The first row from rows.first on that is share.first modulo the step.
  const std::int64_t ahead = ((share.first - rows.first) % share.step + share.step) % share.step;
  for (std::int64_t row = rows.first + ahead; row < rows.last; row += share.step) function(row);
}

}  // namespace

fabric::MailboxLayout MailboxLayoutFor(std::span<const program::VerifiedProgram> programs) {
  fabric::MailboxLayout layout(programs.front()->mailboxes.size());
  for (std::size_t i = 0; i < layout.size(); ++i) {
    for (const program::VerifiedProgram& program : programs) {
      const auto bytes = static_cast<std::size_t>(
          program::MaxMessageBytes(*program, static_cast<std::int64_t>(i)));
      layout[i].bytes = std::max(layout[i].bytes, bytes);
    }
  }
  return layout;
}

Status CheckMailboxes(std::span<const program::VerifiedProgram> programs,
                      const fabric::Mailboxes* mailboxes) {
  const program::Sharding& sharding = programs.front()->sharding;
  if (sharding.num_ranks == 1) return {};
  if (mailboxes == nullptr) {
    return Fail(ErrorCode::kUsage, "Programs of rank {} of {} need mailboxes", sharding.rank,
                sharding.num_ranks);
  }
  if (mailboxes->rank() != static_cast<std::uint32_t>(sharding.rank) ||
      mailboxes->num_ranks() != static_cast<std::uint32_t>(sharding.num_ranks)) {
    return Fail(ErrorCode::kUsage, "Programs of rank {} of {}, but mailboxes of rank {} of {}",
                sharding.rank, sharding.num_ranks, mailboxes->rank(), mailboxes->num_ranks());
  }
  const fabric::MailboxLayout layout = MailboxLayoutFor(programs);
  for (std::uint32_t i = 0; i < layout.size(); ++i) {
    if (i < mailboxes->num_mailboxes() && mailboxes->MaxBytes(i) >= layout[i].bytes) continue;
    return Fail(ErrorCode::kUsage, "mailbox {} of {} bytes needed, {} mailboxes found", i,
                layout[i].bytes, mailboxes->num_mailboxes());
  }
  return {};
}

std::uint64_t ExchangePort::Sequence(const InstructionView& view) const {
  const auto mailbox = static_cast<std::size_t>(view.instruction.imm[0]);
  const std::uint64_t before = finished_.empty() ? 0 : finished_[mailbox];
  return before + static_cast<std::uint64_t>(view.visit.first_exchange[mailbox]) +
         static_cast<std::uint64_t>(view.instruction.imm[1]) + 1;
}

void ExchangePort::FinishStep(const program::Program& program) {
  finished_.resize(program.mailboxes.size(), 0);
  const program::Visit& last = program.visits.back();
  for (std::size_t i = 0; i < finished_.size(); ++i) {
    finished_[i] += static_cast<std::uint64_t>(
        last.first_exchange[i] +
        program::CountExchanges(program.segments[last.segment], static_cast<std::int64_t>(i)));
  }
}

const char* ExchangePort::Fill(const InstructionView& view, const DeviceMemory& device) {
  std::byte* message = mailboxes_->Outgoing(Mailbox(view), Sequence(view));
  if (message == nullptr) return kJobFailed;
  ForEachPart(view, device,
              [&](Rows rows, const std::byte* data, std::int64_t stride, std::int64_t row_bytes,
                  std::int64_t offset) {
                ForShare(view, rows, [&](std::int64_t row) {
                  std::memcpy(message + offset + (row - rows.first) * row_bytes,
                              data + row * stride, static_cast<std::size_t>(row_bytes));
                });
              });
  return nullptr;
}

const char* ExchangePort::Publish(const InstructionView& view, const DeviceMemory& device) {
  const std::int64_t bytes = ForEachPart(
      view, device, [](Rows, const std::byte*, std::int64_t, std::int64_t, std::int64_t) {});
  mailboxes_->Publish(Mailbox(view), Sequence(view), static_cast<std::size_t>(bytes));
  return nullptr;
}

const char* ExchangePort::Copy(const InstructionView& view, const DeviceMemory& device,
                               std::span<const std::byte> message) {
  if (message.data() == nullptr) return kJobFailed;
  // Sizes first: nothing is read beyond what was put.
  const std::int64_t bytes = ForEachPart(
      view, device, [](Rows, const std::byte*, std::int64_t, std::int64_t, std::int64_t) {});
  if (static_cast<std::size_t>(bytes) != message.size()) return kOtherSize;
  ForEachPart(view, device,
              [&](Rows rows, std::byte* data, std::int64_t stride, std::int64_t row_bytes,
                  std::int64_t offset) {
                ForShare(view, rows, [&](std::int64_t row) {
                  std::memcpy(data + row * stride,
                              message.data() + offset + (row - rows.first) * row_bytes,
                              static_cast<std::size_t>(row_bytes));
                });
              });
  return nullptr;
}

}  // namespace megalith::exec
