#include "program/compile/split_phases.h"

#include <algorithm>
#include <compare>
#include <map>
#include <utility>

namespace megalith::program {
namespace {

/// An operation inside one phase. Streams of different workers hold the same operations in the same
/// order, but some may lack some of them.
struct Operation {
  Opcode opcode = Opcode::kWait;
  std::uint32_t tensor = kNone;
  bool transposed = false;  ///< the two halves of kv_b_proj are two operations

  friend auto operator<=>(const Operation&, const Operation&) = default;
};

Operation OperationOf(const SegmentBuilder& builder, std::size_t worker,
                      const Instruction& instruction) {
  if (instruction.tile == kNone) return {instruction.opcode, kNone, false};
  const Tile& tile = builder.segment.streams[worker].tiles[instruction.tile];
  return {instruction.opcode, tile.tensor, tile.transposed};
}

/// The operations of one phase, one list per worker -> one order that agrees with all lists.
std::vector<Operation> Merge(std::vector<std::vector<Operation>> lists) {
  std::vector<Operation> order;
  const auto is_ahead = [&lists](const Operation& operation) {
    return std::all_of(lists.begin(), lists.end(), [&](const std::vector<Operation>& list) {
      const auto found = std::find(list.begin(), list.end(), operation);
      return found == list.end() || found == list.begin();
    });
  };
  while (true) {
    const Operation* next = nullptr;
    for (const auto& list : lists) {
      if (list.empty()) continue;
      if (next == nullptr) next = &list.front();  // lists that contradict each other: any order
      if (is_ahead(list.front())) {
        next = &list.front();
        break;
      }
    }
    if (next == nullptr) return order;
    order.push_back(*next);
    for (auto& list : lists) std::erase(list, order.back());
  }
}

}  // namespace

void SplitPhasesByOperation(SegmentBuilder& builder) {
  const std::vector<std::string> old_names = builder.phase_names();
  std::vector<std::string> names;
  std::vector<std::size_t> next(builder.streams.size(), 0);
  for (std::size_t phase = 0; phase < old_names.size(); ++phase) {
    std::vector<std::vector<Operation>> lists(builder.streams.size());
    std::vector<std::size_t> first = next;
    for (std::size_t worker = 0; worker < builder.streams.size(); ++worker) {
      const auto& stream = builder.streams[worker];
      std::size_t& at = next[worker];
      for (; at < stream.size() && stream[at].phase == static_cast<std::int32_t>(phase); ++at) {
        const Operation operation = OperationOf(builder, worker, stream[at].instruction);
        auto& list = lists[worker];
        if (std::find(list.begin(), list.end(), operation) == list.end()) list.push_back(operation);
      }
    }
    std::map<Operation, std::int32_t> new_phases;
    for (const Operation& operation : Merge(std::move(lists))) {
      new_phases[operation] = static_cast<std::int32_t>(names.size());
      names.push_back(new_phases.size() == 1
                          ? old_names[phase]
                          : old_names[phase] + "_" + std::to_string(new_phases.size()));
    }
    for (std::size_t worker = 0; worker < builder.streams.size(); ++worker) {
      auto& stream = builder.streams[worker];
      for (std::size_t i = first[worker]; i < next[worker]; ++i) {
        stream[i].phase = new_phases.at(OperationOf(builder, worker, stream[i].instruction));
      }
      // An operation that a stream came back to later joins its first part.
      std::stable_sort(
          stream.begin() + static_cast<std::ptrdiff_t>(first[worker]),
          stream.begin() + static_cast<std::ptrdiff_t>(next[worker]),
          [](const PhasedInstruction& a, const PhasedInstruction& b) { return a.phase < b.phase; });
    }
  }
  builder.set_phase_names(std::move(names));
}

}  // namespace megalith::program
