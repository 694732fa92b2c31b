#include "bench/prefill.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>

#include "base/clock.h"
#include "base/topology.h"
#include "bench/multiply_rate.h"
#include "bench/tokens.h"
#include "exec/device_memory.h"
#include "program/compile/compile.h"

namespace megalith::bench {
namespace {

class Runner {
 public:
  Runner(exec::Executor& executor, const PrefillCase& what, const StepCost& cost,
         const PrefillOptions& options)
      : executor_(executor),
        what_(what),
        cost_(cost),
        options_(options),
        prompt_(ArbitraryTokens(0, what.tokens, executor.limits().vocab_size)) {}

  Result<Work> RunTurn() {
    MEGALITH_RETURN_IF_ERROR(executor_.ReleaseSlot(0));
    double weight_bytes = 0.0;
    Work work;
    const std::int64_t start = NowNs();
    for (std::int32_t done = 0; done < what_.tokens;) {
      MEGALITH_RETURN_IF_ERROR(CheckCancelled(options_.cancel, "prefill"));
      const std::int32_t count = std::min(what_.tokens - done, what_.rows_per_step);
      const bool is_last = done + count == what_.tokens;
      const exec::Run run{0, done, count};
      const std::int32_t last_row = count - 1;
      const std::span<const std::int32_t> tokens(prompt_.data() + done,
                                                 static_cast<std::size_t>(count));
      const std::span<const std::int32_t> logit_rows(&last_row, is_last ? 1 : 0);
      MEGALITH_ASSIGN_OR_RETURN(const exec::StepOutput logits,
                                executor_.Step({{&run, 1}, tokens, logit_rows}));
      const auto experts = static_cast<double>(executor_.memory().step_active_experts());
      weight_bytes += cost_.WeightBytes(count, experts) - (is_last ? 0.0 : cost_.head_bytes);
      done += count;
      if (!is_last) continue;
      const std::int32_t first_token = GreedyToken(logits.Row(0));
      work.seconds = SecondsSince(start);
      logits_.assign(logits.Row(0).begin(), logits.Row(0).end());
      std::vector<std::int32_t> bits = {first_token};
      for (const float logit : logits.Row(0)) bits.push_back(std::bit_cast<std::int32_t>(logit));
      hash_ = TokenHash(bits);
    }
    weight_bytes_ = weight_bytes;
    work.items = what_.tokens;
    work.amount = Flops();
    return work;
  }

  double Flops() const { return what_.tokens * cost_.row_flops + cost_.logit_flops; }
  const std::string& hash() const { return hash_; }
  /// Of the last token, in the last turn.
  const std::vector<float>& logits() const { return logits_; }
  double weight_bytes() const { return weight_bytes_; }

 private:
  exec::Executor& executor_;
  const PrefillCase what_;
  const StepCost cost_;
  const PrefillOptions& options_;
  const std::vector<std::int32_t> prompt_;
  std::string hash_;
  std::vector<float> logits_;
  double weight_bytes_ = 0.0;
};

Result<engine::Variant> MakeVariant(const engine::Engine& engine, const PrefillCase& what) {
  const std::int64_t longest = engine.model().max_position_embeddings;
  if (what.tokens > longest) {
    return Fail(ErrorCode::kOutOfRange, "tokens: at most the model's {} positions, {} asked for",
                longest, what.tokens);
  }
  engine::VariantOptions variant;
  variant.isa = what.isa;
  variant.row_buckets = {program::RowBucket(std::min(what.rows_per_step, what.tokens))};
  variant.max_positions = what.tokens;
  variant.fast_prefill = what.fast;
  return engine.MakeVariant(variant);
}

/// Whether the cuts of the prompt change no bit: always if exact, else if all steps are fast ones
/// and end where chunks do.
bool CutsAreInvisible(const PrefillCase& what) {
  if (!what.fast || what.rows_per_step >= what.tokens) return true;
  const std::int32_t last = what.tokens % what.rows_per_step;
  return what.rows_per_step >= program::kFastRunRows &&
         what.rows_per_step % kernels::kKdaChunkRows == 0 &&
         (last == 0 || last >= program::kFastRunRows);
}

LogitDifference Compare(const std::vector<float>& logits, const std::vector<float>& reference) {
  LogitDifference difference;
  double mean = 0.0;
  for (const float x : reference) mean += static_cast<double>(x);
  mean /= static_cast<double>(reference.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto want = static_cast<double>(reference[i]);
    const double delta = static_cast<double>(logits[i]) - want;
    difference.largest = std::max(difference.largest, std::fabs(delta));
    difference.rms += delta * delta;
    difference.reference_rms += (want - mean) * (want - mean);
  }
  difference.rms = std::sqrt(difference.rms / static_cast<double>(logits.size()));
  difference.reference_rms =
      std::sqrt(difference.reference_rms / static_cast<double>(logits.size()));
  difference.same_token = GreedyToken(logits) == GreedyToken(reference);
  return difference;
}

Status CheckSameBits(const std::vector<PrefillSet>& sets,
                     const std::vector<PrefillResult>& results) {
  std::map<std::tuple<std::string, kernels::Isa, std::int32_t, bool, std::int32_t>,
           const PrefillResult*>
      first;
  std::size_t index = 0;
  for (const PrefillSet& set : sets) {
    for (const PrefillCase& what : set.cases) {
      const PrefillResult& result = results[index++];
      const std::int32_t cuts = CutsAreInvisible(what) ? 0 : what.rows_per_step;
      const auto [known, is_new] =
          first.insert({{set.weights, what.isa, what.tokens, what.fast, cuts}, &result});
      if (is_new || known->second->output_hash == result.output_hash) continue;
      return Fail(ErrorCode::kInternal,
                  "{}, {}: {} rows a step on {} workers gave logits with hash {}, {} rows on {} "
                  "workers {}; the same expected",
                  set.weights, kernels::IsaName(what.isa), what.rows_per_step, result.workers,
                  result.output_hash, known->second->what.rows_per_step, known->second->workers,
                  known->second->output_hash);
    }
  }
  return {};
}

}  // namespace

Result<std::vector<PrefillResult>> MeasurePrefill(const std::vector<PrefillSet>& sets,
                                                  const PrefillOptions& options) {
  MEGALITH_ASSIGN_OR_RETURN(const Topology topology, DetectTopology());
  std::map<std::pair<kernels::Isa, std::int32_t>, Yardstick> yardsticks;
  std::vector<engine::Variant> variants;
  std::vector<std::unique_ptr<Runner>> runners;
  std::vector<Contestant> contestants;
  std::vector<PrefillResult> results;
  for (const PrefillSet& set : sets) {
    const std::int32_t workers = set.engine->num_workers();
    for (const PrefillCase& what : set.cases) {
      Yardstick& yardstick = yardsticks[{what.isa, workers}];
      if (!yardstick) {
        yardstick = MultiplyYardstick(what.isa, workers, PlaceWorkers(topology, workers).cpus);
      }
      MEGALITH_ASSIGN_OR_RETURN(engine::Variant variant, MakeVariant(*set.engine, what));
      const program::VerifiedProgram& program = variant.programs.front();
      PrefillResult result;
      result.what = what;
      result.workers = workers;
      result.yardstick = MultiplyInstruction(what.isa);
      result.program_hash = program.hash();
      result.cost = CostOf(*program, set.engine->model().moe.num_experts_per_token);
      result.activation_bytes = program->activation_arena_bytes;
      runners.push_back(std::make_unique<Runner>(*variant.executor, what, result.cost, options));
      contestants.push_back(
          {[runner = runners.back().get()] { return runner->RunTurn(); }, &yardstick});
      results.push_back(std::move(result));
      variants.push_back(std::move(variant));
    }
  }
  RoundsOptions rounds;
  rounds.num_rounds = options.rounds;
  rounds.max_rounds = 2 * options.rounds;
  rounds.stage = "prefill";
  rounds.progress = options.progress;
  rounds.cancel = options.cancel;
  MEGALITH_ASSIGN_OR_RETURN(std::vector<Series> series, RunRounds(contestants, rounds));
  for (std::size_t i = 0; i < results.size(); ++i) {
    results[i].output_hash = runners[i]->hash();
    results[i].flops = runners[i]->Flops();
    results[i].weight_bytes = runners[i]->weight_bytes();
    results[i].series = std::move(series[i]);
  }
  for (std::size_t begin = 0, set = 0; set < sets.size(); begin += sets[set++].cases.size()) {
    const std::size_t end = begin + sets[set].cases.size();
    for (std::size_t i = begin; i < end; ++i) {
      const PrefillCase& what = results[i].what;
      for (std::size_t j = begin; what.fast && j < end && !results[i].difference; ++j) {
        const PrefillCase& other = results[j].what;
        if (other.fast || other.tokens != what.tokens || other.isa != what.isa) continue;
        results[i].difference = Compare(runners[i]->logits(), runners[j]->logits());
      }
    }
  }
  MEGALITH_RETURN_IF_ERROR(CheckSameBits(sets, results));
  return results;
}

}  // namespace megalith::bench
