#pragma once

#include <limits>
#include <vector>

#include "program/program.h"

namespace megalith::program {

/// One access of an instruction: columns of a buffer, for all rows or for a share of them.
struct Effect {
  std::uint32_t buffer = kNone;
  std::int64_t begin = 0;  ///< columns
  std::int64_t end = 0;
  bool reads = false;
  bool writes = false;
  bool own_rows = false;  ///< only rows first, first + step, ... of `rows`
  RowSet rows;
  // Of a buffer of pairs: only those of experts [first, last).
  std::int64_t first_expert = 0;
  std::int64_t last_expert = std::numeric_limits<std::int64_t>::max();
};

/// What an instruction reads and writes, from the opcode table and its operands. Both the compiler
/// (to place waits) and the verifier (to check them) start from this.
std::vector<Effect> Effects(const Program& program, const Instruction& instruction);

/// Whether two accesses to the same buffer touch a common element and one of them writes.
bool Conflict(const Effect& a, const Effect& b);

/// Whether the two touch a common row. Row shares of the same step and another first are disjoint.
bool RowsOverlap(const Effect& a, const Effect& b);

}  // namespace megalith::program
