#pragma once

#include <cstdint>

#include "exec/device_memory.h"
#include "exec/instruction_view.h"

namespace megalith::exec {

/// The recurrent states that a `kda` instruction reads and writes for one run: 0 is the one of the
/// sequence's length, updated by the rows that are certain; i is written by the i-th draft.
template <typename Act>
class RecurrentStates {
 public:
  RecurrentStates(const InstructionView& view, const DeviceMemory& device, const Run& run)
      : view_(view), slot_(run.slot), current_(device.sequences().StateIndex(run.slot)) {}

  float* state(std::int32_t index) const { return At<float>(7, index); }
  Act* history(std::int32_t index) const { return At<Act>(8, index); }

 private:
  template <typename T>
  T* At(std::size_t operand, std::int32_t index) const {
    return view_.memory.SlotState<T>(view_.operand(operand), slot_, view_.visit.state_index,
                                     (current_ + index) % view_.program.state.states_per_slot);
  }

  const InstructionView& view_;
  std::int32_t slot_;
  std::int32_t current_;
};

}  // namespace megalith::exec
