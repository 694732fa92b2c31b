// An executor on several ranks is, on each of them and bit by bit, the executor of one rank.

#include "exec/rank_mirror.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "exec/device_memory.h"
#include "exec/testing/executors.h"
#include "fabric/inproc.h"

namespace megalith::exec::testing {
namespace {

constexpr std::int32_t kVocabSize = 512;
constexpr std::int32_t kNumSlots = 3;
constexpr std::int32_t kNumDrafts = 3;
constexpr std::uint32_t kTarget = 5;

ExecutorSpec Spec() {
  ExecutorSpec spec;
  spec.directory = MEGALITH_TEST_DATA "/golden/k3-tiny";
  spec.drafter = MEGALITH_TEST_DATA "/golden/k3-tiny-dspark";
  spec.isa = kernels::SelectIsa().value();
  spec.num_slots = kNumSlots;
  spec.page_tokens = 8;
  spec.max_positions = 128;
  spec.num_pages = 17;  // fewer than all slots could want
  spec.row_buckets = {16};
  spec.max_drafts = kNumDrafts;
  spec.draft_runs = kNumSlots;
  spec.num_drafts = kNumDrafts;
  return spec;
}

std::vector<SequenceState> States(const Executor& executor) {
  std::vector<SequenceState> states;
  for (std::int32_t slot = 0; slot < kNumSlots; ++slot) {
    states.push_back(ReadState(executor, slot));
  }
  return states;
}

/// What calls gave, in words and numbers.
struct History {
  std::vector<ErrorCode> errors;
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;
  friend bool operator==(const History&, const History&) = default;

  bool Add(const Status& status) {
    if (!status) errors.push_back(status.error().code);
    return status.has_value();
  }
};

/// Calls that depend on the seed and on what the executor answers.
class RandomUser {
 public:
  RandomUser(Executor& executor, std::uint64_t seed) : executor_(executor), random_(seed) {}

  History Call(int count) {
    for (int i = 0; i < count; ++i) One();
    return std::move(history_);
  }

 private:
  int Below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  std::int32_t Length(std::int32_t slot) { return executor_.memory().sequences().Length(slot); }

  void One() {
    const std::int32_t slot = Below(20) == 0 ? kNumSlots : Below(kNumSlots);
    switch (Below(10)) {
      case 0:
        history_.Add(executor_.ReleaseSlot(slot));
        break;
      case 1:
        if (slot < kNumSlots) history_.Add(executor_.Truncate(slot, Length(slot) - Below(3)));
        break;
      case 2: {
        auto snapshot = executor_.Save(slot);
        if (history_.Add(snapshot ? Status() : tl::unexpected(snapshot.error()))) {
          snapshots_.push_back(std::move(*snapshot));
        }
        break;
      }
      case 3:
        if (snapshots_.empty()) break;
        history_.Add(executor_.Restore(*snapshots_[Index()], slot));
        break;
      case 4:
        if (snapshots_.empty()) break;
        snapshots_.erase(snapshots_.begin() + static_cast<std::ptrdiff_t>(Index()));
        break;
      case 5: {
        // Its pages hold something only after somebody has filled them.
        const auto made = executor_.NewSnapshot(Below(200));
        history_.Add(made ? Status() : tl::unexpected(made.error()));
        break;
      }
      default:
        Step();
    }
  }

  std::size_t Index() {
    return static_cast<std::size_t>(Below(static_cast<int>(snapshots_.size())));
  }

  void Step() {
    std::vector<Run> runs;
    std::vector<std::int32_t> tokens;
    std::vector<kernels::LogitChange> changes = {{7, 1.0f, 20.0f}, {9, 2.0f, -1.0f}};
    std::vector<std::uint64_t> allowed(kVocabSize / 64, random_() | 1);
    const std::vector<kernels::LogitAdjustment> adjustments(kNumDrafts + 1, {changes, allowed});
    for (std::int32_t slot = 0; slot < kNumSlots; ++slot) {
      if (Below(2) == 0) continue;
      // Sometimes a position too far.
      Run run{slot, Length(slot) + (Below(30) == 0 ? 1 : 0), 1 + Below(5)};
      run.wants_token = Below(2) == 0;
      if (run.wants_token) {
        run.num_drafts = std::min(Below(kNumDrafts + 1), run.count - 1);
        run.next_drafts = Below(kNumDrafts + 1);
        run.sampling = {.temperature = Below(2) == 0 ? 0.0f : 0.8f, .seed = random_()};
        if (Below(3) == 0) {
          run.adjustments =
              std::span(adjustments).first(static_cast<std::size_t>(run.num_drafts + 1));
        }
      }
      for (int i = 0; i < run.count; ++i)
        tokens.push_back(Below(60) == 0 ? kVocabSize : Below(kVocabSize));
      runs.push_back(run);
    }
    if (runs.empty()) return;
    std::vector<std::int32_t> logit_rows;
    if (Below(2) == 0) logit_rows.push_back(Below(static_cast<int>(tokens.size())));
    const auto step = executor_.Step({runs, tokens, logit_rows});
    if (!history_.Add(step ? Status() : tl::unexpected(step.error()))) return;
    for (std::int64_t row = 0; row < step->rows(); ++row) {
      const auto values = step->Row(row);
      history_.logits.insert(history_.logits.end(), values.begin(), values.end());
    }
    for (const RunOutput& run : step->runs()) {
      history_.tokens.insert(history_.tokens.end(), run.tokens.begin(), run.tokens.end());
      history_.tokens.insert(history_.tokens.end(), run.drafts.begin(), run.drafts.end());
      history_.tokens.push_back(run.num_accepted);
    }
  }

  Executor& executor_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Snapshot>> snapshots_;
  History history_;
};

/// A rank that repeats until its executor is to end.
Status Follow(Executor& executor, fabric::Fabric& fabric) {
  RankReceiver receiver(fabric);
  CallRepeater repeater(executor, fabric);
  while (true) {
    MEGALITH_ASSIGN_OR_RETURN(const RankMessage message, receiver.Receive());
    if (message.target != kTarget) return Fail(ErrorCode::kInternal, "{}", message.target);
    auto lives = repeater.Repeat(message);
    if (!lives) {
      fabric.Abort(lives.error().message);
      return tl::unexpected(lives.error());
    }
    if (!*lives) return {};
  }
}

/// Executors on ranks that are threads; rank 0's is the test's.
class MirroredRanks {
 public:
  explicit MirroredRanks(std::uint32_t num_ranks)
      : fabrics_(fabric::MakeInprocJob(num_ranks).value()), sender_(*fabrics_[0]) {
    statuses_.resize(num_ranks);
    // All of them before any thread looks at one.
    for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
      executors_.push_back(MakeExecutor(Spec()).value());
    }
    for (std::uint32_t rank = 1; rank < num_ranks; ++rank) {
      threads_.emplace_back([this, rank] {
        statuses_[rank] = exec::testing::Follow(*executors_[rank], *fabrics_[rank]);
      });
    }
    executors_[0]->SetMirror(std::make_unique<RankMirror>(sender_, kTarget));
  }
  ~MirroredRanks() {
    if (!threads_.empty()) End();
  }

  Executor& leader() { return *executors_[0]; }
  fabric::Fabric& fabric(std::size_t rank) { return *fabrics_[rank]; }
  /// Of the followers, once they have ended: nobody else repeats anything then.
  Executor& follower(std::size_t rank) { return *executors_[rank]; }

  /// Destroys the leader's executor and waits for the others.
  const std::vector<Status>& End() {
    executors_[0].reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return statuses_;
  }

 private:
  std::vector<std::unique_ptr<fabric::Fabric>> fabrics_;
  RankSender sender_;
  std::vector<std::unique_ptr<Executor>> executors_;  // by rank
  std::vector<Status> statuses_;
  std::vector<std::thread> threads_;
};

TEST(RankMirror, EveryRankIsTheExecutorOfOneRank) {
  std::vector<ErrorCode> errors;
  for (const std::uint32_t num_ranks : {2u, 3u}) {
    for (std::uint64_t seed = num_ranks; seed <= 5; seed += 2) {
      const auto alone = MakeExecutor(Spec()).value();
      const History want = RandomUser(*alone, seed).Call(100);
      const auto states = States(*alone);
      MirroredRanks ranks(num_ranks);
      EXPECT_TRUE(RandomUser(ranks.leader(), seed).Call(100) == want);
      EXPECT_TRUE(States(ranks.leader()) == states);
      for (const Status& status : ranks.End()) {
        EXPECT_TRUE(status) << status.error().message;
      }
      for (std::uint32_t rank = 1; rank < num_ranks; ++rank) {
        EXPECT_TRUE(States(ranks.follower(rank)) == states) << "rank " << rank;
        EXPECT_EQ(ranks.follower(rank).memory().sequences().num_free_pages(),
                  alone->memory().sequences().num_free_pages());
      }
      errors.insert(errors.end(), want.errors.begin(), want.errors.end());
    }
  }
  // Refused calls were among them, for more than one reason.
  EXPECT_GT(std::ranges::count(errors, ErrorCode::kOutOfRange), 0);
  EXPECT_GT(std::ranges::count(errors, ErrorCode::kOutOfMemory), 0);
}

TEST(RankMirror, ARankThatFailsEndsTheCallsOfAll) {
  MirroredRanks ranks(3);
  ASSERT_TRUE(Feed(ranks.leader(), 0, RandomTokens(5, kVocabSize, 1), 5));
  ranks.fabric(2).Abort("its memory is gone");
  const std::int32_t token = 1;
  const exec::Run run{0, 5, 1};
  for (int i = 0; i < 3; ++i) {
    const auto step = ranks.leader().Step({{&run, 1}, {&token, 1}, {}});
    ASSERT_FALSE(step);
    EXPECT_EQ(step.error().code, ErrorCode::kIo);
    EXPECT_EQ(step.error().message, "rank 2 gave up: its memory is gone");
    EXPECT_EQ(ranks.leader().ReleaseSlot(0).error().message, step.error().message);
  }
  const auto& statuses = ranks.End();
  EXPECT_FALSE(statuses[1]);
  EXPECT_FALSE(statuses[2]);
}

TEST(RankMirror, ARankThatEndsACallOtherwiseIsNamed) {
  auto fabrics = fabric::MakeInprocJob(2).value();
  RankSender sender(*fabrics[0]);
  const auto executor = MakeExecutor(Spec()).value();
  Status followed;
  std::thread thread([&] { followed = Follow(*executor, *fabrics[1]); });
  RankMirror mirror(sender, kTarget);
  Call save;
  save.kind = CallKind::kSave;
  save.snapshot = 1;
  EXPECT_TRUE(mirror.Announce(save));        // of an empty slot: refused there
  EXPECT_TRUE(mirror.TakeOutcome(nullptr));  // and said to be fine here
  save.snapshot = 2;
  EXPECT_TRUE(mirror.Announce(save));
  thread.join();
  ASSERT_FALSE(followed);
  EXPECT_NE(followed.error().message.find("ended with fine on rank 0, here usage"),
            std::string::npos)
      << followed.error().message;
  EXPECT_NE(fabrics[0]->status().error().message.find("rank 1 gave up"), std::string::npos);
}

TEST(RankMirror, AnErrorThatTheInputDoesNotExplainEndsTheJob) {
  auto fabrics = fabric::MakeInprocJob(2).value();
  RankSender sender(*fabrics[0]);
  RankMirror mirror(sender, kTarget);
  const Error refused{ErrorCode::kOutOfMemory, "no page"};
  EXPECT_TRUE(mirror.TakeOutcome(&refused));
  EXPECT_FALSE(fabrics[1]->failed());
  const Error broken{ErrorCode::kInternal, "step not finished"};
  EXPECT_FALSE(mirror.TakeOutcome(&broken));
  EXPECT_EQ(fabrics[1]->status().error().message, "rank 0 gave up: step not finished");
}

TEST(RankChannel, MessagesArriveInOrderAndAreCounted) {
  auto fabrics = fabric::MakeInprocJob(2).value();
  std::thread thread([&fabrics] {
    RankSender sender(*fabrics[0]);
    for (std::uint32_t i = 0; i < 100; ++i) {
      sender.Begin(i).resize(12 + i * 1000);
      EXPECT_TRUE(sender.Send());
    }
    // Another sender begins to count anew.
    RankSender confused(*fabrics[0]);
    confused.Begin(0);
    EXPECT_TRUE(confused.Send());
  });
  RankReceiver receiver(*fabrics[1]);
  for (std::uint32_t i = 0; i < 100; ++i) {
    const auto message = receiver.Receive();
    ASSERT_TRUE(message) << message.error().message;
    EXPECT_EQ(message->number, i + 1);
    EXPECT_EQ(message->target, i);
    EXPECT_EQ(message->payload.size(), i * 1000);
  }
  const auto message = receiver.Receive();
  ASSERT_FALSE(message);
  EXPECT_EQ(message.error().message, "message 101 of rank 0 expected, 1 received");
  thread.join();
}

}  // namespace
}  // namespace megalith::exec::testing
