#include "program/compile/fetch.h"

#include <algorithm>

namespace megalith::program {

void ScheduleFetches(const Program& program, Stream& stream) {
  const auto slots = static_cast<std::size_t>(program.store.num_slots);
  std::vector<std::uint32_t> order;  // tiles in order of use
  for (const Instruction& instruction : stream.instructions) {
    if (instruction.opcode == Opcode::kMatmul) order.push_back(instruction.tile);
  }
  for (std::size_t i = 0; i < std::min(slots, order.size()); ++i) {
    stream.prologue.push_back({order[i], static_cast<std::uint32_t>(i)});
  }

  std::vector<Instruction> scheduled;
  const auto fetch_next_visit = [&scheduled](std::size_t slot) {
    Instruction fetch;
    fetch.opcode = Opcode::kFetchNext;
    fetch.imm[0] = static_cast<std::int32_t>(slot);
    scheduled.push_back(fetch);
  };
  // Slots this visit never uses can serve the next one from the start.
  for (std::size_t slot = order.size(); slot < slots; ++slot) fetch_next_visit(slot);
  std::size_t consumed = 0;
  for (Instruction instruction : stream.instructions) {
    if (instruction.opcode != Opcode::kMatmul) {
      scheduled.push_back(instruction);
      continue;
    }
    const std::size_t slot = consumed % slots;
    instruction.slot = static_cast<std::uint32_t>(slot);
    instruction.releases_slot = true;
    scheduled.push_back(instruction);
    if (consumed + slots < order.size()) {
      Instruction fetch;
      fetch.opcode = Opcode::kFetch;
      fetch.tile = order[consumed + slots];
      fetch.slot = static_cast<std::uint32_t>(slot);
      scheduled.push_back(fetch);
    } else {
      fetch_next_visit(slot);
    }
    ++consumed;
  }
  stream.instructions = std::move(scheduled);
}

void ScheduleFetchesInPlace(Stream& stream) {
  std::vector<Instruction> scheduled;
  for (Instruction instruction : stream.instructions) {
    if (instruction.opcode == Opcode::kMatmul) {
      Instruction fetch;
      fetch.opcode = Opcode::kFetch;
      fetch.tile = instruction.tile;
      fetch.slot = instruction.slot = 0;
      scheduled.push_back(fetch);
      instruction.releases_slot = true;
    }
    scheduled.push_back(instruction);
  }
  stream.instructions = std::move(scheduled);
}

}  // namespace megalith::program
