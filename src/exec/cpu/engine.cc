#include "exec/cpu/engine.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/affinity.h"
#include "base/clock.h"
#include "base/spin.h"
#include "exec/cpu/futex.h"
#include "exec/cpu/step_log.h"
#include "exec/cpu/worker.h"
#include "kernels/flush_denormals.h"

namespace megalith::exec {
namespace {

using cpu::ProgramState;
using cpu::WakeWord;
using cpu::Worker;
using cpu::WorkerShared;

/// Pauses of an idle worker before it yields, and yields before it sleeps: long enough to catch the
/// next token of the same generation, short enough that an idle engine uses no CPU.
constexpr std::uint32_t kIdleSpins = 1000;
constexpr std::uint32_t kIdleYields = 200;
/// The same for the host, which waits for a whole step.
constexpr std::uint32_t kHostSpins = 200;

template <typename Act>
class CpuEngine : public Executor {
 public:
  CpuEngine(std::unique_ptr<DeviceMemory> memory, const PackedWeights& weights,
            const kernels::KernelTable<Act>& kernels, CpuEngineOptions options)
      : Executor(std::move(memory)),
        options_(std::move(options)),
        exchanges_(options_.mailboxes),
        shared_{&device(),
                &weights,
                &kernels,
                &exchanges_,
                &failure_,
                &abandon_,
                options_.placement.oversubscribed ? 0 : SpinThenYield::kDefaultMaxSpins,
                options_.prefetch,
                &options_.before_instruction} {
    for (std::size_t i = 0; i < device().num_programs(); ++i) {
      states_.push_back(std::make_unique<ProgramState>(device().program_memory(i)));
    }
  }

  ~CpuEngine() override {
    stop_.store(true, std::memory_order_relaxed);
    start_.Raise();
    for (std::thread& thread : threads_) thread.join();
  }

  /// Workers run until the destructor, also when this fails.
  Status Start() {
    const std::int32_t num_workers = device().program(0)->num_workers;
    std::vector<program::VerifiedProgram> programs;
    for (std::size_t i = 0; i < device().num_programs(); ++i) {
      programs.push_back(device().program(i));
    }
    for (std::int32_t i = 0; i < num_workers; ++i) {
      MEGALITH_ASSIGN_OR_RETURN(cpu::Scratch scratch, cpu::Scratch::Allocate(programs, i));
      workers_.push_back(std::make_unique<Worker<Act>>(i, shared_, std::move(scratch)));
    }
    KeepTrace();
    pinned_.resize(workers_.size());
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      threads_.emplace_back([this, i] { RunThread(i); });
    }
    for (SpinThenYield turn; num_ready_.load(std::memory_order_acquire) != num_workers;) {
      turn.Once();
    }
    for (Status& status : pinned_) MEGALITH_RETURN_IF_ERROR(std::move(status));
    return {};
  }

  void TraceEveryStep() override { step_log_.TraceEveryStep(); }
  program::Trace ReadTrace() const override { return step_log_.Read(rings_, device()); }

  std::string Describe() const override {
    const WorkerPlacement& placement = options_.placement;
    return fmt::format("cpu engine, {}, {} workers, {}{}", kernels::IsaName(options_.isa),
                       workers_.size(), placement.cpus.empty() ? "not pinned" : "pinned",
                       placement.description.empty() ? "" : ": " + placement.description);
  }

 protected:
  Result<StepOutput> RunStep(const StepInput& input) override {
    if (abandon_.load(std::memory_order_relaxed)) {
      return Fail(ErrorCode::kInternal, "the engine has stopped: an earlier step was abandoned");
    }
    MEGALITH_ASSIGN_OR_RETURN(const std::size_t index, device().BeginStep(input));
    ProgramState& state = *states_[index];
    state.traced =
        step_log_.Begin(static_cast<std::int32_t>(index), longest_stream_[index], input, rings_);
    Status status = RunWorkers(state);
    if (status && state.traced) step_log_.End();
    device().FinishStep(index, status.has_value());
    if (!status) return tl::unexpected<Error>(std::move(status).error());
    return device().Output(index);
  }

 private:
  /// Room for the records asked for, and for two steps however long they are.
  void KeepTrace() {
    std::size_t num_records = options_.trace_records;
    for (std::size_t i = 0; i < device().num_programs(); ++i) {
      std::size_t& longest = longest_stream_.emplace_back(0);
      for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
        longest = std::max(longest, cpu::InstructionsInStep(*device().program(i), worker));
      }
      if (num_records > 0) num_records = std::max(num_records, 2 * longest);
    }
    for (auto& worker : workers_) {
      worker->KeepTrace(num_records);
      rings_.push_back(&worker->trace());
    }
    step_log_ = cpu::StepLog(num_records == 0 ? 0 : workers_.size());
  }

  /// Publishes the step, waits until every worker has finished it.
  Status RunWorkers(ProgramState& state) {
    step_ = &state;
    const std::uint32_t finished = finished_.Load();
    num_finished_.store(0, std::memory_order_relaxed);
    for (const std::uint32_t counter : state.targets.host_counters()) {
      state.counters.Signal(counter, 1);
    }
    start_.Raise();
    if (!AwaitFinish(finished)) return Abandon(state);
    const std::uint32_t done = state.targets.done_counter();
    const std::int64_t want = state.targets.Done(state.epoch);
    ++state.epoch;
    if (done == program::kNone || state.counters.Load(done) != want) {
      return Fail(ErrorCode::kInternal,
                  "all workers have finished, but the step's end counter has "
                  "{}, want {}",
                  done == program::kNone ? 0 : state.counters.Load(done), want);
    }
    MEGALITH_RETURN_IF_ERROR(failure_.Take(state.program));
    exchanges_.FinishStep(state.program);
    return {};
  }

  /// False if the time limit passed first.
  bool AwaitFinish(std::uint32_t seen) {
    for (std::uint32_t i = 0; i < kHostSpins && finished_.Load() == seen; ++i) CpuPause();
    if (options_.step_timeout_ms == 0) {
      while (finished_.Load() == seen) finished_.Sleep(seen, -1);
      return true;
    }
    const std::int64_t deadline = NowNs() + options_.step_timeout_ms * 1'000'000;
    while (finished_.Load() == seen) {
      const std::int64_t left = deadline - NowNs();
      if (left <= 0) return false;
      finished_.Sleep(seen, left);
    }
    return true;
  }

  /// Tells the workers to leave the step, and says where each of them was.
  Status Abandon(const ProgramState& state) {
    std::string report;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      report += "; " + DescribePosition(state, i);
    }
    abandon_.store(true, std::memory_order_relaxed);
    return Fail(ErrorCode::kInternal, "step not finished within {} ms{}", options_.step_timeout_ms,
                report);
  }

  std::string DescribePosition(const ProgramState& state, std::size_t worker) const {
    const cpu::WorkerPosition& position = workers_[worker]->position();
    const std::int64_t visit_index = position.visit.load(std::memory_order_relaxed);
    if (visit_index < 0) return fmt::format("worker {} has not begun", worker);
    const program::Visit& visit = state.program.visits[static_cast<std::size_t>(visit_index)];
    const program::Segment& segment = state.program.segments[visit.segment];
    const auto instruction =
        static_cast<std::size_t>(position.instruction.load(std::memory_order_relaxed));
    const auto& instructions = segment.streams[worker].instructions;
    if (instruction >= instructions.size()) return fmt::format("worker {} between visits", worker);
    const std::string where = fmt::format("worker {} visit {} ({}) instruction {} ({})", worker,
                                          visit_index, segment.name, instruction,
                                          program::Info(instructions[instruction].opcode).name);
    const std::uint32_t counter = position.wait_counter.load(std::memory_order_relaxed);
    const std::int32_t source = position.wait_rank.load(std::memory_order_relaxed);
    if (source >= 0) {
      return fmt::format("{} waits for rank {} to publish {} of mailbox {}", where, source,
                         position.want.load(std::memory_order_relaxed),
                         instructions[instruction].imm[0]);
    }
    if (counter == program::kNone) return where + " running";
    return fmt::format("{} waits for counter {}, have {}, want {}", where,
                       state.program.counters[counter].name, state.counters.Load(counter),
                       position.want.load(std::memory_order_relaxed));
  }

  void RunThread(std::size_t index) {
    if (!options_.placement.cpus.empty()) {
      pinned_[index] = PinThisThread(options_.placement.cpus[index]);
    }
    const kernels::ScopedFlushDenormals flush;
    const std::uint32_t first = start_.Load();
    num_ready_.fetch_add(1, std::memory_order_release);
    std::uint32_t seen = first;
    while (true) {
      AwaitStart(index, seen);
      if (stop_.load(std::memory_order_relaxed)) return;
      ++seen;
      if (!workers_[index]->RunStep(*step_)) {
        while (!stop_.load(std::memory_order_relaxed)) start_.Sleep(seen, -1);
        return;
      }
      // The last one to finish wakes the host. acq_rel: it hands over what all others have written.
      const std::size_t before = num_finished_.fetch_add(1, std::memory_order_acq_rel);
      if (before + 1 == workers_.size()) finished_.Raise();
    }
  }

  /// Until the host raises start_ above `seen`.
  void AwaitStart(std::size_t index, std::uint32_t seen) {
    const bool spins = !options_.placement.oversubscribed;
    SpinThenYield turn(spins ? kIdleSpins : 0);
    for (std::uint32_t yields = 0; start_.Load() == seen && yields < kIdleYields;) {
      if (options_.prefetch) workers_[index]->Prefetch();
      if (turn.Once()) ++yields;
    }
    while (start_.Load() == seen) start_.Sleep(seen, -1);
  }

  CpuEngineOptions options_;
  ExchangePort exchanges_;
  cpu::StepFailure failure_;
  std::atomic<bool> abandon_{false};
  std::atomic<bool> stop_{false};
  WorkerShared<Act> shared_;
  std::vector<std::unique_ptr<ProgramState>> states_;
  std::vector<std::unique_ptr<Worker<Act>>> workers_;
  std::vector<const cpu::TraceRing*> rings_;  // of workers_
  std::vector<std::size_t> longest_stream_;   // per Program: a worker's most instructions a step
  cpu::StepLog step_log_{0};
  std::vector<Status> pinned_;  // per worker; written before num_ready_ counts it
  std::atomic<std::int32_t> num_ready_{0};
  // Host to workers: step_ is written before start_ is raised and not again before all have
  // finished. Workers to host: num_finished_, then finished_.
  ProgramState* step_ = nullptr;
  WakeWord start_;
  std::atomic<std::size_t> num_finished_{0};
  WakeWord finished_;
  std::vector<std::thread> threads_;
};

template <typename Act>
Result<std::unique_ptr<Executor>> MakeEngine(std::unique_ptr<DeviceMemory> memory,
                                             const PackedWeights& weights,
                                             const kernels::KernelTable<Act>& kernels,
                                             CpuEngineOptions options) {
  auto engine =
      std::make_unique<CpuEngine<Act>>(std::move(memory), weights, kernels, std::move(options));
  MEGALITH_RETURN_IF_ERROR(engine->Start());
  return engine;
}

}  // namespace

Result<std::unique_ptr<Executor>> MakeCpuEngine(std::vector<program::VerifiedProgram> programs,
                                                const PackedWeights& weights,
                                                CpuEngineOptions options) {
  if (!kernels::IsaSupported(options.isa)) {
    return Fail(ErrorCode::kUnsupported, "this CPU cannot run the {} path",
                kernels::IsaName(options.isa));
  }
  MEGALITH_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory,
                            DeviceMemory::Create(std::move(programs), options.huge_pages));
  for (std::size_t i = 0; i < memory->num_programs(); ++i) {
    MEGALITH_RETURN_IF_ERROR(weights.CheckFits(*memory->program(i)));
  }
  const program::Program& program = *memory->program(0);
  MEGALITH_RETURN_IF_ERROR(CheckMailboxes(memory->programs(), options.mailboxes));
  const std::size_t num_cpus = options.placement.cpus.size();
  if (num_cpus != 0 && num_cpus != static_cast<std::size_t>(program.num_workers)) {
    return Fail(ErrorCode::kUsage, "{} CPUs given for {} workers", num_cpus, program.num_workers);
  }
  if (program.activation_dtype == DType::kF32) {
    if (options.isa != kernels::Isa::kPortable) {
      return Fail(ErrorCode::kUnsupported,
                  "f32 activations run on the portable path only, not on {}",
                  kernels::IsaName(options.isa));
    }
    return MakeEngine(std::move(memory), weights, kernels::Float32Kernels(), std::move(options));
  }
  return MakeEngine(std::move(memory), weights, kernels::Bf16Kernels(options.isa),
                    std::move(options));
}

}  // namespace megalith::exec
