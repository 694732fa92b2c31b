#include "trace/testing/nano_trace.h"

#include <algorithm>
#include <map>
#include <utility>

namespace megalith::trace::testing {

using program::CounterScope;
using program::Instruction;
using program::kNone;
using program::Opcode;

program::TraceStep SimulateStep(const program::Program& program,
                                const std::vector<std::int64_t>& work_ns) {
  constexpr std::int64_t kBegin = 1000;
  program::TraceStep step;
  step.info.begin = kBegin;
  step.info.rows = 1;
  step.info.logit_rows = 1;
  step.info.runs = 1;
  step.info.context_rows = 5;
  step.workers.resize(work_ns.size());
  struct Place {
    std::size_t visit = 0;
    std::size_t instruction = 0;
    std::int64_t now = kBegin + 5;
  };
  struct Count {
    std::int64_t signals = 0;
    std::int64_t latest = 0;
  };
  std::vector<Place> places(work_ns.size());
  std::map<std::pair<std::size_t, std::uint32_t>, Count> counts;  // by visit and counter
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t worker = 0; worker < places.size(); ++worker) {
      Place& place = places[worker];
      while (place.visit < program.visits.size()) {
        const program::Visit& visit = program.visits[place.visit];
        const auto& instructions = program.segments[visit.segment].streams[worker].instructions;
        if (place.instruction == instructions.size()) {
          ++place.visit;
          place.instruction = 0;
          continue;
        }
        const Instruction& instruction = instructions[place.instruction];
        std::int64_t ready = place.now;
        if (instruction.wait_counter != kNone) {
          const CounterScope scope = program.counters[instruction.wait_counter].scope;
          const bool inside = scope == CounterScope::kSegment ||
                              (scope == CounterScope::kProgram && place.visit > 0);
          const std::size_t of = place.visit - (scope == CounterScope::kProgram ? 1 : 0);
          if (inside) {
            const Count& count = counts[{of, instruction.wait_counter}];
            if (count.signals < instruction.wait_amount) break;
            if (count.latest > place.now) ready = count.latest + kHandOverNs;
          }
        }
        const bool untimed = instruction.opcode == Opcode::kFetch ||
                             instruction.opcode == Opcode::kFetchNext ||
                             instruction.opcode == Opcode::kWait;
        const std::int64_t end = ready + (untimed ? 0 : work_ns[worker]);
        step.workers[worker].push_back(
            {place.now, ready, end, static_cast<std::uint32_t>(place.visit),
             static_cast<std::uint32_t>(place.instruction),
             instruction.trip == program::Register::kActiveExperts ? 4U : 1U, 0});
        if (instruction.signal_counter != kNone) {
          Count& count = counts[{place.visit, instruction.signal_counter}];
          count.signals += instruction.signal_amount;
          count.latest = std::max(count.latest, end);
        }
        place.now = end;
        ++place.instruction;
        moved = true;
      }
    }
  }
  for (const Place& place : places) step.info.end = std::max(step.info.end, place.now + 20);
  return step;
}

}  // namespace megalith::trace::testing
