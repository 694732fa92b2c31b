#include "fabric/inproc.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "fabric/agreement.h"
#include "fabric/testing/exercises.h"

namespace megalith::fabric {
namespace {

using Body = std::function<Status(Fabric&)>;

/// Runs `body` on a thread for each rank, which leaves the job afterwards.
std::vector<Status> RunRanks(std::uint32_t num_ranks, const Body& body,
                             const FabricOptions& options = {}) {
  auto job = MakeInprocJob(num_ranks, options);
  EXPECT_TRUE(job) << job.error().message;
  if (!job) return {};
  std::vector<Status> results(num_ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = body(*(*job)[rank]);
      (*job)[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

void ExpectFine(const std::vector<Status>& results) {
  for (const Status& status : results) EXPECT_TRUE(status) << status.error().message;
}

class InprocRanks : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(All, InprocRanks, testing::Values(1, 2, 3, 8, 32),
                         testing::PrintToStringParamName());

TEST_P(InprocRanks, ExchangesDeliverWhatWasPut) {
  ExchangeExercise exercise;
  exercise.num_exchanges = GetParam() == 32 ? 40 : 300;
  exercise.num_workers = GetParam() < 8 ? 3 : 1;
  ExpectFine(RunRanks(GetParam(), [&](Fabric& f) { return ExerciseExchanges(f, exercise); }));
}

TEST_P(InprocRanks, ExchangesWithDelaysDeliverWhatWasPut) {
  ExchangeExercise exercise;
  exercise.num_exchanges = GetParam() == 32 ? 20 : 100;
  exercise.num_workers = GetParam() < 8 ? 2 : 1;
  exercise.max_delay_us = 300;
  exercise.seed = 2;
  ExpectFine(RunRanks(GetParam(), [&](Fabric& f) { return ExerciseExchanges(f, exercise); }));
}

TEST_P(InprocRanks, CollectivesDeliverWhatWasGiven) {
  const int count = GetParam() == 32 ? 60 : 200;
  ExpectFine(
      RunRanks(GetParam(), [&](Fabric& f) { return ExerciseCollectives(f, count, 100, 5); }));
}

TEST(Inproc, TenThousandExchanges) {
  ExchangeExercise exercise;
  exercise.num_exchanges = 10'000;
  exercise.max_bytes = 512;
  ExpectFine(RunRanks(4, [&](Fabric& f) { return ExerciseExchanges(f, exercise); }));
}

TEST(Inproc, WaitsThatNeverSpinAlsoDeliver) {
  FabricOptions options;
  options.max_spins = 0;
  ExpectFine(RunRanks(
      5, [&](Fabric& f) { return ExerciseExchanges(f, {}); }, options));
}

TEST(Inproc, SeveralSetsOfMailboxesDoNotDisturbEachOther) {
  ExpectFine(RunRanks(3, [](Fabric& fabric) -> Status {
    MEGALITH_ASSIGN_OR_RETURN(const auto one, fabric.CreateMailboxes({{8}}));
    MEGALITH_ASSIGN_OR_RETURN(const auto two, fabric.CreateMailboxes({{8}, {8}}));
    const auto put = [&](Mailboxes& boxes, std::uint32_t mailbox, std::uint64_t value) {
      boxes.Put(mailbox, 1, std::as_bytes(std::span(&value, 1)));
    };
    put(*two, 1, 100 + fabric.rank());
    put(*one, 0, 200 + fabric.rank());
    for (std::uint32_t source = 0; source < 3; ++source) {
      std::uint64_t a = 0;
      std::uint64_t b = 0;
      std::memcpy(&a, one->Wait(0, source, 1).data(), 8);
      std::memcpy(&b, two->Wait(1, source, 1).data(), 8);
      if (a != 200 + source || b != 100 + source || two->Arrived(0, source, 1)) {
        return Fail(ErrorCode::kInternal, "{} {}", a, b);
      }
    }
    return fabric.Barrier();
  }));
}

TEST(Inproc, AbortEndsAllWaitsWithItsReason) {
  const auto results = RunRanks(4, [](Fabric& fabric) -> Status {
    if (fabric.rank() == 2) {
      fabric.Abort("out of luck");
      return fabric.status();
    }
    return ExchangeUntilFailure(fabric);
  });
  for (const Status& status : results) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().message, "rank 2 gave up: out of luck");
  }
}

TEST(Inproc, WaitForARankThatHasLeftFails) {
  const auto results = RunRanks(3, [](Fabric& fabric) -> Status {
    MEGALITH_RETURN_IF_ERROR(fabric.Barrier());
    if (fabric.rank() == 1) return {};
    return fabric.Barrier();
  });
  EXPECT_TRUE(results[1]);
  ASSERT_FALSE(results[0]);
  EXPECT_NE(results[0].error().message.find("rank 1 has left the job"), std::string::npos)
      << results[0].error().message;
  EXPECT_EQ(results[0].error().message, results[2].error().message);
}

TEST(Inproc, WhatWasPutBeforeLeavingIsDelivered) {
  auto job = MakeInprocJob(2).value();
  std::thread leaver([&] {
    {
      const auto boxes = job[1]->CreateMailboxes({{8}});
      ASSERT_TRUE(boxes) << boxes.error().message;
      (*boxes)->Put(0, 1, {});
    }
    job[1].reset();
  });
  const auto boxes = job[0]->CreateMailboxes({{8}});
  leaver.join();
  ASSERT_TRUE(boxes) << boxes.error().message;
  EXPECT_NE((*boxes)->Wait(0, 1, 1).data(), nullptr) << job[0]->status().error().message;
}

TEST(Inproc, SlotWrittenAgainBeforeItWasReadIsNoticed) {
  const auto results = RunRanks(2, [](Fabric& fabric) -> Status {
    MEGALITH_ASSIGN_OR_RETURN(const auto boxes, fabric.CreateMailboxes({{8}}));
    if (fabric.rank() == 0) {
      for (const std::uint64_t sequence : {1ULL, 2ULL, 3ULL}) boxes->Put(0, sequence, {});
    }
    MEGALITH_RETURN_IF_ERROR(fabric.Barrier());
    if (fabric.rank() == 1 && boxes->Wait(0, 0, 1).data() != nullptr) return {};
    return fabric.rank() == 1 ? fabric.status() : fabric.Barrier();
  });
  ASSERT_FALSE(results[1]);
  EXPECT_NE(results[1].error().message.find("holds sequence 3, 1 expected"), std::string::npos)
      << results[1].error().message;
}

TEST(Inproc, WaitEndsWhenItsCallerWantsNoMore) {
  ExpectFine(RunRanks(2, [](Fabric& fabric) -> Status {
    MEGALITH_ASSIGN_OR_RETURN(const auto boxes, fabric.CreateMailboxes({{8}}));
    int calls = 0;
    const auto got = boxes->Wait(0, 1 - fabric.rank(), 1, [&] { return ++calls < 5000; });
    if (got.data() != nullptr || calls != 5000) return Fail(ErrorCode::kInternal, "{}", calls);
    if (fabric.failed()) return fabric.status();
    return fabric.Barrier();
  }));
}

TEST(Inproc, FirstErrorOfAnyRankIsEverybodys) {
  const auto results = RunRanks(4, [](Fabric& fabric) -> Status {
    Status mine;
    if (fabric.rank() >= 2) mine = Fail(ErrorCode::kBadFile, "shard {} is cut", fabric.rank());
    return fabric.AllOrNone(mine);
  });
  for (const Status& status : results) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().message, "rank 2: shard 2 is cut");
    EXPECT_EQ(ErrorCodeName(status.error().code), "bad_file");
  }
}

TEST(Inproc, MailboxesThatDifferAreRefused) {
  const auto results = RunRanks(3, [](Fabric& fabric) -> Status {
    const std::size_t bytes = fabric.rank() == 1 ? 128 : 64;
    const auto boxes = fabric.CreateMailboxes({{bytes}});
    return boxes ? Status() : tl::unexpected(boxes.error());
  });
  for (const Status& status : results) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().message,
              "rank 1: mailboxes differ from those of rank 0: 128 bytes for all here, 64 bytes for "
              "all there");
  }
}

TEST(Agreement, ADifferenceNamesRankAndItem) {
  const auto check = [](const std::function<void(std::uint32_t, Items*)>& change) {
    const auto results = RunRanks(3, [&](Fabric& fabric) -> Status {
      Items items = {{"build", "0.1.0"}, {"hash of config.json", "a1"}};
      change(fabric.rank(), &items);
      return CheckAgreement(fabric, items);
    });
    EXPECT_EQ(results[0].has_value(), results[2].has_value());
    return results[1] ? std::string("fine") : results[1].error().message;
  };
  EXPECT_EQ(check([](std::uint32_t, Items*) {}), "fine");
  EXPECT_EQ(check([](std::uint32_t rank, Items* items) {
              if (rank == 2) (*items)[1].second = "b2";
            }),
            "rank 2: hash of config.json: 'a1' expected as on rank 0, 'b2' found");
  EXPECT_EQ(check([](std::uint32_t rank, Items* items) {
              if (rank == 1) items->emplace_back("--context", "5");
            }),
            "rank 1: item 2: 'none' expected as on rank 0, '--context' found");
  EXPECT_EQ(check([](std::uint32_t rank, Items* items) {
              if (rank == 1) items->pop_back();
            }),
            "rank 1: item 1: 'hash of config.json' expected as on rank 0, none found");
}

TEST(Agreement, ItemsOfRank0ReachTheOthers) {
  ExpectFine(RunRanks(3, [](Fabric& fabric) -> Status {
    const Items wanted = {{"--context", "4096"}, {"empty", ""}, {"", std::string(100'000, 'x')}};
    Items items;
    if (fabric.rank() == 0) items = wanted;
    MEGALITH_RETURN_IF_ERROR(BroadcastItems(fabric, &items));
    return items == wanted ? Status() : Fail(ErrorCode::kInternal, "other items");
  }));
}

TEST(Inproc, RankNumbersAreChecked) {
  EXPECT_FALSE(MakeInprocJob(0));
  EXPECT_FALSE(MakeInprocJob(kMaxRanks + 1));
}

}  // namespace
}  // namespace megalith::fabric
