#pragma once

// What the exchange instructions of a Program's ranks have in common: the layout of a message, and
// the proof that the Programs of all ranks fit together.

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "program/program.h"

namespace megalith::program {

/// Operands of exchange instructions from here on are the parts of the message, in order.
inline constexpr std::size_t kFirstExchangePart = 2;
/// A part begins at a multiple of so many bytes.
inline constexpr std::int64_t kExchangeAlignment = 64;

/// Whether it is one of the three instructions of an exchange.
inline bool IsExchange(Opcode opcode) {
  return opcode == Opcode::kExchangeFill || opcode == Opcode::kExchangePublish ||
         opcode == Opcode::kExchangeReceive;
}

inline bool SameOperand(const Operand& a, const Operand& b) {
  return a.buffer == b.buffer && a.begin == b.begin && a.end == b.end;
}

/// Bytes of the largest message that any rank publishes in the mailbox.
std::int64_t MaxMessageBytes(const Program& program, std::int64_t mailbox);

/// Bytes this rank publishes in one step with `rows` rows and as many logits as it may have, all
/// mailboxes. Of experts that are dealt out to groups, its group has its share of the pairs.
std::int64_t CountExchangedBytes(const Program& program, std::int64_t rows);

/// The same of what this rank receives from others.
std::int64_t CountReceivedBytes(const Program& program, std::int64_t rows);

/// What every rank must agree on: for each exchange its mailbox, and each rank's columns of each
/// buffer. Equal on all ranks of a job, whatever part of the model they have. 32 hex digits.
std::string ExchangeSignature(const Program& program);

/// Whether the Programs, one per rank in order, are one model: every matrix is read either by each
/// rank, or every part of it by exactly one (V8 across ranks); they exchange the same in the same
/// order (V6); rows, registers and state agree. kBadProgram names the ranks and the difference.
Status ProveRanks(std::span<const Program* const> programs);

}  // namespace megalith::program
