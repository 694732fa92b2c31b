// Attention over contexts of several chunks: shared out over the context or not, by any number of
// workers, it gives the interpreter's bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/bf16.h"
#include "exec/device_memory.h"
#include "exec/testing/executors.h"
#include "program/attention_division.h"

namespace megalith::exec::testing {
namespace {

constexpr std::int32_t kChunk = program::kAttentionChunk;
constexpr std::int32_t kMaxPositions = 3 * kChunk;
static_assert(kMaxPositions > program::kUndividedPositions);
// Where the two long sequences begin: a few rows before their context reaches into another chunk.
constexpr std::int32_t kShortLength = kChunk - 3;
constexpr std::int32_t kLongLength = 2 * kChunk - 4;
constexpr std::int32_t kMaxDrafts = 3;

ExecutorSpec Spec(const std::string& model) {
  ExecutorSpec spec;
  spec.directory = std::string(MEGALITH_TEST_DATA) + "/golden/" + model;
  spec.isa = kernels::SelectIsa().value();
  spec.numerics = kernels::NumericsOf(spec.isa);
  spec.row_buckets = {1, 8};
  spec.num_slots = 3;
  spec.page_tokens = 64;
  spec.max_positions = kMaxPositions;
  spec.max_drafts = kMaxDrafts;
  return spec;
}

std::unique_ptr<Executor> Make(const ExecutorSpec& spec) {
  auto executor = MakeExecutor(spec);
  if (!executor) ADD_FAILURE() << Describe(spec) << ": " << executor.error().message;
  return executor ? *std::move(executor) : nullptr;
}

bool Divides(const Executor& executor) {
  const program::Program& program = *executor.memory().program(0);
  for (const program::Segment& segment : program.segments) {
    for (const program::Instruction& instruction : segment.streams[0].instructions) {
      if (instruction.opcode == program::Opcode::kMlaPartial) return true;
    }
  }
  return false;
}

std::vector<std::int32_t> Text() { return RandomTokens(kMaxPositions, 500, 21); }

/// The sequence in `slot` becomes one of `length` tokens that nobody has run: its state and cached
/// positions are arbitrary numbers, always the same. (To run so many takes the interpreter long.)
Status MakeSequence(Executor& executor, std::int32_t slot, std::int32_t length) {
  MEGALITH_ASSIGN_OR_RETURN(const auto snapshot, executor.NewSnapshot(length));
  auto random = static_cast<std::uint32_t>(length);
  for (const std::span<std::byte> part : snapshot->MutableContents()) {
    // bf16 from -1 to 1. As upper halves they make floats of that size, too.
    for (std::size_t i = 0; i + sizeof(Bf16) <= part.size(); i += sizeof(Bf16)) {
      random = random * 1664525u + 1013904223u;
      const Bf16 value = ToBf16(static_cast<float>(random >> 16) * 0x1p-15f - 1.0f);
      std::memcpy(part.data() + i, &value, sizeof value);
    }
  }
  return executor.Restore(*snapshot, slot);
}

/// What the steps below give.
struct Answer {
  LogitRows logits;
  std::vector<SequenceState> states;
};

/// Steps of one row, of several sequences of very different lengths, of rows that see different
/// numbers of chunks, and with drafts.
Answer RunSteps(Executor& executor) {
  Answer answer;
  EXPECT_TRUE(MakeSequence(executor, 0, kShortLength));
  EXPECT_TRUE(MakeSequence(executor, 1, kLongLength));
  const std::vector<std::int32_t> text = Text();
  std::vector<std::int32_t> lengths = {kShortLength, kLongLength, 0};
  const auto step = [&](std::vector<exec::Run> runs) {
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> logit_rows;
    for (exec::Run& run : runs) {
      run.first_position = lengths[static_cast<std::size_t>(run.slot)];
      for (std::int32_t i = 0; i < run.count; ++i) {
        // Of a run with drafts the drafts' logits come with its tokens.
        if (!run.wants_token) logit_rows.push_back(static_cast<std::int32_t>(tokens.size()));
        tokens.push_back(text[static_cast<std::size_t>(run.first_position + i)]);
      }
    }
    const auto output = executor.Step({runs, tokens, logit_rows});
    ASSERT_TRUE(output) << output.error().message;
    for (std::int64_t i = 0; i < output->rows(); ++i) {
      answer.logits.emplace_back(output->Row(i).begin(), output->Row(i).end());
    }
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::int32_t accepted = runs[i].wants_token ? output->runs()[i].num_accepted : 0;
      lengths[static_cast<std::size_t>(runs[i].slot)] +=
          runs[i].count - runs[i].num_drafts + accepted;
    }
  };
  for (int i = 0; i < 5; ++i) step({{0, 0, 1}});
  step({{2, 0, 3}, {0, 0, 1}, {1, 0, 2}});
  step({{1, 0, 8}});
  step({{0, 0, 4, 3, true}, {1, 0, 4, 2, true}});
  step({{0, 0, 1}, {2, 0, 1}, {1, 0, 1}});
  for (const std::int32_t slot : {0, 1, 2}) answer.states.push_back(ReadState(executor, slot));
  return answer;
}

void ExpectSame(const Answer& want, const Answer& have, const std::string& what) {
  EXPECT_EQ(FirstDifference(want.logits, have.logits), "") << what;
  EXPECT_TRUE(want.states == have.states) << what;
}

class DividedAttention : public ::testing::TestWithParam<const char*> {};

TEST_P(DividedAttention, AnyWorkersGiveTheBitsOfOne) {
  ExecutorSpec spec = Spec(GetParam());
  spec.reference = true;
  const auto oracle = Make(spec);
  ASSERT_NE(oracle, nullptr);
  EXPECT_FALSE(Divides(*oracle));
  const Answer want = RunSteps(*oracle);
  for (const std::int32_t workers : {1, 2, 3, 5}) {
    spec.num_workers = workers;
    for (const bool reference : {false, true}) {
      if (reference && workers == 1) continue;
      spec.reference = reference;
      spec.interleaving_seed = reference ? 7 : 0;
      const auto executor = Make(spec);
      ASSERT_NE(executor, nullptr);
      EXPECT_EQ(Divides(*executor), workers > 1);
      ExpectSame(want, RunSteps(*executor), Describe(spec));
    }
  }
}

// Steps of more rows than are divided: the same definition.
TEST_P(DividedAttention, LargeStepsGiveTheSameBits) {
  ExecutorSpec spec = Spec(GetParam());
  spec.num_workers = 2;
  const auto divided = Make(spec);
  spec.row_buckets = {16};
  const auto whole = Make(spec);
  ASSERT_TRUE(divided != nullptr && whole != nullptr);
  EXPECT_TRUE(Divides(*divided));
  EXPECT_FALSE(Divides(*whole));
  const std::vector<std::int32_t> text = Text();
  for (const std::int32_t slot : {0, 1}) {
    const std::int32_t length = slot == 0 ? kShortLength : kLongLength;
    const auto tokens = std::span(text).subspan(static_cast<std::size_t>(length), 16);
    ASSERT_TRUE(MakeSequence(*whole, slot, length));
    const auto want = Feed(*whole, slot, tokens, 16, length);
    ASSERT_TRUE(want) << want.error().message;
    for (const std::int32_t rows : {1, 3, 8}) {
      ASSERT_TRUE(MakeSequence(*divided, slot, length));
      const auto have = Feed(*divided, slot, tokens, rows, length);
      ASSERT_TRUE(have) << have.error().message;
      EXPECT_EQ(FirstDifference(*want, *have), "") << rows << " rows";
    }
  }
}

TEST(DividedAttentionPaths, EveryPathGivesTheBitsOfTheInterpreter) {
  std::vector<ExecutorSpec> specs;
  for (const kernels::Isa isa : kernels::SupportedIsas()) {
    specs.push_back(Spec("k3-unit"));
    specs.back().isa = isa;
  }
  specs.push_back(Spec("k3-unit"));
  specs.back().isa = kernels::Isa::kPortable;
  specs.back().activation_dtype = DType::kF32;
  for (ExecutorSpec& spec : specs) {
    spec.numerics = kernels::NumericsOf(spec.isa);
    spec.num_workers = 3;
    const auto engine = Make(spec);
    spec.num_workers = 1;
    spec.reference = true;
    const auto oracle = Make(spec);
    ASSERT_TRUE(engine != nullptr && oracle != nullptr);
    ExpectSame(RunSteps(*oracle), RunSteps(*engine), Describe(spec));
  }
}

// Each rank divides the attention of its own heads.
TEST(DividedAttentionRanks, EveryRankHasTheBitsOfOne) {
  ExecutorSpec spec = Spec("k3-unit");
  spec.row_buckets = {1, 8, 1024};
  spec.num_slots = 1;
  spec.fast_prefill = true;
  const std::vector<std::int32_t> text = Text();
  const auto prompt = std::span(text).first(kShortLength);
  const auto tokens = std::span(text).subspan(kShortLength, 12);
  const auto answer = [&](Executor& executor) -> Result<LogitRows> {
    MEGALITH_ASSIGN_OR_RETURN(LogitRows logits, Feed(executor, 0, prompt, 1024));
    MEGALITH_ASSIGN_OR_RETURN(const LogitRows single,
                              Feed(executor, 0, tokens.first(5), 1, kShortLength));
    MEGALITH_ASSIGN_OR_RETURN(const LogitRows together,
                              Feed(executor, 0, tokens.subspan(5), 7, kShortLength + 5));
    logits.insert(logits.end(), single.begin(), single.end());
    logits.insert(logits.end(), together.begin(), together.end());
    return logits;
  };
  const auto alone = Make(spec);
  ASSERT_NE(alone, nullptr);
  EXPECT_FALSE(Divides(*alone));
  const auto want = answer(*alone);
  ASSERT_TRUE(want) << want.error().message;
  spec.num_workers = 2;
  for (const program::RankLayout layout : {program::RankLayout{2, 1}, program::RankLayout{3, 1}}) {
    spec.ranks = layout;
    std::mutex mutex;
    const Status status = OnRanks(spec, [&](Executor& executor, std::int32_t rank) -> Status {
      MEGALITH_ASSIGN_OR_RETURN(const LogitRows have, answer(executor));
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(Divides(executor));
      EXPECT_EQ(FirstDifference(*want, have), "") << "rank " << rank << " of " << layout.NumRanks();
      return {};
    });
    EXPECT_TRUE(status) << status.error().message;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DividedAttention, ::testing::Values("k3-unit", "k3-odd"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace megalith::exec::testing
