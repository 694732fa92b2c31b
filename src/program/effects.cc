#include "program/effects.h"

namespace megalith::program {

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
    // Rows of another kind than those counted are gathered, any of them. Rows of a step have
    // distinct positions, so a row's cache entry is its own.
    const BufferKind kind = program.buffers[operand.buffer].kind;
    effect.own_rows =
        info.scope == RowScope::kOwnRows && (kind == RowsOf(instruction.trip) || IsState(kind));
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
  return (a.writes || b.writes) && a.begin < b.end && b.begin < a.end && RowsOverlap(a, b);
}

}  // namespace megalith::program
