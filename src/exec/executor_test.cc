// Whole models on real checkpoints: every executor gives the same bits, however the work is cut.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <thread>

#include "exec/device_memory.h"
#include "exec/testing/executors.h"
#include "exec/testing/golden.h"

namespace megalith::exec::testing {
namespace {

using kernels::DotNumerics;
using kernels::DotOrder;
using kernels::Isa;

std::string Directory(const std::string& model) {
  if (model == "k3-nano") return std::string(MEGALITH_SOURCE_DIR) + "/models/k3-nano";
  return std::string(MEGALITH_TEST_DATA) + "/golden/" + model;
}

std::unique_ptr<Executor> Make(const ExecutorSpec& spec) {
  auto executor = MakeExecutor(spec);
  if (!executor) ADD_FAILURE() << Describe(spec) << ": " << executor.error().message;
  return executor ? *std::move(executor) : nullptr;
}

LogitRows FeedOrFail(Executor& executor, std::int32_t slot, std::span<const std::int32_t> tokens,
                     std::int32_t rows_per_step, std::int32_t first_position = 0) {
  auto rows = Feed(executor, slot, tokens, rows_per_step, first_position);
  if (!rows) ADD_FAILURE() << rows.error().message;
  return rows ? *std::move(rows) : LogitRows();
}

/// Of one sequence that nobody disturbed, one row a step.
struct Expected {
  std::vector<std::int32_t> tokens;
  LogitRows logits;
  SequenceState state;
};

/// The interpreter's answer, with one worker and one row at a time.
const Expected& Oracle(const std::string& model, DType dtype, DotNumerics numerics) {
  constexpr std::size_t kTokens = 20;
  static std::map<std::tuple<std::string, DType, DotNumerics>, Expected> cache;
  const auto [entry, is_new] = cache.try_emplace({model, dtype, numerics});
  Expected& expected = entry->second;
  if (!is_new) return expected;
  ExecutorSpec spec;
  spec.directory = Directory(model);
  spec.reference = true;
  spec.numerics = numerics;
  spec.activation_dtype = dtype;
  spec.row_buckets = {1};
  const auto executor = Make(spec);
  expected.tokens = RandomTokens(kTokens, executor->limits().vocab_size, 7);
  expected.logits = FeedOrFail(*executor, 0, expected.tokens, 1);
  expected.state = ReadState(*executor, 0);
  return expected;
}

/// One way to run a model, compared with the oracle of the same numerics.
class EveryPath : public ::testing::TestWithParam<ExecutorSpec> {
 protected:
  void SetUp() override {
    if (!GetParam().reference && !kernels::IsaSupported(GetParam().isa)) {
      GTEST_SKIP() << "this CPU lacks " << kernels::IsaName(GetParam().isa);
    }
  }
  static const Expected& Want(const ExecutorSpec& spec, const std::string& model) {
    return Oracle(model, spec.activation_dtype,
                  spec.reference ? spec.numerics : kernels::NumericsOf(spec.isa));
  }
};

TEST_P(EveryPath, LogitsAndStateEqualTheInterpreterAtEveryRowCount) {
  for (const char* model : {"k3-unit", "k3-odd", "k3-realdims", "k3-tiny", "k3-nano"}) {
    ExecutorSpec spec = GetParam();
    spec.directory = Directory(model);
    spec.row_buckets = {1, 2, 8, 64};
    const Expected& want = Want(spec, model);
    const auto executor = Make(spec);
    ASSERT_NE(executor, nullptr);
    const std::vector<std::int32_t> row_counts = spec.reference
                                                     ? std::vector<std::int32_t>{3, 64}
                                                     : std::vector<std::int32_t>{1, 2, 7, 8, 64};
    for (const std::int32_t rows : row_counts) {
      const LogitRows have = FeedOrFail(*executor, 0, want.tokens, rows);
      EXPECT_EQ(FirstDifference(want.logits, have), "") << model << ", rows " << rows;
      EXPECT_TRUE(ReadState(*executor, 0) == want.state) << model << ", rows " << rows;
    }
  }
}

TEST_P(EveryPath, OtherSequencesInTheStepChangeNothing) {
  ExecutorSpec spec = GetParam();
  spec.directory = Directory("k3-tiny");
  spec.row_buckets = {1, 16};
  spec.num_slots = 3;
  const Expected& want = Want(spec, "k3-tiny");
  const auto executor = Make(spec);
  ASSERT_NE(executor, nullptr);
  const auto first_other = RandomTokens(64, executor->limits().vocab_size, 1);
  const auto second_other = RandomTokens(64, executor->limits().vocab_size, 2);
  // The sequence in slot 1 between two others whose runs have other lengths in every step.
  LogitRows have;
  std::vector<std::int32_t> length(3, 0);
  for (std::int32_t step = 0; length[1] < static_cast<std::int32_t>(want.tokens.size()); ++step) {
    std::vector<exec::Run> runs;
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> logit_rows;
    const auto add = [&](std::int32_t slot, const std::vector<std::int32_t>& source,
                         std::int32_t count) {
      const std::int32_t begin = length[static_cast<std::size_t>(slot)];
      count = std::min(count, static_cast<std::int32_t>(source.size()) - begin);
      runs.push_back({slot, begin, count});
      for (std::int32_t i = 0; i < count; ++i) {
        if (slot == 1) logit_rows.push_back(static_cast<std::int32_t>(tokens.size()));
        tokens.push_back(source[static_cast<std::size_t>(begin + i)]);
      }
      length[static_cast<std::size_t>(slot)] += count;
    };
    if (step % 3 != 1) add(2, first_other, 1 + step % 4);
    add(1, want.tokens, 1 + step % 3);
    if (step % 2 == 0) add(0, second_other, 1 + step % 5);
    const auto logits = executor->Step({runs, tokens, logit_rows});
    ASSERT_TRUE(logits.has_value()) << logits.error().message;
    for (std::int64_t i = 0; i < logits->rows(); ++i) {
      have.emplace_back(logits->Row(i).begin(), logits->Row(i).end());
    }
  }
  EXPECT_EQ(FirstDifference(want.logits, have), "");
  EXPECT_TRUE(ReadState(*executor, 1) == want.state);
}

TEST_P(EveryPath, SlotUsedBeforeStartsAfresh) {
  ExecutorSpec spec = GetParam();
  spec.directory = Directory("k3-tiny");
  const Expected& want = Want(spec, "k3-tiny");
  const auto executor = Make(spec);
  ASSERT_NE(executor, nullptr);
  const auto other = RandomTokens(40, executor->limits().vocab_size, 3);
  FeedOrFail(*executor, 0, other, 8);
  ASSERT_TRUE(executor->ReleaseSlot(0).has_value());
  EXPECT_EQ(FirstDifference(want.logits, FeedOrFail(*executor, 0, want.tokens, 8)), "");
  // And again without a release: a run at position 0 restarts the slot.
  FeedOrFail(*executor, 0, other, 8);
  EXPECT_EQ(FirstDifference(want.logits, FeedOrFail(*executor, 0, want.tokens, 8)), "");
  EXPECT_TRUE(ReadState(*executor, 0) == want.state);
}

std::vector<ExecutorSpec> Paths() {
  std::vector<ExecutorSpec> paths;
  // What the number of workers changes is the same on every path.
  for (const std::int32_t workers : {2, 5}) {
    ExecutorSpec spec;
    spec.num_workers = workers;
    paths.push_back(spec);
  }
  for (const std::int32_t workers : {1, 3}) {
    ExecutorSpec spec;
    spec.num_workers = workers;
    for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
      spec.isa = isa;
      paths.push_back(spec);
    }
    spec.isa = Isa::kPortable;
    spec.activation_dtype = DType::kF32;
    paths.push_back(spec);
  }
  for (const Isa isa : {Isa::kAmx, Isa::kAmxEmulated}) {
    ExecutorSpec spec;
    spec.num_workers = 2;
    spec.isa = isa;
    paths.push_back(spec);
  }
  // The interpreter is slow: the rest of its freedom is tested below.
  ExecutorSpec spec;
  spec.reference = true;
  spec.num_workers = 3;
  paths.push_back(spec);
  spec.num_workers = 2;
  spec.numerics.order = DotOrder::kJoinedPairs;
  spec.interleaving_seed = 11;
  paths.push_back(spec);
  return paths;
}

INSTANTIATE_TEST_SUITE_P(, EveryPath, ::testing::ValuesIn(Paths()), [](const auto& test) {
  std::string name = Describe(test.param);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

// ---- int8 dense weights -------------------------------------------------------------------------

// Every path against the interpreter, and both against bf16: other bits, the same model.
TEST(Int8Dense, EveryPathEqualsTheInterpreterAndStaysNearBf16) {
  for (const char* model : {"k3-unit", "k3-odd"}) {
    SCOPED_TRACE(model);
    ExecutorSpec spec;
    spec.directory = Directory(model);
    spec.dense = *program::ParseDenseFormats("int8,router=int8");
    for (const Isa like : {Isa::kPortable, Isa::kAvx512Bf16, Isa::kAmx}) {
      const DotNumerics numerics = kernels::NumericsOf(like);
      const Expected& bf16 = Oracle(model, DType::kBf16, numerics);
      const std::span<const std::int32_t> tokens = std::span(bf16.tokens).first(9);
      spec.reference = true;
      spec.numerics = numerics;
      spec.num_workers = 1;
      const auto interpreter = Make(spec);
      ASSERT_NE(interpreter, nullptr);
      const LogitRows want = FeedOrFail(*interpreter, 0, tokens, 8);
      double difference = 0.0;
      double magnitude = 0.0;
      for (std::size_t row = 0; row < want.size(); ++row) {
        for (std::size_t i = 0; i < want[row].size(); ++i) {
          const double exact = static_cast<double>(bf16.logits[row][i]);
          difference += std::pow(static_cast<double>(want[row][i]) - exact, 2.0);
          magnitude += exact * exact;
        }
      }
      EXPECT_GT(difference, 0.0);
      EXPECT_LT(difference, 0.01 * magnitude);
      spec.reference = false;
      spec.num_workers = 2;
      std::vector<Isa> isas = kernels::SupportedIsas();
      if (kernels::IsaSupported(Isa::kAmxEmulated)) isas.push_back(Isa::kAmxEmulated);
      for (const Isa isa : isas) {
        if (kernels::NumericsOf(isa) != numerics) continue;
        spec.isa = isa;
        const auto executor = Make(spec);
        ASSERT_NE(executor, nullptr);
        EXPECT_EQ(FirstDifference(want, FeedOrFail(*executor, 0, tokens, 8)), "")
            << kernels::IsaName(isa);
      }
    }
  }
}

// ---- cutting ------------------------------------------------------------------------------------

TEST(CpuEngine, PromptCutAnywhereGivesTheSameBits) {
  ExecutorSpec spec;
  spec.directory = Directory("k3-unit");
  spec.num_workers = 2;
  spec.row_buckets = {1, 4, 16, 64};
  const Expected& want = Oracle("k3-unit", spec.activation_dtype, DotNumerics{});
  const auto executor = Make(spec);
  ASSERT_NE(executor, nullptr);
  const std::span<const std::int32_t> tokens = want.tokens;
  for (std::size_t cut = 1; cut < tokens.size(); ++cut) {
    LogitRows have = FeedOrFail(*executor, 0, tokens.first(cut), 64);
    const LogitRows rest =
        FeedOrFail(*executor, 0, tokens.subspan(cut), 64, static_cast<std::int32_t>(cut));
    have.insert(have.end(), rest.begin(), rest.end());
    EXPECT_EQ(FirstDifference(want.logits, have), "") << "cut after " << cut;
    EXPECT_TRUE(ReadState(*executor, 0) == want.state) << "cut after " << cut;
  }
}

// More rows than the engine multiplies with a group of panels at once, in every part of a step.
TEST(CpuEngine, StepOfManyRowsGivesTheBitsOfSmallSteps) {
  ExecutorSpec spec;
  spec.directory = Directory("k3-tiny");
  spec.isa = kernels::SelectIsa().value();
  spec.num_workers = 2;
  spec.max_positions = 4096;
  spec.row_buckets = {16, 4096};
  const auto executor = Make(spec);
  ASSERT_NE(executor, nullptr);
  const std::vector<std::int32_t> tokens = RandomTokens(2500, executor->limits().vocab_size, 7);
  const LogitRows small = FeedOrFail(*executor, 0, tokens, 16);
  ASSERT_TRUE(executor->ReleaseSlot(0).has_value());
  const LogitRows large = FeedOrFail(*executor, 0, tokens, 2500);
  EXPECT_EQ(FirstDifference(small, large), "");
}

/// Numbers below a bound, the same on every machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : values_(RandomTokens(4096, 1 << 20, seed)) {}
  std::int32_t Roll(std::int32_t bound) { return values_[next_++ % values_.size()] % bound; }

 private:
  std::vector<std::int32_t> values_;
  std::size_t next_ = 0;
};

/// Sequences come, grow by runs of any length, are ended or restarted, in any company: each row's
/// logits are those of its sequence alone, one row at a time.
TEST(CpuEngine, RandomSchedulesGiveTheBitsOfEachSequenceAlone) {
  constexpr std::int32_t kSlots = 4;
  constexpr std::int32_t kRows = 16;
  const auto vocab_size =
      static_cast<std::int32_t>(OpenCheckpoint(Directory("k3-tiny")).value()->model().vocab_size);
  std::vector<std::vector<std::int32_t>> texts;
  std::vector<LogitRows> want;
  ExecutorSpec alone;
  alone.directory = Directory("k3-tiny");
  alone.row_buckets = {1};
  const auto oracle = Make(alone);
  ASSERT_NE(oracle, nullptr);
  for (std::uint64_t text = 0; text < 5; ++text) {
    texts.push_back(RandomTokens(40, vocab_size, 100 + text));
    want.push_back(FeedOrFail(*oracle, 0, texts.back(), 1));
  }
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Dice dice(seed);
    ExecutorSpec spec;
    spec.directory = alone.directory;
    spec.num_workers = 1 + dice.Roll(3);
    spec.row_buckets = {1, 4, kRows};
    spec.num_slots = kSlots;
    spec.page_tokens = 1 + dice.Roll(9);
    const auto executor = Make(spec);
    ASSERT_NE(executor, nullptr);
    std::vector<std::size_t> text(kSlots, 0);
    std::vector<std::int32_t> length(kSlots, 0);
    for (int step = 0; step < 25; ++step) {
      std::vector<exec::Run> runs;
      std::vector<std::int32_t> tokens;
      std::vector<std::int32_t> logit_rows;
      std::vector<const std::vector<float>*> expected;
      for (std::int32_t i = 0; i < kSlots; ++i) {
        const std::int32_t slot = (i + step) % kSlots;
        const auto s = static_cast<std::size_t>(slot);
        if (dice.Roll(3) == 0) continue;
        if (dice.Roll(6) == 0 || length[s] >= 40) {
          if (dice.Roll(2) == 0) {
            EXPECT_TRUE(executor->ReleaseSlot(slot).has_value());
          }
          length[s] = 0;
        }
        if (length[s] == 0) text[s] = static_cast<std::size_t>(dice.Roll(5));
        const std::int32_t room =
            std::min(kRows - static_cast<std::int32_t>(tokens.size()), 40 - length[s]);
        if (room == 0) continue;
        const std::int32_t count = 1 + dice.Roll(std::min(room, 9));
        runs.push_back({slot, length[s], count});
        for (std::int32_t row = 0; row < count; ++row) {
          const auto position = static_cast<std::size_t>(length[s]++);
          if (dice.Roll(2) == 0) {
            logit_rows.push_back(static_cast<std::int32_t>(tokens.size()));
            expected.push_back(&want[text[s]][position]);
          }
          tokens.push_back(texts[text[s]][position]);
        }
      }
      if (runs.empty()) continue;
      const auto logits = executor->Step({runs, tokens, logit_rows});
      ASSERT_TRUE(logits.has_value()) << logits.error().message;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto row = logits->Row(static_cast<std::int64_t>(i));
        ASSERT_TRUE(std::equal(row.begin(), row.end(), expected[i]->begin()))
            << "seed " << seed << ", step " << step << ", logit row " << i;
      }
    }
  }
}

TEST(ReferenceExecutor, OrderOfTheWorkersChangesNothing) {
  const Expected& want = Oracle("k3-tiny", DType::kBf16, DotNumerics{});
  ExecutorSpec spec;
  spec.directory = Directory("k3-tiny");
  spec.reference = true;
  spec.num_workers = 5;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    spec.interleaving_seed = seed;
    const auto executor = Make(spec);
    ASSERT_NE(executor, nullptr);
    EXPECT_EQ(FirstDifference(want.logits, FeedOrFail(*executor, 0, want.tokens, 8)), "")
        << "seed " << seed;
  }
}

TEST(CpuEngine, DelayedWorkersChangeNothing) {
  const Expected& want = Oracle("k3-tiny", DType::kBf16, DotNumerics{});
  for (const std::uint32_t seed : {1u, 2u, 3u}) {
    ExecutorSpec spec;
    spec.directory = Directory("k3-tiny");
    spec.num_workers = 3;
    std::atomic<std::uint32_t> state{seed};
    spec.before_instruction = [&state](std::int32_t worker, std::int64_t, std::int64_t) {
      const std::uint32_t value =
          state.fetch_add(0x9e3779b9u, std::memory_order_relaxed) * 0x85ebca6bu;
      if ((value >> 16) % 16 == static_cast<std::uint32_t>(worker)) {
        std::this_thread::sleep_for(std::chrono::microseconds(value % 128));
      }
    };
    const auto executor = Make(spec);
    ASSERT_NE(executor, nullptr);
    EXPECT_EQ(FirstDifference(want.logits, FeedOrFail(*executor, 0, want.tokens, 4)), "")
        << "seed " << seed;
    EXPECT_TRUE(ReadState(*executor, 0) == want.state) << "seed " << seed;
  }
}

TEST(CpuEngine, PrefetchingChangesNothing) {
  const Expected& want = Oracle("k3-nano", DType::kBf16, DotNumerics{});
  ExecutorSpec spec;
  spec.directory = Directory("k3-nano");
  spec.num_workers = 2;
  spec.prefetch = false;
  const auto executor = Make(spec);
  ASSERT_NE(executor, nullptr);
  EXPECT_EQ(FirstDifference(want.logits, FeedOrFail(*executor, 0, want.tokens, 3)), "");
}

// ---- steps that must be refused -----------------------------------------------------------------

class StepChecks : public ::testing::TestWithParam<bool> {
 protected:
  ExecutorSpec Spec() const {
    ExecutorSpec spec;
    spec.directory = Directory("k3-unit");
    spec.reference = GetParam();
    spec.num_workers = 2;
    spec.row_buckets = {1, 8};
    spec.page_tokens = 4;
    spec.max_positions = 24;
    return spec;
  }

  static Error Refused(Executor& executor, const std::vector<exec::Run>& runs,
                       const std::vector<std::int32_t>& tokens,
                       const std::vector<std::int32_t>& logit_rows) {
    const auto logits = executor.Step({runs, tokens, logit_rows});
    EXPECT_FALSE(logits.has_value());
    return logits ? Error{} : logits.error();
  }
};

TEST_P(StepChecks, BadValuesAreNamedAndChangeNothing) {
  const auto executor = Make(Spec());
  ASSERT_NE(executor, nullptr);
  const std::vector<std::int32_t> prompt = {5, 6, 7, 8, 9};
  const LogitRows before = FeedOrFail(*executor, 0, prompt, 8);
  const SequenceState state = ReadState(*executor, 0);

  struct Case {
    const char* what;
    std::vector<exec::Run> runs;
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> logit_rows;
    ErrorCode code;
    const char* names;
  };
  const std::vector<std::int32_t> nine(9, 1);
  const std::vector<std::int32_t> twenty(20, 1);
  const Case cases[] = {
      {"no rows", {}, {}, {}, ErrorCode::kOutOfRange, "0 rows"},
      {"too many rows", {{1, 0, 9}}, nine, {}, ErrorCode::kOutOfRange, "9 rows"},
      {"token too large", {{1, 0, 1}}, {512}, {0}, ErrorCode::kOutOfRange, "token 512"},
      {"negative token", {{1, 0, 2}}, {0, -1}, {0}, ErrorCode::kOutOfRange, "token -1"},
      {"fewer tokens than rows", {{1, 0, 2}}, {1}, {0}, ErrorCode::kUsage, "2 rows"},
      {"slot too large", {{2, 0, 1}}, {1}, {0}, ErrorCode::kOutOfRange, "slot 2"},
      {"negative slot", {{-1, 0, 1}}, {1}, {0}, ErrorCode::kOutOfRange, "slot -1"},
      {"slot twice", {{1, 0, 1}, {1, 1, 1}}, {1, 2}, {0}, ErrorCode::kUsage, "slot 1"},
      {"gap in the sequence", {{0, 6, 1}}, {1}, {0}, ErrorCode::kOutOfRange, "position 6"},
      {"position seen before", {{0, 4, 1}}, {1}, {0}, ErrorCode::kOutOfRange, "position 4"},
      {"negative position", {{0, -1, 1}}, {1}, {0}, ErrorCode::kOutOfRange, "position -1"},
      {"empty run", {{0, 5, 1}, {1, 0, 0}}, {1}, {0}, ErrorCode::kOutOfRange, "0 rows"},
      {"negative run", {{0, 5, 2}, {1, 0, -1}}, {1}, {0}, ErrorCode::kOutOfRange, "-1 rows"},
      {"logit row too large", {{0, 5, 1}}, {1}, {1}, ErrorCode::kOutOfRange, "row 1"},
      {"negative logit row", {{0, 5, 1}}, {1}, {-1}, ErrorCode::kOutOfRange, "row -1"},
      {"too many logit rows",
       {{0, 5, 1}},
       {1},
       std::vector<std::int32_t>(9, 0),
       ErrorCode::kOutOfRange,
       "9 rows"},
  };
  for (const Case& item : cases) {
    const Error error = Refused(*executor, item.runs, item.tokens, item.logit_rows);
    EXPECT_EQ(ErrorCodeName(error.code), ErrorCodeName(item.code)) << item.what;
    EXPECT_NE(error.message.find(item.names), std::string::npos)
        << item.what << ": " << error.message;
  }
  EXPECT_TRUE(ReadState(*executor, 0) == state);
  EXPECT_EQ(executor->memory().sequences().Length(0), 5);
  EXPECT_EQ(executor->memory().sequences().Length(1), 0);
  EXPECT_EQ(FirstDifference(before, FeedOrFail(*executor, 1, prompt, 8)), "");
}

TEST_P(StepChecks, SequenceLongerThanAllowedIsRefused) {
  const auto executor = Make(Spec());
  ASSERT_NE(executor, nullptr);
  FeedOrFail(*executor, 0, std::vector<std::int32_t>(24, 3), 8);
  const Error error = Refused(*executor, {{0, 24, 1}}, {3}, {0});
  EXPECT_EQ(ErrorCodeName(error.code), ErrorCodeName(ErrorCode::kOutOfRange));
  EXPECT_NE(error.message.find("24"), std::string::npos) << error.message;
}

TEST_P(StepChecks, PagesThatRunOutStopTheStepBeforeItRuns) {
  ExecutorSpec spec = Spec();
  spec.num_pages = 7;  // of 4 positions each; two full sequences would need 12
  const auto executor = Make(spec);
  ASSERT_NE(executor, nullptr);
  const std::vector<std::int32_t> tokens(24, 3);
  FeedOrFail(*executor, 0, std::span(tokens).first(16), 8);
  const LogitRows alone = FeedOrFail(*executor, 1, std::span(tokens).first(12), 8);
  EXPECT_EQ(executor->memory().sequences().num_free_pages(), 0);

  const Error error = Refused(*executor, {{0, 16, 1}}, {3}, {0});
  EXPECT_EQ(ErrorCodeName(error.code), ErrorCodeName(ErrorCode::kOutOfMemory));
  EXPECT_NE(error.message.find("page"), std::string::npos) << error.message;
  EXPECT_EQ(executor->memory().sequences().Length(0), 16);

  // A page inside its last, partly filled page needs no new one; pages come back with the slot.
  ASSERT_TRUE(executor->ReleaseSlot(0).has_value());
  EXPECT_EQ(executor->memory().sequences().num_free_pages(), 4);
  EXPECT_EQ(FirstDifference(alone, FeedOrFail(*executor, 0, std::span(tokens).first(12), 8)), "");
}

TEST_P(StepChecks, StepWithoutLogitRowsStillAdvancesTheSequence) {
  const auto executor = Make(Spec());
  ASSERT_NE(executor, nullptr);
  const std::vector<std::int32_t> tokens = {4, 5, 6, 7};
  const LogitRows want = FeedOrFail(*executor, 1, tokens, 8);
  const exec::Run first{0, 0, 3};
  const auto silent = executor->Step({{&first, 1}, std::span(tokens).first(3), {}});
  ASSERT_TRUE(silent.has_value()) << silent.error().message;
  EXPECT_EQ(silent->rows(), 0);
  const LogitRows last = FeedOrFail(*executor, 0, std::span(tokens).subspan(3), 1, 3);
  EXPECT_EQ(FirstDifference({want.back()}, last), "");
}

TEST_P(StepChecks, LogitRowsComeInTheOrderAskedFor) {
  const auto executor = Make(Spec());
  ASSERT_NE(executor, nullptr);
  const std::vector<std::int32_t> tokens = {4, 5, 6, 7};
  const LogitRows all = FeedOrFail(*executor, 1, tokens, 8);
  const exec::Run run{0, 0, 4};
  const std::vector<std::int32_t> asked = {3, 0, 3};
  const auto logits = executor->Step({{&run, 1}, tokens, asked});
  ASSERT_TRUE(logits.has_value()) << logits.error().message;
  ASSERT_EQ(logits->rows(), 3);
  LogitRows have;
  for (std::int64_t i = 0; i < 3; ++i) {
    have.emplace_back(logits->Row(i).begin(), logits->Row(i).end());
  }
  EXPECT_EQ(FirstDifference({all[3], all[0], all[3]}, have), "");
}

TEST_P(StepChecks, SlotThatDoesNotExistCannotBeReleased) {
  const auto executor = Make(Spec());
  ASSERT_NE(executor, nullptr);
  EXPECT_FALSE(executor->ReleaseSlot(2).has_value());
  EXPECT_FALSE(executor->ReleaseSlot(-1).has_value());
  EXPECT_TRUE(executor->ReleaseSlot(1).has_value());
}

TEST_P(StepChecks, FailureHalfWayLosesTheSequencesOfTheStepOnly) {
  ExecutorSpec spec = Spec();
  spec.row_buckets = {8};
  spec.num_slots = 3;
  const auto free = Make(spec);
  ASSERT_NE(free, nullptr);
  const std::vector<std::int32_t> tokens = {5, 6, 7, 8, 9, 10};
  const LogitRows want = FeedOrFail(*free, 0, tokens, 1);
  // One row chooses 4 experts, several rows choose more.
  spec.max_active_experts = 4;
  const auto executor = Make(spec);
  ASSERT_NE(executor, nullptr);
  LogitRows have = FeedOrFail(*executor, 0, std::span(tokens).first(3), 1);
  FeedOrFail(*executor, 1, tokens, 1);
  const Error error = Refused(*executor, {{1, 6, 2}, {2, 0, 4}}, {1, 2, 3, 4, 5, 6}, {0});
  EXPECT_EQ(ErrorCodeName(error.code), ErrorCodeName(ErrorCode::kInternal));
  EXPECT_NE(error.message.find("experts"), std::string::npos) << error.message;
  const Sequences& sequences = executor->memory().sequences();
  EXPECT_EQ(sequences.Length(0), 3);
  EXPECT_EQ(sequences.Length(1), 0);
  EXPECT_EQ(sequences.Length(2), 0);
  const LogitRows rest = FeedOrFail(*executor, 0, std::span(tokens).subspan(3), 1, 3);
  have.insert(have.end(), rest.begin(), rest.end());
  EXPECT_EQ(FirstDifference(want, have), "");
  EXPECT_EQ(FirstDifference(want, FeedOrFail(*executor, 1, tokens, 1)), "");
}

INSTANTIATE_TEST_SUITE_P(, StepChecks, ::testing::Values(true, false),
                         [](const auto& test) { return test.param ? "reference" : "cpu"; });

// ---- life and death -----------------------------------------------------------------------------

TEST(CpuEngine, CanBeDestroyedAtAnyIdleMoment) {
  ExecutorSpec spec;
  spec.directory = Directory("k3-unit");
  spec.num_workers = 3;
  for (int i = 0; i < 5; ++i) {
    const auto executor = Make(spec);
    ASSERT_NE(executor, nullptr);
    if (i % 2 == 0) FeedOrFail(*executor, 0, std::vector<std::int32_t>{1, 2, 3}, 2);
    if (i == 4) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // asleep by now
  }
}

TEST(CpuEngine, WakesUpAfterAPause) {
  const Expected& want = Oracle("k3-unit", DType::kBf16, DotNumerics{});
  ExecutorSpec spec;
  spec.directory = Directory("k3-unit");
  spec.num_workers = 2;
  const auto executor = Make(spec);
  ASSERT_NE(executor, nullptr);
  const std::span<const std::int32_t> tokens = want.tokens;
  LogitRows have;
  for (std::int32_t i = 0; i < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    have.push_back(
        FeedOrFail(*executor, 0, tokens.subspan(static_cast<std::size_t>(i), 1), 1, i).front());
  }
  EXPECT_EQ(FirstDifference(LogitRows(want.logits.begin(), want.logits.begin() + 4), have), "");
}

TEST(CpuEngine, StalledWorkerIsReportedAndEndsTheEngine) {
  ExecutorSpec spec;
  spec.directory = Directory("k3-unit");
  spec.num_workers = 2;
  spec.step_timeout_ms = 10'000;  // for the other worker to come to where it waits
  std::atomic<bool> stall{false};
  spec.before_instruction = [&stall](std::int32_t worker, std::int64_t visit, std::int64_t) {
    while (worker == 1 && visit == 1 && stall.load()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  const auto executor = Make(spec);
  ASSERT_NE(executor, nullptr);
  stall = true;
  const exec::Run run{0, 0, 1};
  const std::int32_t token = 1;
  const auto stalled = executor->Step({{&run, 1}, {&token, 1}, {}});
  stall = false;
  ASSERT_FALSE(stalled.has_value());
  EXPECT_EQ(ErrorCodeName(stalled.error().code), ErrorCodeName(ErrorCode::kInternal));
  for (const char* part : {"worker 0", "worker 1", "waits for counter", "have", "want"}) {
    EXPECT_NE(stalled.error().message.find(part), std::string::npos) << stalled.error().message;
  }
  const auto next = executor->Step({{&run, 1}, {&token, 1}, {}});
  EXPECT_FALSE(next.has_value());
}

TEST(CpuEngine, Float32ActivationsNeedThePortablePath) {
  if (!kernels::IsaSupported(Isa::kAvx2)) GTEST_SKIP() << "this CPU lacks avx2";
  ExecutorSpec spec;
  spec.directory = Directory("k3-unit");
  spec.activation_dtype = DType::kF32;
  spec.isa = Isa::kAvx2;
  const auto executor = MakeExecutor(spec);
  ASSERT_FALSE(executor.has_value());
  EXPECT_EQ(ErrorCodeName(executor.error().code), ErrorCodeName(ErrorCode::kUnsupported));
}

TEST(CpuEngine, WeightsOfAnotherWorkerCountAreRefused) {
  ExecutorSpec spec;
  spec.directory = Directory("k3-unit");
  spec.num_workers = 2;
  const auto weights = Pack(spec);
  ASSERT_TRUE(weights.has_value()) << weights.error().message;
  spec.num_workers = 3;
  auto programs = MakePrograms(spec);
  ASSERT_TRUE(programs.has_value()) << programs.error().message;
  const auto engine = MakeCpuEngine(*std::move(programs), **weights, CpuEngineOptions{});
  ASSERT_FALSE(engine.has_value());
  EXPECT_EQ(ErrorCodeName(engine.error().code), ErrorCodeName(ErrorCode::kUsage));
}

TEST(DeviceMemory, RowBucketsWithOtherStateAreRefused) {
  ExecutorSpec spec;
  spec.directory = Directory("k3-unit");
  std::vector<program::VerifiedProgram> programs = MakePrograms(spec).value();
  spec.row_buckets = {1};
  spec.num_slots = 3;
  programs.push_back(MakePrograms(spec).value().front());
  const auto memory = DeviceMemory::Create(programs, HugePages::kOff);
  ASSERT_FALSE(memory.has_value());
  EXPECT_EQ(ErrorCodeName(memory.error().code), ErrorCodeName(ErrorCode::kUsage));
  EXPECT_NE(memory.error().message.find("slots 3/2"), std::string::npos) << memory.error().message;
}

TEST(DeviceMemory, StateThatDoesNotFitIsRefusedBeforeAllocating) {
  ExecutorSpec spec;
  spec.directory = Directory("k3-unit");
  spec.num_slots = 20'000;
  spec.max_positions = 1 << 20;
  spec.page_tokens = 1024;
  const auto memory = DeviceMemory::Create(MakePrograms(spec).value(), HugePages::kOff);
  ASSERT_FALSE(memory.has_value());
  EXPECT_EQ(ErrorCodeName(memory.error().code), ErrorCodeName(ErrorCode::kOutOfMemory));
}

TEST(DeviceMemory, SizesFollowFromTheModel) {
  ExecutorSpec spec;
  spec.directory = Directory("k3-unit");
  spec.num_slots = 3;
  spec.page_tokens = 16;
  spec.max_positions = 100;
  const auto memory = DeviceMemory::Create(MakePrograms(spec).value(), HugePages::kOff);
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  const MemorySizes& sizes = (*memory)->sizes();
  // One KDA layer: 4 heads of 64 x 64 f32 and three rows of q, k, v; one MLA layer: 128 + 32.
  EXPECT_EQ(sizes.kda_state, 3 * 4 * 64 * 64 * 4);
  EXPECT_EQ(sizes.conv_state, 3 * 3 * 3 * 4 * 64 * 2);
  EXPECT_EQ(sizes.mla_cache, 3 * 7 * 16 * (128 + 32) * 2);
  EXPECT_GT(sizes.activations, 0);
}

TEST(ReferenceExecutor, ObserverSeesInstructionsAndCanStop) {
  ExecutorSpec spec;
  spec.directory = Directory("k3-unit");
  spec.reference = true;
  spec.num_workers = 2;
  std::int64_t events = 0;
  std::vector<float> prefix;
  spec.observer = [&](const InstructionEvent& event) {
    ++events;
    if (event.visit_index < 1) return true;
    const std::uint32_t buffer = event.memory.FindBuffer("prefix");
    EXPECT_NE(buffer, program::kNone);
    const auto bytes = event.memory.Bytes(buffer);
    const auto* first = reinterpret_cast<const Bf16*>(bytes.data());
    prefix.push_back(ToFloat(*first));
    return false;
  };
  const auto executor = Make(spec);
  ASSERT_NE(executor, nullptr);
  const exec::Run run{0, 0, 1};
  const std::int32_t token = 1;
  const auto stopped = executor->Step({{&run, 1}, {&token, 1}, {}});
  ASSERT_FALSE(stopped.has_value());
  EXPECT_EQ(ErrorCodeName(stopped.error().code), ErrorCodeName(ErrorCode::kCancelled));
  EXPECT_GT(events, 2);
  // After the embedding the residual stream is the token's row of the table.
  const auto weights = Pack(spec);
  ASSERT_EQ(prefix.size(), 1U);
  EXPECT_EQ(prefix[0], ToFloat((*weights)->TableRow(0, token)[0]));
}

}  // namespace
}  // namespace megalith::exec::testing
