#include "bench/draft_costs.h"

#include <algorithm>
#include <memory>
#include <set>

#include "base/clock.h"
#include "bench/step_cost.h"
#include "bench/turns.h"
#include "engine/sequence.h"
#include "exec/device_memory.h"

namespace megalith::bench {
namespace {

constexpr int kTriedSteps = 4;

/// The one sequence, which all cases read on in turn.
class Reader {
 public:
  Reader(engine::Engine& engine, const DraftCostOptions& options)
      : options_(options), sequence_(engine, 0) {}

  std::int64_t position() const { return static_cast<std::int64_t>(sequence_.tokens().size()); }
  /// Steps of so many rows that fit behind the context.
  std::int64_t RoomAt(std::int64_t position, std::int32_t rows) const {
    const auto length = static_cast<std::int64_t>(options_.text.size());
    return std::min<std::int64_t>(length, sequence_.engine().max_positions()) - position - rows + 1;
  }

  bool HasRoomFor(int steps, std::int32_t rows) const {
    return position() >= options_.context && RoomAt(position(), rows) >= steps;
  }

  Status StartOver() {
    MEGALITH_RETURN_IF_ERROR(sequence_.Reset());
    const auto context = std::span(options_.text).first(static_cast<std::size_t>(options_.context));
    const auto report = [this](std::size_t done, std::size_t total) {
      if (options_.progress) options_.progress({"fill context", done, total, false});
    };
    MEGALITH_RETURN_IF_ERROR(sequence_.Append(context, {}, options_.cancel, report));
    return {};
  }

  /// One position further, whichever drafts are kept: all cases read the same text.
  Status Step(std::int32_t rows, std::int32_t proposals) {
    const std::size_t begin = sequence_.tokens().size();
    const auto tokens = std::span(options_.text).subspan(begin, static_cast<std::size_t>(rows));
    MEGALITH_ASSIGN_OR_RETURN(const exec::RunOutput output,
                              sequence_.Append(tokens, {{}, rows - 1, proposals}));
    if (output.num_accepted > 0) MEGALITH_RETURN_IF_ERROR(sequence_.Truncate(begin + 1));
    return {};
  }

  const exec::DeviceMemory& memory() const { return sequence_.engine().executor().memory(); }

 private:
  const DraftCostOptions& options_;
  engine::Sequence sequence_;
};

/// How all cases take their turns: the same number of steps, so that they read the same.
struct Turns {
  int steps = 0;
  bool is_short = false;  ///< less than kLongStepSeconds a step
};

class Runner {
 public:
  Runner(Reader& reader, const StepCost& cost, const Turns& turns, std::int32_t rows,
         std::int32_t proposals)
      : reader_(reader), cost_(cost), turns_(turns), rows_(rows), proposals_(proposals) {}

  /// Short steps begin behind the context in every turn, where attention costs the same for all;
  /// a few long ones do not get far.
  Result<Work> RunTurn() {
    if (turns_.is_short || !reader_.HasRoomFor(turns_.steps, rows_)) {
      MEGALITH_RETURN_IF_ERROR(reader_.StartOver());
    }
    if (turns_.is_short) MEGALITH_RETURN_IF_ERROR(reader_.Step(rows_, proposals_));
    std::int64_t experts = 0;
    std::int64_t positions = 0;
    const std::int64_t start = NowNs();
    for (int i = 0; i < turns_.steps; ++i) {
      positions += reader_.position();
      MEGALITH_RETURN_IF_ERROR(reader_.Step(rows_, proposals_));
      experts += reader_.memory().step_active_experts();
    }
    Work work;
    work.seconds = SecondsSince(start);
    work.items = turns_.steps;
    work.amount = turns_.steps * cost_.WeightBytes(rows_, 0.0) +
                  static_cast<double>(experts) * cost_.expert_bytes;
    measured_steps_ += turns_.steps;
    measured_experts_ += experts;
    measured_positions_ += positions;
    return work;
  }

  void Describe(DraftCost* result) const {
    result->steps_per_turn = turns_.steps;
    result->state_bytes = cost_.StateBytes(rows_, 0.0);
    if (measured_steps_ == 0) return;
    const auto steps = static_cast<double>(measured_steps_);
    const double experts = static_cast<double>(measured_experts_) / steps;
    if (cost_.num_moe_layers > 0) {
      result->experts_per_layer = experts / static_cast<double>(cost_.num_moe_layers);
    }
    result->weight_bytes = cost_.WeightBytes(rows_, experts);
    result->mean_positions = static_cast<double>(measured_positions_) / steps;
  }

 private:
  Reader& reader_;
  const StepCost cost_;
  const Turns turns_;
  const std::int32_t rows_;
  const std::int32_t proposals_;
  std::int64_t measured_steps_ = 0;
  std::int64_t measured_experts_ = 0;
  std::int64_t measured_positions_ = 0;
};

/// From the plain step.
Result<Turns> PlanTurns(Reader& reader, const DraftCostOptions& options) {
  const std::int32_t most_rows = *std::max_element(options.rows.begin(), options.rows.end());
  std::vector<double> seconds;
  for (int i = 0; i < kTriedSteps; ++i) {
    if (!reader.HasRoomFor(1, 1)) MEGALITH_RETURN_IF_ERROR(reader.StartOver());
    const std::int64_t start = NowNs();
    MEGALITH_RETURN_IF_ERROR(reader.Step(1, 0));
    seconds.push_back(SecondsSince(start));
  }
  const double step_seconds = Summarize(std::move(seconds)).median;
  const std::int64_t room = reader.RoomAt(options.context, most_rows) - 1;
  return Turns{StepsPerTurn(step_seconds, options.steps, room), step_seconds < kLongStepSeconds};
}

Status CheckOptions(const engine::Engine& engine, const exec::ExecutorLimits& limits,
                    const DraftCostOptions& options) {
  if (options.rows.empty()) return Fail(ErrorCode::kUsage, "rows: at least one number expected");
  std::int32_t most = 1;
  for (const std::int32_t rows : options.rows) {
    if (rows < 1 || rows > limits.max_drafts + 1) {
      return Fail(ErrorCode::kUsage,
                  "rows: 1 to {} expected, as the engine was loaded for, {} given",
                  limits.max_drafts + 1, rows);
    }
    most = std::max(most, rows);
  }
  // One step that is measured and one that warms up.
  const std::int64_t least = std::int64_t{options.context} + most + 1;
  const std::int64_t room = std::min<std::int64_t>(engine.max_positions(),
                                                   static_cast<std::int64_t>(options.text.size()));
  if (options.context < 1 || least > room) {
    return Fail(ErrorCode::kOutOfRange,
                "context: 1 to {} tokens expected, so that steps of {} rows fit behind it, {} "
                "asked for",
                room - most - 1, most, options.context);
  }
  return {};
}

/// The Program that the executor takes for such a step.
const program::VerifiedProgram& ProgramFor(const exec::DeviceMemory& memory, std::int32_t rows,
                                           std::int32_t proposals) {
  std::size_t index = 0;
  const auto fits = [&](const program::VerifiedProgram& program) {
    return program->max_rows >= rows && program->max_logit_rows >= rows &&
           program->draft.num_drafts >= proposals;
  };
  while (index + 1 < memory.num_programs() && !fits(memory.program(index))) ++index;
  return memory.program(index);
}

/// Without, then with proposals; the plain step first.
std::vector<DraftCost> Cases(const DraftCostOptions& options, std::int32_t most_proposals) {
  std::set<std::int32_t> all_rows(options.rows.begin(), options.rows.end());
  all_rows.insert(1);
  std::vector<DraftCost> cases;
  for (const std::int32_t rows : all_rows) {
    for (const std::int32_t proposals : std::set{0, std::min(rows - 1, most_proposals)}) {
      DraftCost what;
      what.rows = rows;
      what.proposals = proposals;
      cases.push_back(std::move(what));
    }
  }
  return cases;
}

double RatioOf(double value, double base) { return base > 0.0 ? value / base : 0.0; }

}  // namespace

Result<std::vector<DraftCost>> MeasureDraftCosts(engine::Engine& engine,
                                                 const DraftCostOptions& options) {
  const exec::ExecutorLimits& limits = engine.executor().limits();
  MEGALITH_RETURN_IF_ERROR(CheckOptions(engine, limits, options));
  std::vector<DraftCost> results = Cases(options, limits.max_next_drafts);
  Reader reader(engine, options);
  MEGALITH_ASSIGN_OR_RETURN(const Turns turns, PlanTurns(reader, options));
  std::vector<std::unique_ptr<Runner>> runners;
  std::vector<Contestant> contestants;
  for (DraftCost& result : results) {
    const program::VerifiedProgram& program =
        ProgramFor(reader.memory(), result.rows, result.proposals);
    result.program_hash = program.hash();
    const StepCost cost = CostOf(*program, engine.model().moe.num_experts_per_token);
    runners.push_back(std::make_unique<Runner>(reader, cost, turns, result.rows, result.proposals));
    if (!reader.HasRoomFor(1, result.rows)) MEGALITH_RETURN_IF_ERROR(reader.StartOver());
    MEGALITH_RETURN_IF_ERROR(reader.Step(result.rows, result.proposals));  // its first is slower
    contestants.push_back(
        {[runner = runners.back().get()] { return runner->RunTurn(); }, options.yardstick});
  }
  RoundsOptions rounds;
  rounds.num_rounds = options.repeats;
  rounds.max_rounds = 3 * options.repeats;
  rounds.stage = "cost of rounds";
  rounds.progress = options.progress;
  rounds.cancel = options.cancel;
  MEGALITH_ASSIGN_OR_RETURN(std::vector<Series> series, RunRounds(contestants, rounds));
  for (std::size_t i = 0; i < results.size(); ++i) {
    DraftCost& result = results[i];
    runners[i]->Describe(&result);
    result.series = std::move(series[i]);
    const DraftCost& plain = results.front();
    result.time_ratio =
        RatioOf(result.series.SecondsPerItem().median, plain.series.SecondsPerItem().median);
    result.bytes_ratio = RatioOf(result.weight_bytes, plain.weight_bytes);
  }
  return results;
}

}  // namespace megalith::bench
