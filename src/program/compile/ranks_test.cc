// One model over many ranks: every rank's Program is proved, and all of them together are one.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "model/dspark.h"
#include "program/compile/layout_choice.h"
#include "program/compile/random_models.h"
#include "program/compile/test_models.h"
#include "program/exchange.h"

namespace megalith::program {
namespace {

std::vector<Program> CompileRanks(const model::Model& model, CompileOptions options,
                                  RankLayout layout) {
  options.ranks = layout;
  std::vector<Program> programs;
  for (options.rank = 0; options.rank < layout.NumRanks(); ++options.rank) {
    programs.push_back(MustCompile(model, options));
  }
  return programs;
}

Status ProveTogether(const std::vector<Program>& programs) {
  std::vector<const Program*> pointers;
  for (const Program& program : programs) {
    if (auto verified = Verify(program); !verified) {
      return tl::unexpected<Error>(std::move(verified).error());
    }
    pointers.push_back(&program);
  }
  return ProveRanks(pointers);
}

void ExpectProved(const std::vector<Program>& programs, const std::string& what) {
  const Status status = ProveTogether(programs);
  EXPECT_TRUE(status.has_value()) << what << ": " << status.error().message;
}

model::Drafter NanoDrafter() {
  auto config = model::ReadDrafterConfig(MEGALITH_SOURCE_DIR "/models/k3-nano/dspark", Nano());
  if (!config) {
    ADD_FAILURE() << config.error().message;
    return {};
  }
  return config->drafter;
}

std::string Name(RankLayout layout) {
  return fmt::format("{} x {}", layout.tensor_parallel, layout.expert_parallel);
}

TEST(Ranks, EveryLayoutOfRandomModelsIsProved) {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    Random random(seed);
    model::Model model = RandomModel(random);
    model.kda.num_heads += 3;
    model.mla.num_attention_heads += 3;
    CompileOptions options = Workers(static_cast<std::int32_t>(random.Between(1, 6)),
                                     static_cast<std::int32_t>(random.Between(1, 9)));
    const RankLayout layout{static_cast<std::int32_t>(random.Between(1, 4)),
                            static_cast<std::int32_t>(random.Between(1, 3))};
    options.barrier_after_each_op = random.Between(0, 3) == 0;
    if (!CheckRankLayout(model, layout)) continue;
    ExpectProved(CompileRanks(model, options, layout), fmt::format("seed {}", seed));
  }
}

TEST(Ranks, NanoWithItsDrafterIsProvedInEveryLayout) {
  const model::Drafter drafter = NanoDrafter();
  for (const RankLayout layout : {RankLayout{1, 2}, RankLayout{2, 1}, RankLayout{2, 2},
                                  RankLayout{3, 1}, RankLayout{1, 4}, RankLayout{4, 1}}) {
    if (!CheckRankLayout(Nano(), layout)) continue;
    for (const std::int32_t rows : {1, 8, 64}) {
      for (const std::int32_t workers : {1, 2, 3, 16}) {
        CompileOptions options = Workers(workers, rows);
        options.max_drafts = 7;
        options.drafter = &drafter;
        options.draft_runs = 1;
        options.num_drafts = 7;
        ExpectProved(CompileRanks(Nano(), options, layout),
                     fmt::format("{}, {} rows, {} workers", Name(layout), rows, workers));
      }
    }
  }
}

TEST(Ranks, RandomDraftersAreProvedInEveryLayout) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    model::Model model = RandomModel(random);
    model.kda.num_heads += 3;
    model.mla.num_attention_heads += 3;
    const model::Drafter drafter = RandomDrafter(random, model);
    CompileOptions options = Workers(static_cast<std::int32_t>(random.Between(1, 5)), 8);
    options.max_drafts = 7;
    options.drafter = &drafter;
    options.draft_runs = static_cast<std::int32_t>(random.Between(1, 2));
    options.num_drafts = static_cast<std::int32_t>(
        random.Between(1, std::min<std::int64_t>(drafter.MaxDrafts(), 7)));
    const RankLayout layout{static_cast<std::int32_t>(random.Between(1, 3)),
                            static_cast<std::int32_t>(random.Between(1, 3))};
    if (!CheckRankLayout(model, layout)) continue;
    ExpectProved(CompileRanks(model, options, layout), fmt::format("seed {}", seed));
  }
}

TEST(Ranks, ArenasDoNotDependOnRows) {
  for (const RankLayout layout : {RankLayout{2, 1}, RankLayout{1, 2}, RankLayout{2, 2}}) {
    const std::vector<Program> one = CompileRanks(Nano(), Workers(3), layout);
    const std::vector<Program> many = CompileRanks(Nano(), Workers(3, 64), layout);
    for (std::size_t rank = 0; rank < one.size(); ++rank) {
      EXPECT_EQ(one[rank].weight_arena_bytes, many[rank].weight_arena_bytes);
      EXPECT_EQ(one[rank].vector_arena_bytes, many[rank].vector_arena_bytes);
    }
  }
}

/// By hand: KDA with dense feed-forward heads, mixer, activations, output = 4; with experts heads,
/// mixer, routing, activations, routed sum, output = 6; MLA one more for the latents; logits 1.
TEST(Ranks, AStepOfK3HasAsManyExchangesAsCounted) {
  CompileOptions options = Workers(4);
  options.ranks = {16, 1};
  EXPECT_EQ(CountExchanges(MustCompile(RealK3(), options)), 4 + 68 * 6 + 24 * 7 + 1);
  // With groups the experts' outputs take the place of the sum, and activations stay in the group.
  options.ranks = {4, 4};
  EXPECT_EQ(CountExchanges(MustCompile(RealK3(), options)), 4 + 68 * 6 + 24 * 7 + 1);
  options.ranks = {1, 16};
  EXPECT_EQ(CountExchanges(MustCompile(RealK3(), options)), 4 + 68 * 5 + 24 * 6 + 1);
}

/// A sixteenth of the bytes of a token is 8.56 GB.
TEST(Ranks, ARankOf16ReadsASixteenthOfK3) {
  const std::int64_t all = CountStepBytes(MustCompile(RealK3(), Workers(4)), 1, 16).Source();
  CompileOptions options = Workers(4);
  options.ranks = {16, 1};
  for (options.rank = 0; options.rank < 16; ++options.rank) {
    const std::int64_t own = CountStepBytes(MustCompile(RealK3(), options), 1, 16).Source();
    EXPECT_LT(own, all / 16 * 105 / 100) << "rank " << options.rank;
    EXPECT_GT(own, all / 16 * 99 / 100) << "rank " << options.rank;
  }
}

TEST(Ranks, LayoutsThatCannotBeAreRefusedWithThoseThatCan) {
  const auto refuse = [](RankLayout layout) {
    const Status status = CheckRankLayout(RealK3(), layout);
    EXPECT_FALSE(status.has_value()) << Name(layout);
    return status ? std::string() : status.error().message;
  };
  for (std::int32_t ranks = 1; ranks <= 96; ++ranks) {
    EXPECT_TRUE(CheckRankLayout(RealK3(), {ranks, 1})) << ranks;
    EXPECT_TRUE(CheckRankLayout(RealK3(), {1, ranks})) << ranks;
  }
  EXPECT_NE(refuse({97, 1}).find("96 heads of KDA layers for 97 ranks"), std::string::npos);
  EXPECT_NE(refuse({97, 1}).find("1 to 96 ranks"), std::string::npos);
  EXPECT_NE(refuse({1, 97}).find("expert parallel up to 96"), std::string::npos);
  EXPECT_FALSE(refuse({0, 1}).empty());
  EXPECT_FALSE(refuse({1, -1}).empty());
  EXPECT_FALSE(refuse({1 << 20, 1 << 20}).empty());
}

/// The exact expectations, by counting choices in integers of any size (equal groups).
TEST(Ranks, TheFullestGroupOfExpertsIsAsExpected) {
  EXPECT_NEAR(ExpectedFullestGroup(4, 2, 2, 1), 4.0 / 3.0, 1e-9);
  EXPECT_NEAR(ExpectedFullestGroup(896, 1, 16, 1), 16.0, 1e-9);
  EXPECT_NEAR(ExpectedFullestGroup(896, 2, 16, 1), 9.556946649778, 1e-6);
  EXPECT_NEAR(ExpectedFullestGroup(896, 8, 16, 1), 4.176186618092, 1e-6);
  EXPECT_NEAR(ExpectedFullestGroup(896, 16, 16, 1), 3.048783211331, 1e-6);
  // Many rows choose nearly all of every group.
  EXPECT_NEAR(ExpectedFullestGroup(896, 16, 16, 4096), 56.0, 1e-6);
  const double eight = ExpectedFullestGroup(896, 16, 16, 8);
  EXPECT_GT(eight, ExpectedExperts(896, 16, 8) / 16.0);
  EXPECT_LT(eight, 2.0 * ExpectedExperts(896, 16, 8) / 16.0);
}

TEST(Ranks, TheFastestLayoutSlicesExpertsUntilSlicesAreTooThin) {
  const auto few = EstimateLayouts(RealK3(), Workers(12), 16);
  ASSERT_TRUE(few) << few.error().message;
  ASSERT_EQ(few->size(), 5U);
  EXPECT_EQ(few->front().layout.tensor_parallel, 16);
  EXPECT_NEAR(few->front().expert_imbalance, 1.0, 1e-9);
  EXPECT_NEAR(few->back().expert_imbalance, 3.048783211331, 1e-6);
  EXPECT_NEAR(few->front().weight_bytes, 8.56e9, 0.05 * 8.56e9);
  // 192 panels of an expert's width on 32 x 64 workers: most would have nothing to read.
  const auto thin = EstimateLayouts(RealK3(), Workers(64), 32);
  ASSERT_TRUE(thin) << thin.error().message;
  EXPECT_EQ(thin->front().layout.tensor_parallel, 16);
  // If nothing but exchanges counts, fewer of them win.
  const auto exchanges = EstimateLayouts(RealK3(), Workers(4), 16, {1e18, 1e18, 1.0, 1e18});
  ASSERT_TRUE(exchanges) << exchanges.error().message;
  EXPECT_EQ(exchanges->front().layout.tensor_parallel, 1);
  EXPECT_FALSE(EstimateLayouts(RealK3(), Workers(4), 97));
}

TEST(Ranks, OneRankIsTheProgramWithoutRanks) {
  const Program program = MustCompile(Nano(), Workers(2));
  EXPECT_TRUE(program.mailboxes.empty());
  EXPECT_EQ(CountExchanges(program), 0);
}

// ---- mutations
// -----------------------------------------------------------------------------------

struct RankMutation {
  const char* name;
  const char* property;
  std::function<void(Program&)> apply;  ///< to rank 1 of 2 x 2
};
void PrintTo(const RankMutation& mutation, std::ostream* out) { *out << mutation.name; }

Segment& FindSegment(Program& program, std::string_view name) {
  return *std::find_if(program.segments.begin(), program.segments.end(),
                       [name](const Segment& segment) { return segment.name == name; });
}

/// The first of the opcode in the segment, on whatever worker.
Instruction& Find(Segment& segment, Opcode opcode) {
  for (Stream& stream : segment.streams) {
    for (Instruction& instruction : stream.instructions) {
      if (instruction.opcode == opcode) return instruction;
    }
  }
  ADD_FAILURE() << "no " << Info(opcode).name;
  return segment.streams.front().instructions.front();
}

void Drop(Program& program, Opcode opcode) {
  Segment& segment = FindSegment(program, "kda_moe");
  for (Stream& stream : segment.streams) {
    const auto found = std::find_if(
        stream.instructions.begin(), stream.instructions.end(),
        [opcode](const Instruction& instruction) { return instruction.opcode == opcode; });
    if (found == stream.instructions.end()) continue;
    // What waits and signals stays, what moves data goes.
    Instruction wait;
    wait.wait_counter = found->wait_counter;
    wait.wait_amount = found->wait_amount;
    wait.signal_counter = found->signal_counter;
    wait.signal_amount = found->signal_amount;
    *found = wait;
    return;
  }
  ADD_FAILURE() << "no " << Info(opcode).name;
}

class RankVerifierMutation : public testing::TestWithParam<RankMutation> {};

TEST_P(RankVerifierMutation, IsRejected) {
  std::vector<Program> programs = CompileRanks(Nano(), Workers(3, 2), {2, 2});
  ASSERT_TRUE(ProveTogether(programs).has_value());
  GetParam().apply(programs[1]);
  const Status status = ProveTogether(programs);
  ASSERT_FALSE(status.has_value()) << "the mutated Program passed";
  EXPECT_EQ(status.error().code, ErrorCode::kBadProgram);
  EXPECT_NE(status.error().message.find(GetParam().property), std::string::npos)
      << status.error().message;
}

Instruction& FindIn(Program& program, Opcode opcode) {
  return Find(FindSegment(program, "kda_moe"), opcode);
}

const RankMutation kRankMutations[] = {
    {"DroppedFill", "V6", [](Program& p) { Drop(p, Opcode::kExchangeFill); }},
    {"DroppedPublish", "V6", [](Program& p) { Drop(p, Opcode::kExchangePublish); }},
    {"DroppedReceive", "V6", [](Program& p) { Drop(p, Opcode::kExchangeReceive); }},
    {"PublishedBeforeItIsFilled", "V",
     [](Program& p) {
       Instruction& publish = FindIn(p, Opcode::kExchangePublish);
       publish.wait_counter = kNone;
       publish.wait_amount = 0;
     }},
    {"FilledBeforeItIsComputed", "V5",
     [](Program& p) {
       Instruction& fill = FindIn(p, Opcode::kExchangeFill);
       fill.wait_counter = kNone;
       fill.wait_amount = 0;
     }},
    {"WrongNumber", "V6", [](Program& p) { ++FindIn(p, Opcode::kExchangeReceive).imm[1]; }},
    {"WrongMailbox", "V6", [](Program& p) { FindIn(p, Opcode::kExchangePublish).imm[0] = 1; }},
    {"UnknownMailbox", "V1", [](Program& p) { FindIn(p, Opcode::kExchangePublish).imm[0] = 2; }},
    {"FromItself", "V6", [](Program& p) { FindIn(p, Opcode::kExchangeReceive).imm[2] = 1; }},
    {"FromAStranger", "V6", [](Program& p) { FindIn(p, Opcode::kExchangeReceive).imm[2] = 4; }},
    {"FromTheSameRankTwice", "V",
     [](Program& p) {
       Instruction& receive = FindIn(p, Opcode::kExchangeReceive);
       receive.imm[2] = receive.imm[2] == 0 ? 2 : 0;
     }},
    {"OtherColumns", "V",
     [](Program& p) { FindIn(p, Opcode::kExchangeReceive).operands[2].end -= 1; }},
    {"OtherColumnsInAllShares", "V6",
     [](Program& p) {
       for (Stream& stream : FindSegment(p, "kda_moe").streams) {
         for (Instruction& instruction : stream.instructions) {
           if (instruction.opcode == Opcode::kExchangeReceive && instruction.imm[0] == 0 &&
               instruction.imm[1] == 0 && instruction.imm[2] == 0) {
             instruction.operands[2].end -= 1;
           }
         }
       }
     }},
    {"NumberedFromElsewhere", "V6", [](Program& p) { ++p.visits[2].first_exchange[0]; }},
    {"AnotherRanksWeights", "V8",
     [](Program& p) { p.tensors.front().first_row += 1, p.tensors.front().num_rows -= 1; }},
    {"SharedSlots", "V1", [](Program& p) { p.mailboxes[1].buffer = p.mailboxes[0].buffer; }},
    {"AnotherRank", "V", [](Program& p) { p.sharding.rank = 0; }},
    {"AnotherNumberOfRanks", "V", [](Program& p) { p.sharding.num_ranks = 8; }},
    {"OtherExperts", "V7", [](Program& p) { FindIn(p, Opcode::kExpertGateUp).imm[3] += 1; }},
    {"PairsWithoutAPlan", "V7",
     [](Program& p) {
       for (Stream& stream : FindSegment(p, "kda_moe").streams) {
         for (Instruction& instruction : stream.instructions) {
           if (instruction.opcode == Opcode::kExchangeReceive) instruction.operands[1] = {};
         }
       }
     }},
};

INSTANTIATE_TEST_SUITE_P(Each, RankVerifierMutation, testing::ValuesIn(kRankMutations),
                         [](const auto& mutation) { return std::string(mutation.param.name); });

}  // namespace
}  // namespace megalith::program
