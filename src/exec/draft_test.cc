// Steps that verify and draft, on every path and number of workers: what a sequence is given
// depends on the sequence alone, and equals what the interpreter gives it.

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "exec/device_memory.h"
#include "exec/testing/executors.h"

namespace megalith::exec::testing {
namespace {

constexpr std::int32_t kNumDrafts = 7;
constexpr std::int32_t kNumSlots = 3;

ExecutorSpec Spec(bool reference, kernels::Isa isa, std::int32_t workers) {
  ExecutorSpec spec;
  spec.directory = MEGALITH_TEST_DATA "/golden/k3-tiny";
  spec.drafter = MEGALITH_TEST_DATA "/golden/k3-tiny-dspark";
  spec.reference = reference;
  spec.isa = isa;
  spec.numerics = kernels::NumericsOf(isa);
  spec.num_workers = workers;
  spec.num_slots = kNumSlots;
  spec.row_buckets = {32};
  spec.max_drafts = kNumDrafts;
  spec.draft_runs = kNumSlots;
  spec.num_drafts = kNumDrafts;
  return spec;
}

/// What one sequence was given, step by step.
struct History {
  std::vector<std::int32_t> tokens;  ///< kept, then the newest, which has not been run
  std::vector<std::int32_t> drafts;  ///< of every round, one after the other
  std::vector<float> confidence;
  LogitRows logits;  ///< of the rows that were kept
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Sequences that go on by rounds of the drafter's proposals, any of them in one step.
class Rounds {
 public:
  explicit Rounds(Executor& executor) : executor_(executor), histories_(kNumSlots) {}

  /// One step with a run of each slot: its prompt if it has not begun, else its newest token and
  /// the first `num_drafts` of its latest proposals.
  void Step(const std::map<std::int32_t, std::int32_t>& num_drafts_of_slot,
            const std::map<std::int32_t, std::vector<std::int32_t>>& prompts) {
    std::vector<exec::Run> runs;
    std::vector<std::int32_t> tokens;
    for (const auto& [slot, num_drafts] : num_drafts_of_slot) {
      const History& history = histories_[static_cast<std::size_t>(slot)];
      exec::Run run{slot};
      run.wants_token = true;
      run.next_drafts = kNumDrafts;
      std::vector<std::int32_t> rows = prompts.at(slot);
      if (!history.tokens.empty()) {
        run.first_position = static_cast<std::int32_t>(history.tokens.size()) - 1;
        run.num_drafts = num_drafts;
        rows = {history.tokens.back()};
        const auto latest = history.drafts.end() - kNumDrafts;
        rows.insert(rows.end(), latest, latest + num_drafts);
      }
      run.count = static_cast<std::int32_t>(rows.size());
      tokens.insert(tokens.end(), rows.begin(), rows.end());
      runs.push_back(run);
    }
    const auto step = executor_.Step({runs, tokens, {}});
    ASSERT_TRUE(step) << step.error().message;
    std::size_t row = 0;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      Take(*step, runs[i], step->runs()[i], std::span(tokens).subspan(row));
      row += static_cast<std::size_t>(runs[i].count);
    }
  }

  const History& history(std::int32_t slot) const {
    return histories_[static_cast<std::size_t>(slot)];
  }

 private:
  void Take(const StepOutput& step, const exec::Run& run, const RunOutput& output,
            std::span<const std::int32_t> rows) {
    History& history = histories_[static_cast<std::size_t>(run.slot)];
    if (history.tokens.empty()) {
      history.tokens.assign(rows.begin(), rows.begin() + run.count);
    }
    for (std::int32_t i = 0; i <= output.num_accepted; ++i) {
      history.tokens.push_back(output.tokens[static_cast<std::size_t>(i)]);
      const auto logits = step.Row(output.first_logit_row + i);
      history.logits.emplace_back(logits.begin(), logits.end());
    }
    history.drafts.insert(history.drafts.end(), output.drafts.begin(), output.drafts.end());
    history.confidence.insert(history.confidence.end(), output.confidence.begin(),
                              output.confidence.end());
  }

  Executor& executor_;
  std::vector<History> histories_;
};

std::map<std::int32_t, std::vector<std::int32_t>> Prompts() {
  return {
      {0, RandomTokens(9, 512, 1)}, {1, RandomTokens(1, 512, 2)}, {2, RandomTokens(14, 512, 3)}};
}

constexpr int kRounds = 8;
std::int32_t DraftsOf(std::int32_t slot, int round) { return (3 * slot + 5 * round) % 8; }

/// One sequence at a time, one worker, in the interpreter.
const std::vector<History>& Oracle(kernels::Isa isa) {
  static std::map<kernels::DotNumerics, std::vector<History>> cache;
  const auto [entry, is_new] = cache.try_emplace(kernels::NumericsOf(isa));
  if (!is_new) return entry->second;
  const auto executor = MakeExecutor(Spec(true, isa, 1)).value();
  for (std::int32_t slot = 0; slot < kNumSlots; ++slot) {
    Rounds rounds(*executor);
    for (int round = 0; round <= kRounds; ++round) {
      rounds.Step({{slot, round == 0 ? 0 : DraftsOf(slot, round)}}, Prompts());
    }
    entry->second.push_back(rounds.history(slot));
  }
  return entry->second;
}

void ExpectSame(const History& have, const History& want, const std::string& what) {
  EXPECT_EQ(have.tokens, want.tokens) << what;
  EXPECT_EQ(have.drafts, want.drafts) << what;
  EXPECT_TRUE(SameBits(have.confidence, want.confidence)) << what;
  EXPECT_EQ(FirstDifference(want.logits, have.logits), "") << what;
}

class DraftingPath : public ::testing::TestWithParam<ExecutorSpec> {};

TEST_P(DraftingPath, SequencesInOneStepAreWhatTheyAreAlone) {
  const ExecutorSpec& spec = GetParam();
  if (!spec.reference && !kernels::IsaSupported(spec.isa)) {
    GTEST_SKIP() << "this CPU lacks " << kernels::IsaName(spec.isa);
  }
  const auto executor = MakeExecutor(spec).value();
  Rounds rounds(*executor);
  // Slot 2 joins a round later, slot 1 sits one out: prompts, checks and rests share steps.
  std::vector<int> round_of(kNumSlots, 0);
  for (int step = 0; step < kRounds + 2; ++step) {
    std::map<std::int32_t, std::int32_t> drafts;
    for (std::int32_t slot = 0; slot < kNumSlots; ++slot) {
      int& round = round_of[static_cast<std::size_t>(slot)];
      if (round > kRounds || (slot == 2 && step == 0) || (slot == 1 && step == 3)) continue;
      drafts[slot] = round == 0 ? 0 : DraftsOf(slot, round);
      ++round;
    }
    rounds.Step(drafts, Prompts());
  }
  for (std::int32_t slot = 0; slot < kNumSlots; ++slot) {
    ExpectSame(rounds.history(slot), Oracle(spec.isa)[static_cast<std::size_t>(slot)],
               fmt::format("slot {}", slot));
  }
}

std::vector<ExecutorSpec> Paths() {
  std::vector<ExecutorSpec> specs;
  specs.push_back(Spec(true, kernels::Isa::kPortable, 3));
  // What the number of workers changes is the same on every path.
  for (const std::int32_t workers : {2, 5}) {
    specs.push_back(Spec(false, kernels::Isa::kPortable, workers));
  }
  for (const kernels::Isa isa :
       {kernels::Isa::kPortable, kernels::Isa::kAvx2, kernels::Isa::kAvx512,
        kernels::Isa::kAvx512Bf16, kernels::Isa::kAmx}) {
    for (const std::int32_t workers : {1, 3}) specs.push_back(Spec(false, isa, workers));
  }
  return specs;
}

std::string NameOf(const ::testing::TestParamInfo<ExecutorSpec>& info) {
  std::string name = Describe(info.param);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Each, DraftingPath, ::testing::ValuesIn(Paths()), NameOf);

/// The window of the drafter's layers is shorter than the text, and the ring only a little longer.
TEST(DraftContext, PromptsLongerThanTheRingDraftLikeThoseFedTokenByToken) {
  ExecutorSpec spec = Spec(false, kernels::SelectIsa().value(), 2);
  spec.max_positions = 4096;
  spec.row_buckets = {4096};
  spec.num_slots = 1;
  spec.draft_runs = 1;
  const std::vector<std::int32_t> prompt = RandomTokens(2300, 512, 9);
  std::vector<std::vector<std::int32_t>> drafts;
  for (const std::size_t piece : {std::size_t{2300}, std::size_t{700}, std::size_t{2299}}) {
    const auto executor = MakeExecutor(spec).value();
    for (std::size_t done = 0; done < prompt.size();) {
      const std::size_t count = std::min(piece, prompt.size() - done);
      exec::Run run{0, static_cast<std::int32_t>(done), static_cast<std::int32_t>(count)};
      run.wants_token = true;
      run.next_drafts = kNumDrafts;
      const auto step = executor->Step({{&run, 1}, std::span(prompt).subspan(done, count), {}});
      ASSERT_TRUE(step) << step.error().message;
      done += count;
      if (done < prompt.size()) continue;
      const auto& last = step->runs().front().drafts;
      drafts.emplace_back(last.begin(), last.end());
    }
  }
  EXPECT_EQ(drafts[0], drafts[1]);
  EXPECT_EQ(drafts[0], drafts[2]);
}

TEST(DraftSteps, WantsThatCannotBeMetAreRefusedAndChangeNothing) {
  const auto executor = MakeExecutor(Spec(false, kernels::Isa::kPortable, 2)).value();
  const std::vector<std::int32_t> tokens = RandomTokens(9, 512, 1);
  const auto refused = [&](exec::Run run, std::string_view what) {
    const auto step = executor->Step(
        {{&run, 1}, std::span(tokens).first(static_cast<std::size_t>(run.count)), {}});
    ASSERT_FALSE(step);
    EXPECT_NE(step.error().message.find(what), std::string::npos) << step.error().message;
    EXPECT_EQ(executor->memory().sequences().Length(0), 0);
  };
  exec::Run run{0, 0, 9};
  run.num_drafts = 2;
  refused(run, "wants no token");
  run.wants_token = true;
  run.num_drafts = 8;
  refused(run, "8 drafts of at most 7");
  run.num_drafts = -1;
  refused(run, "-1 drafts");
  run.num_drafts = 0;
  run.next_drafts = 8;
  refused(run, "8 next ones of at most 7");
  run.next_drafts = 0;
  run.num_drafts = 7;
  run.count = 7;
  refused(run, "7 drafts among 7 rows");
  EXPECT_FALSE(executor->Truncate(0, 1));
}

}  // namespace
}  // namespace megalith::exec::testing
