#include <gtest/gtest.h>

#include <algorithm>

#include "model/dspark.h"
#include "program/compile/test_models.h"
#include "program/dump.h"

namespace megalith::program {
namespace {

model::Drafter NanoDrafter() {
  auto config = model::ReadDrafterConfig(MEGALITH_SOURCE_DIR "/models/k3-nano/dspark", Nano());
  if (!config) {
    ADD_FAILURE() << config.error().message;
    return {};
  }
  return config->drafter;
}

CompileOptions Drafting(const model::Drafter& drafter, std::int32_t workers, std::int32_t rows,
                        std::int32_t runs) {
  CompileOptions options = Workers(workers, rows);
  options.num_slots = 4;
  options.max_drafts = 7;
  options.drafter = &drafter;
  options.draft_runs = runs;
  options.num_drafts = runs > 0 ? 7 : 0;
  return options;
}

void ExpectProved(const Program& program, const std::string& what) {
  const auto verified = Verify(program);
  EXPECT_TRUE(verified.has_value()) << what << ": " << verified.error().message;
}

TEST(CompileDraft, EveryWorkerCountRowBucketAndNumberOfRunsIsProved) {
  const model::Drafter drafter = NanoDrafter();
  for (const std::int32_t workers : {1, 2, 3, 5, 16, 64}) {
    for (const std::int32_t rows : {1, 8, 64}) {
      for (const std::int32_t runs : {0, 1, 4}) {
        ExpectProved(MustCompile(Nano(), Drafting(drafter, workers, rows, runs)),
                     fmt::format("{} workers, {} rows, {} runs", workers, rows, runs));
      }
    }
  }
}

TEST(CompileDraft, OtherFormsOfDraftersAreProved) {
  const model::Drafter drafter = NanoDrafter();
  std::vector<std::pair<std::string, model::Drafter>> forms;
  const auto form = [&](std::string name, const auto& change) {
    model::Drafter other = drafter;
    change(other);
    forms.emplace_back(std::move(name), std::move(other));
  };
  form("bidirectional", [](model::Drafter& d) {
    for (model::DrafterLayer& layer : d.layers) layer = {0, false};
  });
  form("idle anchor", [](model::Drafter& d) { d.sample_from_anchor = false; });
  form("no Markov head", [](model::Drafter& d) {
    d.markov_rank = 0;
    d.confidence_with_markov = false;
  });
  form("no confidence head", [](model::Drafter& d) { d.confidence_head = false; });
  form("odd key heads", [](model::Drafter& d) {
    d.num_attention_heads = 9;
    d.num_key_value_heads = 3;
  });
  for (const auto& [name, other] : forms) {
    for (const std::int32_t workers : {1, 2, 5}) {
      CompileOptions options = Drafting(other, workers, 8, 2);
      ExpectProved(MustCompile(Nano(), options), name);
      options.num_drafts = 3;
      ExpectProved(MustCompile(Nano(), options), name + ", 3 drafts");
    }
  }
}

TEST(CompileDraft, BlocksAreAsLongAsTheirSlotsCanSee) {
  model::Drafter drafter = NanoDrafter();
  CompileOptions options = Drafting(drafter, 1, 8, 1);
  options.num_drafts = 3;
  EXPECT_EQ(MustCompile(Nano(), options).draft.block_rows, 3);  // causal: no slot is missed
  drafter.sample_from_anchor = false;
  EXPECT_EQ(MustCompile(Nano(), options).draft.block_rows, 4);
  drafter.layers.front().causal_in_block = false;
  EXPECT_EQ(MustCompile(Nano(), options).draft.block_rows, drafter.block_size);
}

/// Seven tokens are chosen one after the other with the same matrix, packed once.
TEST(CompileDraft, MarkovStepsShareTheirWeights) {
  const model::Drafter drafter = NanoDrafter();
  const Program program = MustCompile(Nano(), Drafting(drafter, 2, 8, 1));
  std::vector<const Visit*> steps;
  for (const Visit& visit : program.visits) {
    if (visit.draft_slot >= 0) steps.push_back(&visit);
  }
  ASSERT_EQ(steps.size(), 7U);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i]->draft_slot, static_cast<std::int32_t>(i));
    EXPECT_EQ(steps[i]->shares_weights, i > 0);
    EXPECT_EQ(steps[i]->weight_base, steps[0]->weight_base);
  }
}

TEST(CompileDraft, ProgramsThatDraftBeginLikeThoseThatDoNot) {
  const model::Drafter drafter = NanoDrafter();
  const Program plain = MustCompile(Nano(), Drafting(drafter, 3, 1, 0));
  const Program drafting = MustCompile(Nano(), Drafting(drafter, 3, 8, 4));
  ASSERT_LT(plain.visits.size(), drafting.visits.size());
  for (std::size_t i = 0; i < plain.visits.size(); ++i) {
    EXPECT_EQ(plain.visits[i].weight_base, drafting.visits[i].weight_base) << i;
    EXPECT_EQ(plain.visits[i].vector_base, drafting.visits[i].vector_base) << i;
  }
}

TEST(CompileDraft, ImpossibleDraftOptionsAreRefused) {
  const model::Drafter drafter = NanoDrafter();
  const auto refused = [](CompileOptions options, std::string_view what) {
    const auto program = Compile(Nano(), options);
    ASSERT_FALSE(program.has_value());
    EXPECT_NE(program.error().message.find(what), std::string::npos) << program.error().message;
  };
  CompileOptions options = Drafting(drafter, 1, 8, 1);
  options.num_drafts = 9;
  refused(options, "9 drafts asked for, the drafter proposes up to 8");
  options = Drafting(drafter, 1, 8, 1);
  options.drafter = nullptr;
  refused(options, "no drafter");
  options = Drafting(drafter, 1, 8, 1);
  options.max_drafts = 32;
  refused(options, "32 drafts per run");
  model::Drafter other = drafter;
  other.aux_layers = {4, 4, 8};
  refused(Drafting(other, 1, 8, 1), "4, 4, 8 found");
  other = drafter;
  other.vocab_size = 4095;
  refused(Drafting(other, 1, 8, 1), "4095");
}

/// Changes the first instruction with the opcode.
void Change(Program& program, Opcode opcode, const std::function<void(Instruction&)>& change) {
  for (Segment& segment : program.segments) {
    for (Instruction& instruction : segment.streams[0].instructions) {
      if (instruction.opcode != opcode) continue;
      change(instruction);
      return;
    }
  }
  ADD_FAILURE() << "no " << Info(opcode).name;
}

Visit& FirstDraftSlot(Program& program) {
  return *std::find_if(program.visits.begin(), program.visits.end(),
                       [](const Visit& visit) { return visit.draft_slot == 0; });
}

struct Mutation {
  const char* name;
  void (*mutate)(Program&);
};

class DraftMutation : public testing::TestWithParam<Mutation> {};

TEST_P(DraftMutation, IsRejected) {
  const model::Drafter drafter = NanoDrafter();
  Program program = MustCompile(Nano(), Drafting(drafter, 2, 8, 2));
  GetParam().mutate(program);
  EXPECT_FALSE(Verify(std::move(program)).has_value());
}

const Mutation kMutations[] = {
    {"SampleDoesNotWaitForTheLogits",
     [](Program& p) {
       Change(p, Opcode::kSample, [](Instruction& i) { i.wait_counter = kNone; });
     }},
    {"OutputProjectionDoesNotWaitForTheHeads",
     [](Program& p) {
       for (Segment& segment : p.segments) {
         bool attended = false;
         for (Instruction& i : segment.streams[0].instructions) {
           attended = attended || i.opcode == Opcode::kDraftAttention;
           if (attended && i.epilogue == Epilogue::kAddResidual) i.wait_counter = kNone;
         }
       }
     }},
    {"ChoiceDoesNotWaitForTheBias",
     [](Program& p) {
       Change(p, Opcode::kDraftChoose, [](Instruction& i) { i.wait_counter = kNone; });
     }},
    {"ResidualNeverCaptured",
     [](Program& p) {
       for (Visit& visit : p.visits) {
         if (visit.capture_index == 1) visit.capture_index = -1;
       }
     }},
    {"ResidualCapturedTwice",
     [](Program& p) {
       for (Visit& visit : p.visits) {
         if (visit.capture_index == 1) visit.capture_index = 0;
       }
     }},
    {"DraftSlotChosenTwice", [](Program& p) { (&FirstDraftSlot(p))[1].draft_slot = 0; }},
    {"DraftSlotMissing", [](Program& p) { FirstDraftSlot(p).draft_slot = -1; }},
    {"WeightsSharedWithAnotherSegment",
     [](Program& p) { FirstDraftSlot(p).shares_weights = true; }},
    {"SharedWeightsElsewhere", [](Program& p) { (&FirstDraftSlot(p))[1].weight_base[0] += 64; }},
    {"RingTooShortForTheWindow", [](Program& p) { p.state.draft_positions = 2048; }},
    {"MaskOutsideTheVocabulary", [](Program& p) { p.draft.mask_token = p.vocab_size; }},
    {"BlockTooShort", [](Program& p) { p.draft.block_rows = 3; }},
    {"MoreRunsThanTheRegisterCounts", [](Program& p) { p.draft.max_runs = 3; }},
    {"TableThatDoesNotExist",
     [](Program& p) { Change(p, Opcode::kMarkovEmbed, [](Instruction& i) { i.imm[0] = 9; }); }},
    {"TableOfAnotherWidth",
     [](Program& p) { Change(p, Opcode::kMarkovEmbed, [](Instruction& i) { i.imm[0] = 0; }); }},
    {"QueriesOfOtherHeads",
     [](Program& p) {
       Change(p, Opcode::kDraftAttention, [](Instruction& i) {
         i.operands[0].begin += 64;
         i.operands[0].end += 64;
       });
     }},
    {"BiasWithoutItsBase",
     [](Program& p) {
       for (Segment& segment : p.segments) {
         for (Instruction& i : segment.streams[0].instructions) {
           if (i.epilogue == Epilogue::kAddDraftBase) i.operands[2].buffer = kNone;
         }
       }
     }},
    {"TokensOfTheWrongRows",
     [](Program& p) {
       Change(p, Opcode::kDraftEmbed, [](Instruction& i) { i.operands[0] = {0, 0, 1}; });
     }},
};

INSTANTIATE_TEST_SUITE_P(Each, DraftMutation, testing::ValuesIn(kMutations),
                         [](const auto& mutation) { return std::string(mutation.param.name); });

}  // namespace
}  // namespace megalith::program
