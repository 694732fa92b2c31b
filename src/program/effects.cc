#include "program/effects.h"

#include "program/exchange.h"

namespace megalith::program {
namespace {

/// Whether the instruction touches only its own share of the operand's rows.
bool IsRowShare(const Instruction& instruction, BufferKind kind) {
  if (Info(instruction.opcode).scope != RowScope::kOwnRows) return false;
  // Rows of another kind than those counted are gathered, any of them. Rows of a step have distinct
  // positions, so a row's cache entry is its own.
  if (kind == RowsOf(instruction.trip) || IsState(kind)) return true;
  // An exchange shares out the pairs by their own number. What is filled in is laid out by rows;
  // where a row lies depends on how many there are, so every other access counts as all of them.
  if (kind == BufferKind::kPairs) return IsExchange(instruction.opcode);
  return kind == BufferKind::kMailbox && instruction.opcode == Opcode::kExchangeFill;
}

/// Whether imm[3]..imm[4] are the experts whose pairs the instruction touches.
bool NamesExperts(Opcode opcode) {
  return opcode == Opcode::kExpertGateUp || opcode == Opcode::kExpertDown || IsExchange(opcode);
}

}  // namespace

std::vector<Effect> Effects(const Program& program, const Instruction& instruction) {
  const OpcodeInfo& info = Info(instruction.opcode);
  std::vector<Effect> effects;
  effects.reserve(info.operand_names.size());
  for (std::size_t i = 0; i < info.operand_names.size(); ++i) {
    const Operand& operand = instruction.operands[i];
    if (operand.buffer == kNone) continue;
    Effect effect;
    effect.buffer = operand.buffer;
    effect.begin = operand.begin;
    effect.end = operand.end;
    effect.reads = info.operand_access[i] != Access::kWrite;
    effect.writes = info.operand_access[i] != Access::kRead;
    const BufferKind kind = program.buffers[operand.buffer].kind;
    effect.own_rows = IsRowShare(instruction, kind);
    if (kind == BufferKind::kPairs && NamesExperts(instruction.opcode)) {
      effect.first_expert = instruction.imm[3];
      effect.last_expert = instruction.imm[4];
    }
    effect.rows = instruction.rows;
    effects.push_back(effect);
  }
  return effects;
}

bool RowsOverlap(const Effect& a, const Effect& b) {
  if (!a.own_rows || !b.own_rows) return true;
  return a.rows.step != b.rows.step || a.rows.first == b.rows.first;
}

bool Conflict(const Effect& a, const Effect& b) {
  return (a.writes || b.writes) && a.begin < b.end && b.begin < a.end && RowsOverlap(a, b) &&
         a.first_expert < b.last_expert && b.first_expert < a.last_expert;
}

}  // namespace megalith::program
