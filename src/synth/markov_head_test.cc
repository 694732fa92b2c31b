// Markov heads of every kind, on random drafters: the formulas of the specification in double, the
// roundings of docs/design/numerics.md, the same bits from every executor, number of workers and
// rank layout, and the text of plain decoding.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <map>
#include <mutex>
#include <span>

#include "exec/device_memory.h"
#include "exec/testing/executors.h"
#include "exec/testing/golden.h"
#include "exec/testing/schedules.h"
#include "kernels/activation.h"
#include "kernels/numerics.h"
#include "model/config.h"
#include "synth/drafter.h"
#include "synth/plan.h"
#include "synth/presets.h"
#include "synth/write.h"
#include "tools/temp_dir.h"

namespace megalith::synth {
namespace {

using exec::testing::DraftRounds;
using exec::testing::ExecutorSpec;
using exec::testing::FirstDifference;
using exec::testing::LogitRows;
using exec::testing::RandomTokens;
using exec::testing::ReadBuffer;
using exec::testing::RunDraftRounds;
using model::MarkovHead;
using program::RankLayout;

constexpr double kLimit = 2e-4;  // of fp32 drafters, tests/data/golden/README.md
constexpr std::int32_t kNumDrafts = 7;
constexpr std::int32_t kVocab = 1024;  // of k3-tiny
constexpr std::size_t kRank = 24;      // neither it nor twice it is a whole number of blocks

/// A random model with a random drafter.
struct HeadCase {
  MarkovHead head;
  bool sample_from_anchor;

  friend auto operator<=>(const HeadCase&, const HeadCase&) = default;
};

std::string NameOf(const HeadCase& c) {
  return std::string(MarkovHeadName(c.head)) + (c.sample_from_anchor ? "" : "_idle_anchor");
}

const std::string& Directory(const HeadCase& head_case) {
  static const tools::TempDir temp;
  static std::map<HeadCase, std::string> written;
  const auto [entry, is_new] = written.try_emplace(head_case);
  if (!is_new) return entry->second;
  const std::string config = PresetConfig("k3-tiny").value_or("");
  const auto model = model::ParseConfig(config);
  EXPECT_TRUE(model);
  const std::vector<std::string> edits = {
      fmt::format("markov_head_type=\"{}\"", MarkovHeadName(head_case.head)),
      fmt::format("markov_rank={}", kRank),
      fmt::format("sample_from_anchor={}", head_case.sample_from_anchor)};
  const auto drafter_config = MakeDrafterConfig(model->model, edits);
  EXPECT_TRUE(drafter_config) << (drafter_config ? "" : drafter_config.error().message);
  const auto plan = PlanCheckpoint(config, {});
  const auto drafter = PlanDrafter(drafter_config.value_or(""), model->model, {});
  entry->second = temp.File(NameOf(head_case));
  EXPECT_TRUE(plan && drafter && WriteCheckpoint(*plan, entry->second, {}, &*drafter));
  return entry->second;
}

ExecutorSpec Spec(const HeadCase& head_case, std::int32_t draft_runs) {
  ExecutorSpec spec;
  spec.directory = Directory(head_case);
  spec.drafter = spec.directory + "/dspark";
  spec.row_buckets = {32};
  spec.max_drafts = kNumDrafts;
  spec.draft_runs = draft_runs;
  spec.num_drafts = draft_runs > 0 ? kNumDrafts : 0;
  return spec;
}

/// The head's tensors, widened.
class Weights {
 public:
  explicit Weights(const ExecutorSpec& spec)
      : checkpoint_(exec::testing::OpenCheckpoint(spec.directory, spec.drafter).value()) {}

  std::vector<double> Read(const std::string& name) const {
    const auto view = checkpoint_->Find("draft." + name);
    EXPECT_TRUE(view) << name;
    if (!view) return {};
    std::vector<Bf16> stored(view->num_bytes / sizeof(Bf16));
    EXPECT_TRUE(checkpoint_->ReadTensor(*view, std::as_writable_bytes(std::span(stored))));
    std::vector<double> values;
    for (const Bf16 value : stored) values.push_back(double{ToFloat(value)});
    return values;
  }

 private:
  const weights::Checkpoint* checkpoint_;
};

using Vector = std::vector<double>;

/// matrix [outputs, x.size()] times x.
Vector Times(const Vector& matrix, const Vector& x) {
  Vector y(matrix.size() / x.size(), 0.0);
  for (std::size_t n = 0; n < y.size(); ++n) {
    for (std::size_t k = 0; k < x.size(); ++k) y[n] += matrix[n * x.size() + k] * x[k];
  }
  return y;
}

Vector Concat(std::initializer_list<Vector> parts) {
  Vector all;
  for (const Vector& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// Spec (DSpark) sections 4.3, 8 and 10, word by word.
class MarkovOracle {
 public:
  MarkovOracle(MarkovHead head, const Weights& weights)
      : head_(head),
        w1_(weights.Read("markov_head.markov_w1.weight")),
        w2_(weights.Read("markov_head.markov_w2.weight")),
        confidence_(weights.Read("confidence_head.proj.weight")),
        confidence_bias_(weights.Read("confidence_head.proj.bias")) {
    if (head == MarkovHead::kVanilla) return;
    const std::string name =
        head == MarkovHead::kGated ? "markov_head.gate_proj" : "markov_head.joint_proj";
    projection_ = weights.Read(name + ".weight");
    bias_ = weights.Read(name + ".bias");
  }

  void BeginBlock() { state_.assign(kRank, 0.0); }

  /// What the slot after `previous` adds to its logits; to be called slot by slot.
  Vector Bias(std::int32_t previous, const Vector& hidden) {
    const Vector e = Embedding(previous);
    switch (head_) {
      case MarkovHead::kVanilla:
        return Times(w2_, e);
      case MarkovHead::kGated: {
        Vector gamma = Project({hidden, e});
        for (std::size_t i = 0; i < kRank; ++i) gamma[i] = Sigmoid(gamma[i]) * e[i];
        return Times(w2_, gamma);
      }
      case MarkovHead::kRnn: {
        const Vector joint = Project({state_, e, hidden});
        Vector out(kRank);
        for (std::size_t i = 0; i < kRank; ++i) {
          const double g = Sigmoid(joint[i]);
          state_[i] = g * state_[i] + (1.0 - g) * std::tanh(joint[kRank + i]);
          out[i] = std::tanh(joint[2 * kRank + i]);
        }
        return Times(w2_, out);
      }
    }
    return {};
  }

  double Confidence(std::int32_t previous, const Vector& hidden) const {
    return Times(confidence_, Concat({hidden, Embedding(previous)}))[0] + confidence_bias_[0];
  }

 private:
  Vector Embedding(std::int32_t token) const {
    const auto first = w1_.begin() + token * static_cast<std::ptrdiff_t>(kRank);
    return {first, first + static_cast<std::ptrdiff_t>(kRank)};
  }
  Vector Project(std::initializer_list<Vector> inputs) const {
    Vector y = Times(projection_, Concat(inputs));
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += bias_[i];
    return y;
  }

  MarkovHead head_;
  Vector w1_, w2_, confidence_, confidence_bias_, projection_, bias_;
  Vector state_;
};

/// Buffers at the end of every visit that chooses a token, while an interpreter of one worker runs.
class SlotTrace {
 public:
  SlotTrace(std::vector<std::string> buffers, std::int64_t rows)
      : names_(std::move(buffers)), rows_(rows) {}

  exec::InstructionObserver Observer() {
    return [this](const exec::InstructionEvent& event) {
      const program::Program& program = event.memory.program();
      const program::Visit& visit = program.visits[static_cast<std::size_t>(event.visit_index)];
      const auto& stream = program.segments[visit.segment].streams[0];
      const auto last = static_cast<std::int64_t>(stream.instructions.size()) - 1;
      if (visit.draft_slot < 0 || event.instruction_index != last) return true;
      for (const std::string& name : names_) {
        slots_[name].push_back(ReadBuffer(event.memory, name, rows_));
      }
      return true;
    };
  }
  /// By slot, then drafting run.
  const std::vector<LogitRows>& Slots(const std::string& name) { return slots_[name]; }

 private:
  std::vector<std::string> names_;
  std::int64_t rows_;
  std::map<std::string, std::vector<LogitRows>> slots_;
};

Vector Widen(const std::vector<float>& values) { return {values.begin(), values.end()}; }

/// One step of two prompts that both draft.
Result<exec::StepOutput> DraftTwice(exec::Executor& executor) {
  std::vector<exec::Run> runs = {{0, 0, 5}, {1, 0, 11}};
  for (exec::Run& run : runs) {
    run.wants_token = true;
    run.next_drafts = kNumDrafts;
  }
  return executor.Step({runs, RandomTokens(16, kVocab, 7), {}});
}

class MarkovHeads : public testing::TestWithParam<HeadCase> {};

TEST_P(MarkovHeads, LogitsAndConfidencesAreThoseOfTheFormulas) {
  SlotTrace trace({"draft_logits"}, 2);
  ExecutorSpec spec = Spec(GetParam(), 2);
  spec.reference = true;
  spec.activation_dtype = DType::kF32;
  spec.observer = trace.Observer();
  const auto executor = MakeExecutor(spec).value();
  const auto step = DraftTwice(*executor);
  ASSERT_TRUE(step) << step.error().message;
  const exec::ProgramMemory& memory = executor->memory().program_memory(0);
  const program::DraftShape& shape = memory.program().draft;
  ASSERT_EQ(shape.first_slot, GetParam().sample_from_anchor ? 0 : 1);
  const LogitRows hidden = ReadBuffer(memory, "draft_hidden", 2 * shape.block_rows);
  const LogitRows base = ReadBuffer(memory, "draft_base_logits", 2 * shape.block_rows);
  MarkovOracle oracle(GetParam().head, Weights(spec));
  ASSERT_EQ(trace.Slots("draft_logits").size(), static_cast<std::size_t>(kNumDrafts));
  for (std::size_t run = 0; run < 2; ++run) {
    const exec::RunOutput& output = step->runs()[run];
    std::int32_t previous = output.tokens[0];
    oracle.BeginBlock();
    for (std::size_t slot = 0; slot < output.drafts.size(); ++slot) {
      SCOPED_TRACE(fmt::format("run {} slot {}", run, slot));
      const std::size_t row = run * static_cast<std::size_t>(shape.block_rows) +
                              static_cast<std::size_t>(shape.first_slot) + slot;
      Vector logits = oracle.Bias(previous, Widen(hidden[row]));
      double spread = 0.0;
      const std::vector<float>& have = trace.Slots("draft_logits")[slot][run];
      ASSERT_EQ(have.size(), logits.size());
      for (std::size_t i = 0; i < logits.size(); ++i) {
        spread = std::max(spread, std::abs(logits[i]));
        logits[i] += double{base[row][i]};
        ASSERT_NEAR(double{have[i]}, logits[i], kLimit) << "token " << i;
      }
      EXPECT_GT(spread, 0.1) << "the head adds too little to be tested";
      const std::int32_t token = output.drafts[slot];
      EXPECT_GT(logits[static_cast<std::size_t>(token)],
                *std::max_element(logits.begin(), logits.end()) - kLimit);
      EXPECT_NEAR(double{output.confidence[slot]}, oracle.Confidence(previous, Widen(hidden[row])),
                  kLimit);
      previous = token;
    }
  }
}

/// Heads that project their inputs.
class MarkovProjections : public testing::TestWithParam<HeadCase> {};

/// From the sums of the projection to the vector in front of the second matrix, in bf16.
TEST_P(MarkovProjections, ValuesAreRoundedWhereTheNumericsSay) {
  const bool is_rnn = GetParam().head == MarkovHead::kRnn;
  std::vector<std::string> buffers = {"draft_markov", "draft_markov_projected", "draft_markov_out"};
  if (is_rnn) buffers.emplace_back("draft_markov_state");
  SlotTrace trace(buffers, 2);
  ExecutorSpec spec = Spec(GetParam(), 2);
  spec.reference = true;
  spec.observer = trace.Observer();
  const auto executor = MakeExecutor(spec).value();
  const auto step = DraftTwice(*executor);
  ASSERT_TRUE(step) << step.error().message;
  const Vector bias =
      Weights(spec).Read(is_rnn ? "markov_head.joint_proj.bias" : "markov_head.gate_proj.bias");
  const auto rounded = [](float value) { return kernels::Rounded<Bf16>(value); };
  std::size_t nonzero_states = 0;
  for (std::size_t run = 0; run < 2; ++run) {
    std::vector<float> state(kRank, 0.0f);
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(kNumDrafts); ++slot) {
      SCOPED_TRACE(fmt::format("run {} slot {}", run, slot));
      const std::vector<float>& inputs = trace.Slots("draft_markov")[slot][run];
      const std::vector<float>& sums = trace.Slots("draft_markov_projected")[slot][run];
      const std::vector<float>& out = trace.Slots("draft_markov_out")[slot][run];
      const auto linear = [&](std::size_t i) {
        return rounded(sums[i] + static_cast<float>(bias[i]));
      };
      for (std::size_t i = 0; i < kRank; ++i) {
        if (!is_rnn) {
          EXPECT_EQ(out[i], rounded(kernels::Sigmoid(linear(i)) * inputs[i])) << i;
          continue;
        }
        EXPECT_EQ(inputs[i], state[i]) << i;
        const float keep = kernels::Sigmoid(linear(i));
        state[i] = rounded(keep * state[i] + (1.0f - keep) * kernels::Tanh(linear(kRank + i)));
        EXPECT_EQ(trace.Slots("draft_markov_state")[slot][run][i], state[i]) << i;
        EXPECT_EQ(out[i], rounded(kernels::Tanh(linear(2 * kRank + i)))) << i;
        nonzero_states += state[i] != 0.0f ? 1 : 0;
      }
    }
  }
  if (is_rnn) {
    EXPECT_GT(nonzero_states, kRank);
  }
}

TEST_P(MarkovHeads, EveryExecutorPathAndNumberOfWorkersGivesTheSameBits) {
  std::map<kernels::DotNumerics, DraftRounds> oracles;
  for (const kernels::Isa isa : kernels::SupportedIsas()) {
    ExecutorSpec spec = Spec(GetParam(), 2);
    spec.isa = isa;
    spec.numerics = kernels::NumericsOf(isa);
    const auto [want, is_new] = oracles.try_emplace(spec.numerics);
    std::vector<ExecutorSpec> specs;
    if (is_new) {
      ExecutorSpec reference = spec;
      reference.reference = true;
      const auto rounds = RunDraftRounds(*MakeExecutor(reference).value());
      ASSERT_TRUE(rounds) << rounds.error().message;
      want->second = *rounds;
      reference.num_workers = 3;
      reference.interleaving_seed = 11;
      specs.push_back(reference);
    }
    for (const std::int32_t workers : {1, 2, 3}) {
      specs.push_back(spec);
      specs.back().num_workers = workers;
    }
    for (const ExecutorSpec& other : specs) {
      SCOPED_TRACE(Describe(other));
      const auto have = RunDraftRounds(*MakeExecutor(other).value());
      ASSERT_TRUE(have) << have.error().message;
      EXPECT_EQ(have->tokens, want->second.tokens);
      EXPECT_EQ(have->confidence, want->second.confidence);
      EXPECT_EQ(FirstDifference(want->second.logits, have->logits), "");
    }
  }
}

TEST_P(MarkovHeads, EveryRankLayoutGivesTheBitsOfOneRank) {
  ExecutorSpec spec = Spec(GetParam(), 2);
  spec.isa = kernels::SelectIsa().value();
  const auto want = RunDraftRounds(*MakeExecutor(spec).value());
  ASSERT_TRUE(want) << want.error().message;
  spec.num_workers = 2;
  for (const RankLayout layout :
       {RankLayout{2, 1}, RankLayout{1, 2}, RankLayout{3, 1}, RankLayout{2, 2}}) {
    spec.ranks = layout;
    std::mutex mutex;
    const Status status = OnRanks(spec, [&](exec::Executor& executor, std::int32_t rank) -> Status {
      MEGALITH_ASSIGN_OR_RETURN(const DraftRounds have, RunDraftRounds(executor));
      const std::lock_guard lock(mutex);
      EXPECT_EQ(have.tokens, want->tokens) << "rank " << rank << " of " << layout.NumRanks();
      EXPECT_EQ(have.confidence, want->confidence) << "rank " << rank;
      EXPECT_EQ(FirstDifference(want->logits, have.logits), "") << "rank " << rank;
      return {};
    });
    EXPECT_TRUE(status) << status.error().message;
  }
}

/// What one sequence is given by rounds of proposals.
struct Text {
  std::vector<std::int32_t> tokens;  ///< prompt, then what was chosen
  std::vector<std::int32_t> drafts;
  std::vector<float> confidence;
};

/// Rounds that verify 0 to 7 of the latest proposals, until `count` tokens have been chosen.
/// `right`: tokens that replace some proposals, so that some are accepted, too.
Result<Text> GenerateByDrafting(exec::Executor& executor, std::span<const std::int32_t> prompt,
                                std::size_t count, std::span<const std::int32_t> right) {
  Text text{{prompt.begin(), prompt.end()}, {}, {}};
  std::size_t run_tokens = 0;
  std::vector<std::int32_t> proposals;
  for (std::int32_t round = 0; text.tokens.size() < prompt.size() + count; ++round) {
    std::vector<std::int32_t> rows(text.tokens.begin() + static_cast<std::ptrdiff_t>(run_tokens),
                                   text.tokens.end());
    exec::Run run{0, static_cast<std::int32_t>(run_tokens)};
    run.num_drafts = proposals.empty() ? 0 : round % (kNumDrafts + 1);
    for (std::size_t i = 0; i < static_cast<std::size_t>(run.num_drafts); ++i) {
      const std::size_t at = text.tokens.size() - prompt.size() + i;
      const bool replaced = i < static_cast<std::size_t>(round % 4) && at < right.size();
      rows.push_back(replaced ? right[at] : proposals[i]);
    }
    run.count = static_cast<std::int32_t>(rows.size());
    run.wants_token = true;
    run.next_drafts = kNumDrafts;
    MEGALITH_ASSIGN_OR_RETURN(const exec::StepOutput step, executor.Step({{&run, 1}, rows, {}}));
    const exec::RunOutput& output = step.runs().front();
    run_tokens = text.tokens.size() + static_cast<std::size_t>(output.num_accepted);
    text.tokens.insert(text.tokens.end(), output.tokens.begin(),
                       output.tokens.begin() + output.num_accepted + 1);
    proposals.assign(output.drafts.begin(), output.drafts.end());
    text.drafts.insert(text.drafts.end(), proposals.begin(), proposals.end());
    text.confidence.insert(text.confidence.end(), output.confidence.begin(),
                           output.confidence.end());
  }
  text.tokens.resize(prompt.size() + count);
  return text;
}

/// With one drafting run every worker has its own copy of the head's vectors.
TEST_P(MarkovHeads, TextIsThatOfPlainDecoding) {
  constexpr std::size_t kCount = 40;
  const std::vector<std::int32_t> prompt = RandomTokens(9, kVocab, 5);
  ExecutorSpec spec = Spec(GetParam(), 0);
  spec.isa = kernels::SelectIsa().value();
  spec.numerics = kernels::NumericsOf(spec.isa);
  const auto greedy = exec::testing::Greedy(*MakeExecutor(spec).value(), 0, prompt, kCount, 9);
  ASSERT_TRUE(greedy) << greedy.error().message;
  std::vector<std::int32_t> plain = prompt;
  plain.insert(plain.end(), greedy->begin(), greedy->end());
  ExecutorSpec drafting = Spec(GetParam(), 1);
  drafting.isa = spec.isa;
  drafting.numerics = spec.numerics;
  drafting.reference = true;
  const auto want = GenerateByDrafting(*MakeExecutor(drafting).value(), prompt, kCount, *greedy);
  ASSERT_TRUE(want) << want.error().message;
  EXPECT_EQ(want->tokens, plain);
  for (const bool reference : {true, false}) {
    for (const std::int32_t workers : {1, 2, 3}) {
      drafting.reference = reference;
      drafting.num_workers = workers;
      SCOPED_TRACE(Describe(drafting));
      const auto have =
          GenerateByDrafting(*MakeExecutor(drafting).value(), prompt, kCount, *greedy);
      ASSERT_TRUE(have) << have.error().message;
      EXPECT_EQ(have->tokens, plain);
      EXPECT_EQ(have->drafts, want->drafts);
      EXPECT_EQ(have->confidence, want->confidence);
    }
  }
}

const HeadCase kCases[] = {{MarkovHead::kGated, true},
                           {MarkovHead::kGated, false},
                           {MarkovHead::kRnn, true},
                           {MarkovHead::kRnn, false},
                           {MarkovHead::kVanilla, true}};

INSTANTIATE_TEST_SUITE_P(Each, MarkovHeads, testing::ValuesIn(kCases),
                         [](const auto& head_case) { return NameOf(head_case.param); });
INSTANTIATE_TEST_SUITE_P(Each, MarkovProjections, testing::ValuesIn(kCases, kCases + 4),
                         [](const auto& head_case) { return NameOf(head_case.param); });

}  // namespace
}  // namespace megalith::synth
