#include "bench/decode.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/clock.h"
#include "base/topology.h"
#include "bench/tokens.h"
#include "bench/turns.h"
#include "bench/yardstick.h"
#include "exec/device_memory.h"
#include "program/compile/compile.h"

namespace megalith::bench {
namespace {

/// Rows of the steps that fill the context.
constexpr std::int32_t kPromptRows = 256;

/// The sequences of one case on an executor that may be shared with other cases.
class Runner {
 public:
  Runner(exec::Executor& executor, const StepCost& cost, const DecodeOptions& options,
         std::int32_t rows, std::int32_t first_slot)
      : executor_(executor), cost_(cost), options_(options), first_slot_(first_slot) {
    for (std::int32_t row = 0; row < rows; ++row) logit_rows_.push_back(row);
    tokens_.resize(logit_rows_.size());
    runs_.resize(logit_rows_.size());
    chosen_.resize(logit_rows_.size());
  }

  /// Fills the context, decodes the hashed tokens and finds out how many steps make a turn.
  Status Start() {
    MEGALITH_RETURN_IF_ERROR(FillContext());
    std::vector<double> seconds;
    for (int i = 0; i < kHashedTokens; ++i) {
      for (std::size_t row = 0; row < tokens_.size(); ++row) {
        chosen_[row].push_back(greedy_[row]);
      }
      if (i + 1 == kHashedTokens) break;  // the last one is only chosen
      const std::int64_t start = NowNs();
      MEGALITH_RETURN_IF_ERROR(Step());
      seconds.push_back(SecondsSince(start));
    }
    step_seconds_ = Summarize(seconds).median;
    steps_ = StepsPerTurn(step_seconds_, options_.steps,
                          executor_.limits().max_positions - options_.context - 1);
    return {};
  }

  Result<Work> RunTurn() {
    if (position_ + steps_ + 1 > executor_.limits().max_positions) {
      MEGALITH_RETURN_IF_ERROR(FillContext());
    }
    if (step_seconds_ < kLongStepSeconds) MEGALITH_RETURN_IF_ERROR(Step());
    Work work;
    std::int64_t experts = 0;
    double positions = 0.0;
    const std::int64_t start = NowNs();
    for (int i = 0; i < steps_; ++i) {
      MEGALITH_RETURN_IF_ERROR(Step());
      experts += executor_.memory().step_active_experts();
      positions += position_;
    }
    work.seconds = SecondsSince(start);
    const auto rows = static_cast<double>(tokens_.size());
    work.items = rows * steps_;
    work.amount =
        steps_ * cost_.WeightBytes(rows, 0.0) + static_cast<double>(experts) * cost_.expert_bytes;
    measured_steps_ += steps_;
    measured_experts_ += experts;
    measured_positions_ += positions;
    return work;
  }

  void Describe(DecodeResult* result) const {
    result->first_row_hash = TokenHash(chosen_.front());
    std::vector<std::int32_t> all;
    for (const auto& row : chosen_) all.insert(all.end(), row.begin(), row.end());
    result->all_rows_hash = TokenHash(all);
    result->steps_per_turn = steps_;
    result->cost = cost_;
    if (measured_steps_ == 0) return;
    const auto steps = static_cast<double>(measured_steps_);
    const auto rows = static_cast<double>(tokens_.size());
    const double experts = static_cast<double>(measured_experts_) / steps;
    if (cost_.num_moe_layers > 0) {
      result->experts_per_layer = experts / static_cast<double>(cost_.num_moe_layers);
    }
    result->weight_bytes = cost_.WeightBytes(rows, experts);
    result->mean_positions = measured_positions_ / steps;
    result->state_bytes = cost_.StateBytes(rows, result->mean_positions);
  }

 private:
  std::int64_t vocab_size() const { return executor_.limits().vocab_size; }

  /// The text of a row does not depend on the case, so that its tokens can be compared.
  std::int32_t NextToken(std::size_t row) const {
    if (options_.tokens == TokenSource::kGreedy) return greedy_[row];
    return ArbitraryToken(static_cast<std::int64_t>(row), position_, vocab_size());
  }

  Status FillContext() {
    greedy_.assign(tokens_.size(), 0);
    for (std::size_t row = 0; row < tokens_.size(); ++row) {
      const std::int32_t slot = first_slot_ + static_cast<std::int32_t>(row);
      MEGALITH_RETURN_IF_ERROR(executor_.ReleaseSlot(slot));
      const std::vector<std::int32_t> prompt =
          ArbitraryTokens(static_cast<std::int64_t>(row), options_.context, vocab_size());
      for (std::int32_t done = 0; done < options_.context;) {
        MEGALITH_RETURN_IF_ERROR(CheckCancelled(options_.cancel, "context"));
        if (options_.progress) {
          const auto total = static_cast<std::uint64_t>(options_.context) * tokens_.size();
          const auto at =
              static_cast<std::uint64_t>(options_.context) * row + static_cast<std::uint64_t>(done);
          options_.progress({"fill context", at, total, false});
        }
        const std::int32_t count = std::min(options_.context - done, kPromptRows);
        const exec::Run run{slot, done, count};
        const std::int32_t last = count - 1;
        const std::span<const std::int32_t> piece(prompt.data() + done,
                                                  static_cast<std::size_t>(count));
        MEGALITH_ASSIGN_OR_RETURN(const exec::StepOutput logits,
                                  executor_.Step({{&run, 1}, piece, {&last, 1}}));
        greedy_[row] = GreedyToken(logits.Row(0));
        done += count;
      }
    }
    position_ = options_.context;
    return {};
  }

  Status Step() {
    for (std::size_t row = 0; row < tokens_.size(); ++row) {
      tokens_[row] = NextToken(row);
      runs_[row] = {first_slot_ + static_cast<std::int32_t>(row), position_, 1};
    }
    MEGALITH_ASSIGN_OR_RETURN(const exec::StepOutput logits,
                              executor_.Step({runs_, tokens_, logit_rows_}));
    for (std::size_t row = 0; row < tokens_.size(); ++row) {
      greedy_[row] = GreedyToken(logits.Row(static_cast<std::int64_t>(row)));
    }
    ++position_;
    return {};
  }

  exec::Executor& executor_;
  const StepCost cost_;
  const DecodeOptions& options_;
  std::int32_t first_slot_;
  std::int32_t position_ = 0;         // of the next token of every sequence
  std::vector<std::int32_t> greedy_;  // per row: the largest logit after the last step
  std::vector<std::vector<std::int32_t>> chosen_;
  std::vector<std::int32_t> tokens_;
  std::vector<exec::Run> runs_;
  std::vector<std::int32_t> logit_rows_;
  double step_seconds_ = 0.0;
  int steps_ = 0;
  std::int64_t measured_steps_ = 0;
  std::int64_t measured_experts_ = 0;
  double measured_positions_ = 0.0;
};

/// Cases that can share one executor.
using Form = std::tuple<kernels::Isa, bool, bool>;
Form FormOf(const DecodeCase& what) { return {what.isa, what.per_op, what.prefetch}; }

Status CheckContext(const DecodeSet& set, const DecodeOptions& options) {
  const std::int64_t longest = set.engine->model().max_position_embeddings;
  constexpr std::int64_t kLeast = kHashedTokens + 2;  // a turn of one step behind the hashed tokens
  if (options.context + kLeast <= longest) return {};
  return Fail(ErrorCode::kOutOfRange,
              "context: at most {} of the model's {} positions expected, {} asked for",
              longest - kLeast, longest, options.context);
}

Result<engine::Variant> MakeVariant(const DecodeSet& set, const Form& form,
                                    const DecodeOptions& options) {
  const std::int64_t longest = set.engine->model().max_position_embeddings;
  engine::VariantOptions variant;
  std::tie(variant.isa, variant.barrier_after_each_op, variant.prefetch) = form;
  variant.row_buckets = {program::RowBucket(std::min(options.context, kPromptRows))};
  variant.num_sequences = 0;
  for (const DecodeCase& what : set.cases) {
    if (FormOf(what) != form) continue;
    variant.row_buckets.push_back(program::RowBucket(what.rows));
    variant.num_sequences += what.rows;
    variant.logit_rows = std::max(variant.logit_rows, what.rows);
  }
  std::sort(variant.row_buckets.begin(), variant.row_buckets.end());
  const auto last = std::unique(variant.row_buckets.begin(), variant.row_buckets.end());
  variant.row_buckets.erase(last, variant.row_buckets.end());
  variant.max_positions = static_cast<std::int32_t>(
      std::min<std::int64_t>(longest, options.context + std::int64_t{kMeasuredPositions}));
  return set.engine->MakeVariant(variant);
}

/// The Program that the executor takes for that many rows.
const program::VerifiedProgram& ProgramFor(const engine::Variant& variant, std::int32_t rows) {
  return *std::find_if(
      variant.programs.begin(), variant.programs.end(),
      [rows](const program::VerifiedProgram& program) { return program->max_rows >= rows; });
}

std::string Describe(const DecodeResult& result) {
  return fmt::format("{} rows on {} workers of {} rank{}{}", result.what.rows, result.workers,
                     result.ranks, result.ranks == 1 ? "" : "s",
                     result.what.per_op ? " per op" : "");
}

Status CheckSameTokens(const std::vector<DecodeSet>& sets,
                       const std::vector<DecodeResult>& results) {
  std::map<std::pair<std::string, kernels::Isa>, const DecodeResult*> first;
  std::size_t index = 0;
  for (const DecodeSet& set : sets) {
    for (const DecodeCase& what : set.cases) {
      const DecodeResult& result = results[index++];
      const auto [known, is_new] = first.insert({{set.weights, what.isa}, &result});
      if (is_new || known->second->first_row_hash == result.first_row_hash) continue;
      return Fail(ErrorCode::kInternal,
                  "{}, {}: {} chose tokens with hash {}, {} chose {}; the same expected",
                  set.weights, kernels::IsaName(what.isa), Describe(result), result.first_row_hash,
                  Describe(*known->second), known->second->first_row_hash);
    }
  }
  return {};
}

}  // namespace

Result<std::vector<DecodeResult>> MeasureDecode(const std::vector<DecodeSet>& sets,
                                                const DecodeOptions& options) {
  for (const DecodeSet& set : sets) MEGALITH_RETURN_IF_ERROR(CheckContext(set, options));
  MEGALITH_ASSIGN_OR_RETURN(const Topology topology, DetectTopology());
  std::map<std::int32_t, MemoryYardstick> yardsticks;  // by number of workers
  std::vector<engine::Variant> variants;
  std::vector<std::unique_ptr<Runner>> runners;
  std::vector<Contestant> contestants;
  std::vector<DecodeResult> results;
  for (const DecodeSet& set : sets) {
    const std::int32_t workers = set.engine->num_workers() * set.engine->num_ranks();
    if (!yardsticks.contains(workers)) {
      MEGALITH_ASSIGN_OR_RETURN(
          yardsticks[workers],
          StartMemoryYardstick(workers, PlaceWorkers(topology, workers).cpus, PreferredHugePages(),
                               options.probe_bytes > 0 ? options.probe_bytes : kYardstickBytes));
    }
    std::map<Form, std::size_t> variant_of;
    std::map<Form, std::int32_t> next_slot;
    for (const DecodeCase& what : set.cases) {
      const Form form = FormOf(what);
      if (!variant_of.contains(form)) {
        variant_of[form] = variants.size();
        MEGALITH_ASSIGN_OR_RETURN(engine::Variant variant, MakeVariant(set, form, options));
        variants.push_back(std::move(variant));
      }
      const engine::Variant& variant = variants[variant_of[form]];
      const program::VerifiedProgram& program = ProgramFor(variant, what.rows);
      DecodeResult result;
      result.what = what;
      result.ranks = set.engine->num_ranks();
      result.workers = workers;
      result.yardstick = Describe(yardsticks[workers].method);
      result.program_hash = program.hash();
      results.push_back(std::move(result));
      runners.push_back(std::make_unique<Runner>(
          *variant.executor, CostOf(*program, set.engine->model().moe.num_experts_per_token),
          options, what.rows, next_slot[form]));
      next_slot[form] += what.rows;
      MEGALITH_RETURN_IF_ERROR(runners.back()->Start());
      contestants.push_back({[runner = runners.back().get()] { return runner->RunTurn(); },
                             &yardsticks[workers].measure});
    }
  }
  RoundsOptions rounds;
  rounds.num_rounds = options.rounds;
  rounds.max_rounds = 3 * options.rounds;
  rounds.stage = "decode";
  rounds.progress = options.progress;
  rounds.cancel = options.cancel;
  MEGALITH_ASSIGN_OR_RETURN(std::vector<Series> series, RunRounds(contestants, rounds));
  for (std::size_t i = 0; i < results.size(); ++i) {
    runners[i]->Describe(&results[i]);
    results[i].series = std::move(series[i]);
  }
  MEGALITH_RETURN_IF_ERROR(CheckSameTokens(sets, results));
  return results;
}

}  // namespace megalith::bench
