#include "program/program.h"

#include <algorithm>

namespace megalith::program {
namespace {

/// Splits "a:r b:w" into names and accesses.
OpcodeInfo MakeInfo(std::string_view name, std::string_view operands, RowScope scope,
                    std::string_view meaning) {
  OpcodeInfo info{name, {}, {}, scope, meaning};
  while (!operands.empty()) {
    const std::size_t space = std::min(operands.find(' '), operands.size());
    const std::string_view operand = operands.substr(0, space);
    const std::size_t colon = operand.find(':');
    info.operand_names.push_back(operand.substr(0, colon));
    const char access = operand[colon + 1];
    info.operand_access.push_back(access == 'r'   ? Access::kRead
                                  : access == 'w' ? Access::kWrite
                                                  : Access::kUpdate);
    operands.remove_prefix(std::min(space + 1, operands.size()));
  }
  return info;
}

std::vector<OpcodeInfo> MakeTable() {
  using enum RowScope;
  return {
#define X(enumerator, name, operands, scope, meaning) MakeInfo(name, operands, scope, meaning),
      MEGALITH_OPCODES(X)
#undef X
  };
}

}  // namespace

const OpcodeInfo& Info(Opcode opcode) {
  static const std::vector<OpcodeInfo> table = MakeTable();
  return table[static_cast<std::size_t>(opcode)];
}

std::string_view WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kMxfp4:
      return "mxfp4";
    case WeightFormat::kInt8:
      return "int8";
  }
  return "?";
}

std::string_view RegisterName(Register value) {
  switch (value) {
    case Register::kOne:
      return "one";
    case Register::kRows:
      return "rows";
    case Register::kLogitRows:
      return "logit_rows";
    case Register::kActiveExperts:
      return "active_experts";
    case Register::kDraftRuns:
      return "draft_runs";
    case Register::kDraftRows:
      return "draft_rows";
  }
  return "?";
}

bool IsState(BufferKind kind) { return IsLayerState(kind) || kind == BufferKind::kDraftCache; }

bool IsLayerState(BufferKind kind) {
  return kind == BufferKind::kKdaState || kind == BufferKind::kConvState ||
         kind == BufferKind::kMlaCache;
}

BufferKind RowsOf(Register value) {
  switch (value) {
    case Register::kRows:
      return BufferKind::kRows;
    case Register::kLogitRows:
      return BufferKind::kLogitRows;
    case Register::kDraftRuns:
      return BufferKind::kDraftRuns;
    case Register::kDraftRows:
      return BufferKind::kDraftRows;
    case Register::kOne:
    case Register::kActiveExperts:
      break;
  }
  return BufferKind::kSingle;
}

std::int64_t BufferBytes(const Buffer& buffer) {
  if (IsState(buffer.kind) || buffer.kind == BufferKind::kStepInput ||
      buffer.kind == BufferKind::kMailbox) {
    return 0;
  }
  return buffer.rows * buffer.row_stride * DTypeBytes(buffer.dtype);
}

StepBytes CountStepBytes(const Program& program, std::int64_t rows, std::int64_t active_experts) {
  StepBytes bytes;
  for (const Visit& visit : program.visits) {
    const Segment& segment = program.segments[visit.segment];
    for (const Vector& vector : segment.vectors) bytes.vector_source += vector.source_bytes;
    bytes.packed += segment.vector_bytes;
    for (const Stream& stream : segment.streams) {
      for (const Tile& tile : stream.tiles) {
        const Tensor& tensor = program.tensors[tile.tensor];
        const bool expert = tensor.num_experts > 0;
        if (!expert) {
          bytes.dense_source += tile.source_bytes;
          bytes.packed += tile.bytes;
          continue;
        }
        // Of experts that are dealt out to ranks, this rank's share on average.
        const std::int64_t own = active_experts * tensor.own_experts;
        bytes.expert_source += tile.source_bytes * own / tensor.num_experts;
        bytes.packed += tile.bytes * own / tensor.num_experts;
      }
    }
  }
  bytes.embedding_source = rows * program.hidden_size * DTypeBytes(DType::kBf16);
  bytes.packed += bytes.embedding_source;
  return bytes;
}

std::int64_t CountInstructions(const Program& program) {
  std::int64_t count = 0;
  for (const Segment& segment : program.segments) {
    for (const Stream& stream : segment.streams) {
      count += static_cast<std::int64_t>(stream.instructions.size());
    }
  }
  return count;
}

std::int64_t CountExchanges(const Segment& segment, std::int64_t mailbox) {
  std::int64_t count = 0;
  for (const Stream& stream : segment.streams) {
    count += std::count_if(stream.instructions.begin(), stream.instructions.end(),
                           [mailbox](const Instruction& instruction) {
                             return instruction.opcode == Opcode::kExchangePublish &&
                                    instruction.imm[0] == mailbox;
                           });
  }
  return count;
}

std::int64_t CountExchanges(const Program& program) {
  std::int64_t count = 0;
  for (const Visit& visit : program.visits) {
    for (std::size_t mailbox = 0; mailbox < program.mailboxes.size(); ++mailbox) {
      count += CountExchanges(program.segments[visit.segment], static_cast<std::int64_t>(mailbox));
    }
  }
  return count;
}

}  // namespace megalith::program
