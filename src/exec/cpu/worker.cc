#include "exec/cpu/worker.h"

#include <algorithm>

#include "base/spin.h"
#include "exec/cpu/instructions.h"
#include "exec/route_plan.h"
#include "program/exchange.h"

namespace megalith::exec::cpu {

using program::Instruction;
using program::kNone;
using program::Opcode;
using program::Stream;
using program::Tile;
using program::Visit;

Status StepFailure::Take(const program::Program& program) {
  if (!IsSet()) return {};
  const Visit& visit = program.visits[static_cast<std::size_t>(visit_)];
  const program::Segment& segment = program.segments[visit.segment];
  const Instruction& instruction = segment.streams[static_cast<std::size_t>(worker_)]
                                       .instructions[static_cast<std::size_t>(instruction_)];
  const Status status =
      Fail(ErrorCode::kInternal, "visit {} ({}), worker {}, instruction {} ({}): {}", visit_,
           segment.name, worker_, instruction_, program::Info(instruction.opcode).name, reason_);
  set_.store(false, std::memory_order_relaxed);
  claimed_.store(false, std::memory_order_relaxed);
  return status;
}

template <typename Act>
bool Worker<Act>::RunStep(ProgramState& state) {
  const auto num_visits = static_cast<std::int64_t>(state.program.visits.size());
  trace_.BeginStep(state.traced, LinesAsked());
  for (std::int64_t visit = 0; visit < num_visits; ++visit) {
    if (!RunVisit(state, visit)) return false;
  }
  return true;
}

template <typename Act>
bool Worker<Act>::RunVisit(ProgramState& state, std::int64_t visit_index) {
  const program::Program& program = state.program;
  const Visit& visit = program.visits[static_cast<std::size_t>(visit_index)];
  const Stream& stream = program.segments[visit.segment].streams[static_cast<std::size_t>(index_)];
  position_.visit.store(visit_index, std::memory_order_relaxed);
  for (std::size_t i = 0; i < stream.instructions.size(); ++i) {
    const Instruction& instruction = stream.instructions[i];
    const auto instruction_index = static_cast<std::int64_t>(i);
    position_.instruction.store(instruction_index, std::memory_order_relaxed);
    if (*shared_.before_instruction) {
      (*shared_.before_instruction)(index_, visit_index, instruction_index);
    }
    if (instruction.wait_counter != kNone && !Wait(state, visit_index, instruction)) return false;
    const bool is_fetch =
        instruction.opcode == Opcode::kFetch || instruction.opcode == Opcode::kFetchNext;
    if (is_fetch) {
      Request(state, visit_index, instruction);
    } else if (!shared_.failure->IsSet()) {
      const InstructionView view{program, visit,        stream,          instruction,
                                 index_,  state.memory, *shared_.weights};
      if (instruction.opcode == Opcode::kMatmul) queue_.Consume(view.Panels());
      if (instruction.opcode == Opcode::kExpertDown) expert_queue_.Clear();
      const char* failure = program::IsExchange(instruction.opcode)
                                ? Exchange(view)
                                : Execute(view, *shared_.kernels, shared_.device, scratch_);
      if (failure != nullptr) shared_.failure->Set(failure, index_, visit_index, instruction_index);
      if (instruction.opcode == Opcode::kExpertGateUp) RequestExpertDown(view);
    }
    // Before the signal: the next visit may change it.
    const std::int64_t trip = shared_.device->reg(instruction.trip);
    if (instruction.signal_counter != kNone) {
      state.counters.Signal(instruction.signal_counter, instruction.signal_amount);
    }
    if (is_fetch || instruction.opcode == Opcode::kWait) {
      trace_.FinishUntimed(visit_index, instruction_index, LinesAsked());
    } else {
      trace_.Finish(visit_index, instruction_index, trip, LinesAsked());
    }
  }
  return true;
}

template <typename Act>
bool Worker<Act>::Wait(ProgramState& state, std::int64_t visit_index,
                       const Instruction& instruction) {
  const std::int64_t want = state.targets.Wait(instruction, visit_index, state.epoch);
  const std::uint32_t counter = instruction.wait_counter;
  if (state.counters.Load(counter) >= want) return true;
  position_.want.store(want, std::memory_order_relaxed);
  position_.wait_counter.store(counter, std::memory_order_relaxed);
  SpinThenYield turn(shared_.max_spins);
  while (state.counters.Load(counter) < want) {
    if (shared_.prefetch) Prefetch();
    if (turn.Once() && shared_.abandon->load(std::memory_order_relaxed)) return false;
  }
  position_.wait_counter.store(kNone, std::memory_order_relaxed);
  trace_.WaitOver();
  return true;
}

/// A receive that waits spends the time as other waits do.
template <typename Act>
const char* Worker<Act>::Exchange(const InstructionView& view) {
  bool waited = false;
  const char* failure = shared_.exchanges->Run(view, *shared_.device, [&] {
    if (!waited) {
      waited = true;
      position_.want.store(static_cast<std::int64_t>(shared_.exchanges->Sequence(view)),
                           std::memory_order_relaxed);
      position_.wait_rank.store(view.instruction.imm[2], std::memory_order_relaxed);
    }
    if (shared_.prefetch) Prefetch();
    return !shared_.abandon->load(std::memory_order_relaxed) && !shared_.failure->IsSet();
  });
  if (waited) {
    position_.wait_rank.store(-1, std::memory_order_relaxed);
    trace_.WaitOver();
  }
  return failure;
}

template <typename Act>
void Worker<Act>::Request(const ProgramState& state, std::int64_t visit_index,
                          const Instruction& instruction) {
  const program::Program& program = state.program;
  const auto worker = static_cast<std::size_t>(index_);
  const Visit* visit = &program.visits[static_cast<std::size_t>(visit_index)];
  const Stream* stream = &program.segments[visit->segment].streams[worker];
  std::uint32_t tile_index = instruction.tile;
  if (instruction.opcode == Opcode::kFetchNext) {
    const std::size_t next = static_cast<std::size_t>(visit_index + 1) % program.visits.size();
    visit = &program.visits[next];
    stream = &program.segments[visit->segment].streams[worker];
    const auto entry = static_cast<std::size_t>(instruction.imm[0]);
    if (entry >= stream->prologue.size()) return;  // the next visit has fewer tiles than slots
    tile_index = stream->prologue[entry].tile;
  }
  const Tile& tile = stream->tiles[tile_index];
  // Which expert will be read is not known this early.
  if (program.tensors[tile.tensor].num_experts > 0) return;
  queue_.Push(shared_.weights->WorkerArena(index_) + visit->weight_base[worker] + tile.offset,
              std::min(tile.bytes, program.store.slot_bytes));
}

/// The down projection waits for all workers' activations, and by now its experts are known.
template <typename Act>
void Worker<Act>::RequestExpertDown(const InstructionView& gate_up) {
  const auto down =
      std::find_if(gate_up.stream.instructions.begin(), gate_up.stream.instructions.end(),
                   [](const Instruction& other) { return other.opcode == Opcode::kExpertDown; });
  if (down == gate_up.stream.instructions.end()) return;
  const Tile& tile = gate_up.stream.tiles[down->tile];
  const RoutePlan plan = RoutePlan::FromColumns(
      gate_up.Rows<std::int32_t>(1).data, gate_up.instruction.imm[0], gate_up.OperandColumns(1));
  const program::Store& store = gate_up.program.store;
  std::int64_t left = store.num_slots * store.slot_bytes;
  const std::int64_t num_active = shared_.device->reg(program::Register::kActiveExperts);
  for (std::int64_t active = 0; active < num_active && left > 0; ++active) {
    if (!gate_up.IsOwnExpert(plan.Expert(active))) continue;
    const std::int64_t bytes = std::min(tile.bytes, left);
    expert_queue_.Push(gate_up.TileAddress(tile, plan.Expert(active)), bytes);
    left -= bytes;
  }
}

template class Worker<Bf16>;
template class Worker<float>;

}  // namespace megalith::exec::cpu
