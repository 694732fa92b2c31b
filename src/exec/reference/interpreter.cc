#include "exec/reference/interpreter.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "exec/counter_targets.h"
#include "exec/reference/instructions.h"
#include "kernels/flush_denormals.h"

namespace megalith::exec {
namespace {

using program::Instruction;
using program::kNone;
using program::Program;
using program::Stream;
using program::Visit;

/// How far one worker has come in the step.
struct WorkerPosition {
  std::size_t visit = 0;
  std::size_t instruction = 0;
};

/// One Program and its counters, which go on from step to step.
struct ProgramState {
  explicit ProgramState(const Program& program)
      : targets(program), counters(program.counters.size(), 0) {}
  CounterTargets targets;
  std::vector<std::int64_t> counters;
  std::int64_t epoch = 0;
};

template <typename Act>
class Interpreter : public Executor {
 public:
  Interpreter(std::unique_ptr<DeviceMemory> memory, const PackedWeights& weights,
              ReferenceOptions options)
      : Executor(std::move(memory)),
        weights_(weights),
        options_(std::move(options)),
        random_(options_.interleaving_seed),
        exchanges_(options_.mailboxes) {
    for (std::size_t i = 0; i < device().num_programs(); ++i) {
      states_.emplace_back(*device().program(i));
    }
  }

  std::string Describe() const override {
    return fmt::format(
        "reference interpreter, {} workers in turn, {}", device().program(0)->num_workers,
        options_.numerics.order == kernels::DotOrder::kSplitPairs ? "split pairs" : "joined pairs");
  }

 protected:
  Result<StepOutput> RunStep(const StepInput& input) override {
    MEGALITH_ASSIGN_OR_RETURN(const std::size_t index, device().BeginStep(input));
    const kernels::ScopedFlushDenormals flush;
    Status status = RunWorkers(index);
    device().FinishStep(index, status.has_value());
    if (!status) {
      states_[index] = ProgramState(*device().program(index));  // counters of a half-run step
      return tl::unexpected<Error>(std::move(status).error());
    }
    return device().Output(index);
  }

 private:
  Status RunWorkers(std::size_t index) {
    const Program& program = *device().program(index);
    ProgramState& state = states_[index];
    for (const std::uint32_t counter : state.targets.host_counters()) ++state.counters[counter];
    std::vector<std::int32_t> turns(static_cast<std::size_t>(program.num_workers));
    std::iota(turns.begin(), turns.end(), 0);
    std::vector<WorkerPosition> positions(turns.size());
    bool progress = true;
    while (progress) {
      progress = false;
      if (options_.interleaving_seed != 0) std::shuffle(turns.begin(), turns.end(), random_);
      for (const std::int32_t worker : turns) {
        MEGALITH_ASSIGN_OR_RETURN(
            const bool moved,
            RunUntilBlocked(index, worker, &positions[static_cast<std::size_t>(worker)]));
        progress |= moved;
      }
    }
    MEGALITH_RETURN_IF_ERROR(CheckFinished(program, state, positions));
    ++state.epoch;
    exchanges_.FinishStep(program);
    return {};
  }

  /// Runs the worker until it has to wait or has finished the step; says whether it ran anything.
  Result<bool> RunUntilBlocked(std::size_t index, std::int32_t worker, WorkerPosition* position) {
    const Program& program = *device().program(index);
    ProgramState& state = states_[index];
    bool moved = false;
    while (position->visit < program.visits.size()) {
      const Visit& visit = program.visits[position->visit];
      const Stream& stream =
          program.segments[visit.segment].streams[static_cast<std::size_t>(worker)];
      if (position->instruction == stream.instructions.size()) {
        ++position->visit;
        position->instruction = 0;
        continue;
      }
      const Instruction& instruction = stream.instructions[position->instruction];
      if (instruction.wait_counter != kNone &&
          state.counters[instruction.wait_counter] < Target(state, *position, instruction)) {
        return moved;
      }
      const ProgramMemory& memory = device().program_memory(index);
      const InstructionView view{program, visit, stream, instruction, worker, memory, weights_};
      MEGALITH_RETURN_IF_ERROR(
          reference::Execute<Act>(view, &device(), &exchanges_, options_.numerics));
      if (options_.observer &&
          !options_.observer({static_cast<std::int64_t>(position->visit), worker,
                              static_cast<std::int64_t>(position->instruction), memory})) {
        return Fail(ErrorCode::kCancelled, "stopped after visit {}, worker {}, instruction {}",
                    position->visit, worker, position->instruction);
      }
      if (instruction.signal_counter != kNone) {
        state.counters[instruction.signal_counter] += instruction.signal_amount;
      }
      ++position->instruction;
      moved = true;
    }
    return moved;
  }

  static std::int64_t Target(const ProgramState& state, const WorkerPosition& position,
                             const Instruction& instruction) {
    return state.targets.Wait(instruction, static_cast<std::int64_t>(position.visit), state.epoch);
  }

  /// Every worker is past the last visit, and the host would know.
  static Status CheckFinished(const Program& program, const ProgramState& state,
                              const std::vector<WorkerPosition>& positions) {
    for (std::size_t worker = 0; worker < positions.size(); ++worker) {
      const WorkerPosition& position = positions[worker];
      if (position.visit == program.visits.size()) continue;
      const program::Segment& segment = program.segments[program.visits[position.visit].segment];
      const Instruction& instruction = segment.streams[worker].instructions[position.instruction];
      return Fail(ErrorCode::kInternal,
                  "no worker can go on: visit {} ({}), worker {}, instruction {} ({}) waits for "
                  "counter {}, have {}, want {}",
                  position.visit, segment.name, worker, position.instruction,
                  program::Info(instruction.opcode).name,
                  program.counters[instruction.wait_counter].name,
                  state.counters[instruction.wait_counter], Target(state, position, instruction));
    }
    const std::uint32_t done = state.targets.done_counter();
    if (done == kNone || state.counters[done] != state.targets.Done(state.epoch)) {
      return Fail(ErrorCode::kInternal,
                  "all workers have finished, but the step's end counter has "
                  "{}, want {}",
                  done == kNone ? 0 : state.counters[done], state.targets.Done(state.epoch));
    }
    return {};
  }

  const PackedWeights& weights_;
  ReferenceOptions options_;
  std::mt19937_64 random_;
  ExchangePort exchanges_;
  std::vector<ProgramState> states_;
};

}  // namespace

Result<std::unique_ptr<Executor>> MakeReferenceExecutor(
    std::vector<program::VerifiedProgram> programs, const PackedWeights& weights,
    ReferenceOptions options) {
  MEGALITH_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory,
                            DeviceMemory::Create(std::move(programs), HugePages::kOff));
  for (std::size_t i = 0; i < memory->num_programs(); ++i) {
    MEGALITH_RETURN_IF_ERROR(weights.CheckFits(*memory->program(i)));
  }
  MEGALITH_RETURN_IF_ERROR(CheckMailboxes(memory->programs(), options.mailboxes));
  std::unique_ptr<Executor> executor;
  if (memory->program(0)->activation_dtype == DType::kF32) {
    executor = std::make_unique<Interpreter<float>>(std::move(memory), weights, std::move(options));
  } else {
    executor = std::make_unique<Interpreter<Bf16>>(std::move(memory), weights, std::move(options));
  }
  return executor;
}

}  // namespace megalith::exec
