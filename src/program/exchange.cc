#include "program/exchange.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "base/align.h"

namespace megalith::program {
namespace {

/// Calls function(instruction) for one fill of each exchange, and one receive from each rank.
template <typename Function>
void ForEachMessage(const Segment& segment, Function function) {
  for (const Stream& stream : segment.streams) {
    for (const Instruction& instruction : stream.instructions) {
      const bool message = instruction.opcode == Opcode::kExchangeFill ||
                           instruction.opcode == Opcode::kExchangeReceive;
      if (message && instruction.rows.first == 0) function(instruction);
    }
  }
}

/// `rows_of(buffer)` says how many rows of a buffer travel.
template <typename RowsOfBuffer>
std::int64_t MessageBytes(const Program& program, const Instruction& message,
                          RowsOfBuffer rows_of) {
  std::int64_t bytes = 0;
  for (std::size_t part = kFirstExchangePart; part < kMaxOperands; ++part) {
    const Operand& operand = message.operands[part];
    if (operand.buffer == kNone) continue;
    const Buffer& buffer = program.buffers[operand.buffer];
    bytes += RoundUp(rows_of(buffer) * (operand.end - operand.begin) * DTypeBytes(buffer.dtype),
                     kExchangeAlignment);
  }
  return bytes;
}

/// Experts of the plan that lists a message's pairs.
std::int64_t ExpertsOf(const Instruction& message, const Buffer& pairs) {
  const Operand& plan = message.operands[1];
  return (plan.end - plan.begin - 1 - 2 * pairs.rows) / 2;
}

/// One message of an exchange: which columns of which buffers.
std::string DescribeMessage(const Program& program, const Mailbox& mailbox,
                            const Instruction& message) {
  std::string text = fmt::format("{}", RegisterName(message.trip));
  for (std::size_t part = kFirstExchangePart; part < kMaxOperands; ++part) {
    const Operand& operand = message.operands[part];
    if (operand.buffer == kNone) {
      text += " -";
      continue;
    }
    const Buffer& buffer = program.buffers[operand.buffer];
    text += fmt::format(" {}:{}[{}:{}]", buffer.name, DTypeName(buffer.dtype), operand.begin,
                        operand.end);
    // Inside a group all have the same experts.
    const bool for_all = mailbox.num_ranks == program.sharding.num_ranks;
    if (buffer.kind == BufferKind::kPairs && for_all) {
      text += fmt::format("({}:{})", message.imm[3], message.imm[4]);
    }
  }
  return text;
}

std::string DescribeExchanges(const Program& program, const Segment& segment) {
  // Ordered by mailbox, number and rank, so that every rank lists the same.
  std::map<std::array<std::int32_t, 3>, std::string> messages;
  ForEachMessage(segment, [&](const Instruction& message) {
    const Mailbox& mailbox = program.mailboxes[static_cast<std::size_t>(message.imm[0])];
    const std::int32_t source =
        message.opcode == Opcode::kExchangeFill ? program.sharding.rank : message.imm[2];
    messages[{message.imm[0], message.imm[1], source - mailbox.first_rank}] =
        DescribeMessage(program, mailbox, message);
  });
  std::string text = segment.name;
  for (const auto& [key, message] : messages) {
    text += fmt::format("\n  {} {} {}: {}", key[0], key[1], key[2], message);
  }
  return text;
}

/// Of a step with `rows` rows, all messages of the opcode.
std::int64_t CountMessageBytes(const Program& program, Opcode opcode, std::int64_t rows) {
  std::int64_t bytes = 0;
  for (const Visit& visit : program.visits) {
    ForEachMessage(program.segments[visit.segment], [&](const Instruction& message) {
      if (message.opcode != opcode) return;
      bytes += MessageBytes(program, message, [&](const Buffer& buffer) -> std::int64_t {
        switch (buffer.kind) {
          case BufferKind::kRows:
            return rows;
          case BufferKind::kPairs: {
            const std::int64_t pairs = rows * (buffer.rows / program.max_rows);
            const std::int64_t own = message.imm[4] - message.imm[3];
            return CeilDiv(pairs * own, ExpertsOf(message, buffer));
          }
          case BufferKind::kLogitRows:
            return std::min<std::int64_t>(rows, program.max_logit_rows);
          default:
            return buffer.rows;
        }
      });
    });
  }
  return bytes;
}

}  // namespace

std::int64_t MaxMessageBytes(const Program& program, std::int64_t mailbox) {
  std::int64_t most = 0;
  for (const Segment& segment : program.segments) {
    ForEachMessage(segment, [&](const Instruction& message) {
      if (message.imm[0] != mailbox) return;
      most = std::max(
          most, MessageBytes(program, message, [](const Buffer& buffer) { return buffer.rows; }));
    });
  }
  return most;
}

std::int64_t CountExchangedBytes(const Program& program, std::int64_t rows) {
  return CountMessageBytes(program, Opcode::kExchangeFill, rows);
}

std::int64_t CountReceivedBytes(const Program& program, std::int64_t rows) {
  return CountMessageBytes(program, Opcode::kExchangeReceive, rows);
}

std::string ExchangeSignature(const Program& program) {
  std::string text =
      fmt::format("{} ranks in {} groups, {} rows, {} logit rows\n", program.sharding.num_ranks,
                  program.sharding.expert_groups, program.max_rows, program.max_logit_rows);
  for (const Segment& segment : program.segments) {
    text += DescribeExchanges(program, segment);
    text += '\n';
  }
  for (const Visit& visit : program.visits) {
    text += fmt::format("{} {}\n", visit.segment, fmt::join(visit.first_exchange, " "));
  }
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace megalith::program
