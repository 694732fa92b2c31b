// V4: the on-chip store. Simulates each worker's slots through every pair of consecutive visits:
// a visit begins with its prologue in the slots (put there by the visit before), requests only into
// empty slots, consumes each tile from the slot that holds it, and ends with the next visit's
// prologue requested.

#include <algorithm>

#include "program/dump.h"
#include "program/proofs.h"

namespace megalith::program {
namespace {

struct Held {
  std::uint32_t tile = kNone;  ///< kNone: empty
  bool of_next_visit = false;
};

class StoreProof {
 public:
  StoreProof(const Program& program, const SegmentPair& pair, std::size_t worker)
      : segment_(program.segments[pair.first]),
        stream_(segment_.streams[worker]),
        next_(program.segments[pair.second].streams[worker]),
        worker_(worker),
        slots_(static_cast<std::size_t>(program.store.num_slots)),
        requested_(next_.prologue.size(), false) {}

  Status Run() {
    MEGALITH_RETURN_IF_ERROR(Begin());
    std::vector<bool> consumed(stream_.tiles.size(), false);
    for (std::size_t i = 0; i < stream_.instructions.size(); ++i) {
      const Instruction& instruction = stream_.instructions[i];
      switch (instruction.opcode) {
        case Opcode::kFetch:
          MEGALITH_RETURN_IF_ERROR(Request(i, instruction.slot, {instruction.tile, false}));
          break;
        case Opcode::kFetchNext:
          MEGALITH_RETURN_IF_ERROR(RequestNext(i, instruction));
          break;
        case Opcode::kMatmul: {
          Held& held = slots_[instruction.slot];
          if (held.of_next_visit || held.tile != instruction.tile) {
            return Violation(i, "slot {} does not hold tile {}", instruction.slot,
                             instruction.tile);
          }
          if (!instruction.releases_slot) {
            return Violation(i, "slot {} is never released", instruction.slot);
          }
          if (consumed[instruction.tile]) {
            return Violation(i, "tile {} is consumed twice", instruction.tile);
          }
          consumed[instruction.tile] = true;
          held = {};
          break;
        }
        default:
          if (instruction.releases_slot) return Violation(i, "releases a slot it does not hold");
      }
    }
    return End();
  }

 private:
  template <typename... Args>
  tl::unexpected<Error> Violation(std::size_t instruction, fmt::format_string<Args...> format,
                                  Args&&... args) const {
    return Fail(ErrorCode::kBadProgram, "V4: segment {} worker {} instruction {}: {}",
                segment_.name, worker_, instruction,
                fmt::format(format, std::forward<Args>(args)...));
  }

  Status Begin() {
    for (const PrologueEntry& entry : stream_.prologue) {
      MEGALITH_RETURN_IF_ERROR(Request(0, entry.slot, {entry.tile, false}));
    }
    return {};
  }

  Status Request(std::size_t instruction, std::uint32_t slot, Held held) {
    if (slots_[slot].tile != kNone) {
      return Violation(instruction, "slot {} still holds {}tile {} when tile {} is requested", slot,
                       slots_[slot].of_next_visit ? "the next visit's " : "", slots_[slot].tile,
                       held.tile);
    }
    slots_[slot] = held;
    return {};
  }

  /// Beyond the next visit's prologue the request is void: that visit is shorter.
  Status RequestNext(std::size_t index, const Instruction& instruction) {
    const auto entry = static_cast<std::size_t>(instruction.imm[0]);
    if (entry >= next_.prologue.size()) return {};
    if (requested_[entry]) return Violation(index, "prologue entry {} is requested twice", entry);
    requested_[entry] = true;
    return Request(index, next_.prologue[entry].slot, {next_.prologue[entry].tile, true});
  }

  Status End() const {
    const std::size_t last = stream_.instructions.size();
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].tile != kNone && !slots_[slot].of_next_visit) {
        return Violation(last, "slot {} still holds tile {} at the end", slot, slots_[slot].tile);
      }
    }
    const auto missing = std::find(requested_.begin(), requested_.end(), false);
    if (missing != requested_.end()) {
      return Violation(last, "prologue entry {} of the next visit is never requested",
                       missing - requested_.begin());
    }
    return {};
  }

  const Segment& segment_;
  const Stream& stream_;
  const Stream& next_;
  std::size_t worker_;
  std::vector<Held> slots_;
  std::vector<bool> requested_;
};

}  // namespace

Status ProveStore(const Program& program) {
  for (const SegmentPair& pair : ConsecutivePairs(program)) {
    for (std::size_t worker = 0; worker < static_cast<std::size_t>(program.num_workers); ++worker) {
      MEGALITH_RETURN_IF_ERROR(StoreProof(program, pair, worker).Run());
    }
  }
  return {};
}

}  // namespace megalith::program
