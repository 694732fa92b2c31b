#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "model/dspark.h"
#include "program/compile/random_models.h"
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
  form("gated", [](model::Drafter& d) { d.markov_head = model::MarkovHead::kGated; });
  form("recurrent", [](model::Drafter& d) { d.markov_head = model::MarkovHead::kRnn; });
  form("recurrent, idle anchor, odd rank", [](model::Drafter& d) {
    d.markov_head = model::MarkovHead::kRnn;
    d.markov_rank = 21;
    d.sample_from_anchor = false;
  });
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

/// What hidden rows add is one product for all slots, and the rest of the matrix is all that the
/// steps read of it.
TEST(CompileDraft, MarkovProjectionsAreCutBetweenHiddenRowsAndTokens) {
  struct Case {
    model::MarkovHead head;
    std::string tensor;
    std::int64_t first_hidden, first_token, token_inputs;
  };
  model::Drafter drafter = NanoDrafter();
  const std::int64_t hidden = drafter.hidden_size;
  const std::int64_t rank = drafter.markov_rank;
  for (const Case& c :
       {Case{model::MarkovHead::kGated, "draft.markov_head.gate_proj", 0, hidden, rank},
        Case{model::MarkovHead::kRnn, "draft.markov_head.joint_proj", 2 * rank, 0, 2 * rank}}) {
    drafter.markov_head = c.head;
    const Program program = MustCompile(Nano(), Drafting(drafter, 1, 8, 1));
    std::map<std::string, std::vector<const Tile*>> tiles;  // by segment
    for (const Segment& segment : program.segments) {
      for (const Tile& tile : segment.streams[0].tiles) {
        if (program.tensors[tile.tensor].name == c.tensor) tiles[segment.name].push_back(&tile);
      }
    }
    ASSERT_EQ(tiles.size(), 2U) << c.tensor;
    for (const auto& [segment, first, inputs] :
         {std::tuple(std::string("draft_head"), c.first_hidden, hidden),
          std::tuple(std::string("draft_token"), c.first_token, c.token_inputs)}) {
      ASSERT_EQ(tiles[segment].size(), 1U) << segment;
      EXPECT_EQ(tiles[segment][0]->first_input, first) << segment;
      EXPECT_EQ(tiles[segment][0]->num_inputs, inputs) << segment;
    }
  }
}

/// Every scheme of packing, and rows in a step that need copies of the head's vectors or not.
TEST(CompileDraft, RandomDraftersAreProved) {
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    Random random(seed);
    const model::Model model = RandomModel(random);
    const model::Drafter drafter = RandomDrafter(random, model);
    CompileOptions options = Drafting(drafter, static_cast<std::int32_t>(random.Between(1, 7)), 8,
                                      static_cast<std::int32_t>(random.Between(1, 3)));
    options.num_drafts = static_cast<std::int32_t>(
        random.Between(1, std::min<std::int64_t>(drafter.MaxDrafts(), 7)));
    options.barrier_after_each_op = random.Between(0, 3) == 0;
    if (random.Coin()) options.activation_dtype = DType::kF32;
    if (random.Coin()) options.dense = *ParseDenseFormats("int8");
    ExpectProved(MustCompile(model, options), fmt::format("seed {}", seed));
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

struct MarkovMutationCase {
  const char* name;
  const char* fault;  ///< in the message
  void (*mutate)(Program&);
};

class MarkovMutation : public testing::TestWithParam<MarkovMutationCase> {};

TEST_P(MarkovMutation, IsRejected) {
  model::Drafter drafter = NanoDrafter();
  drafter.markov_head = model::MarkovHead::kRnn;
  Program program = MustCompile(Nano(), Drafting(drafter, 2, 8, 2));
  ExpectProved(program, "before");
  GetParam().mutate(program);
  const auto verified = Verify(std::move(program));
  ASSERT_FALSE(verified.has_value()) << "the mutated Program passed";
  EXPECT_NE(verified.error().message.find(GetParam().fault), std::string::npos)
      << verified.error().message;
}

/// Changes what all workers read of the tensor in the segment.
void ChangeProducts(Program& program, std::string_view segment_name, std::string_view tensor,
                    const std::function<void(Instruction&, Tile&)>& change) {
  bool found = false;
  for (Segment& segment : program.segments) {
    if (segment.name != segment_name) continue;
    for (Stream& stream : segment.streams) {
      for (Instruction& instruction : stream.instructions) {
        if (instruction.opcode != Opcode::kMatmul) continue;
        Tile& tile = stream.tiles[instruction.tile];
        if (program.tensors[tile.tensor].name != tensor) continue;
        change(instruction, tile);
        found = true;
      }
    }
  }
  EXPECT_TRUE(found) << tensor << " in " << segment_name;
}

constexpr char kProjection[] = "draft.markov_head.joint_proj";

const MarkovMutationCase kMarkovMutations[] = {
    {"ActivationDoesNotWaitForTheProjection", "V5",
     [](Program& p) {
       Change(p, Opcode::kMarkovRnn, [](Instruction& i) { i.wait_counter = kNone; });
     }},
    {"ActivationDoesNotSignal", "V3",
     [](Program& p) {
       Change(p, Opcode::kMarkovRnn, [](Instruction& i) { i.signal_counter = kNone; });
     }},
    {"StateOfAnotherWidth", "V1",
     [](Program& p) {
       Change(p, Opcode::kMarkovRnn, [](Instruction& i) { --i.operands[3].end; });
     }},
    {"StateWrittenIntoTheInputs", "V8",
     [](Program& p) {
       Change(p, Opcode::kMarkovRnn,
              [](Instruction& i) { i.operands[3].buffer = i.operands[1].buffer; });
     }},
    {"StateOfNobody", "V1",
     [](Program& p) {
       Change(p, Opcode::kMarkovRnn, [](Instruction& i) { i.operands[3].buffer = kNone; });
     }},
    {"GateWithTheBuffersOfARecurrence", "V1",
     [](Program& p) {
       Change(p, Opcode::kMarkovRnn, [](Instruction& i) { i.opcode = Opcode::kMarkovGate; });
     }},
    {"BiasMissing", "V1",
     [](Program& p) {
       Change(p, Opcode::kMarkovRnn, [](Instruction& i) { i.vectors[0] = kNone; });
     }},
    {"EmbeddingOverTheState", "V1",
     [](Program& p) {
       Change(p, Opcode::kMarkovEmbed, [](Instruction& i) { i.operands[4].buffer = kNone; });
     }},
    {"TokensReadInputsOfTheHiddenRow",
     "V8: segment draft_head, draft_token: two tiles of draft.markov_head.joint_proj share",
     [](Program& p) {
       ChangeProducts(p, "draft_token", kProjection,
                      [](Instruction&, Tile& tile) { tile.first_input += 32; });
     }},
    {"HiddenRowReadsInputsOfTheTokens",
     "V8: segment draft_head, draft_token: two tiles of draft.markov_head.joint_proj share",
     [](Program& p) {
       ChangeProducts(p, "draft_head", kProjection,
                      [](Instruction&, Tile& tile) { tile.first_input = 0; });
     }},
    {"NobodyReadsAnInputOfTheProjection",
     "V8: segment draft_head, draft_token: 10704 of 10752 elements of draft.markov_head.joint_proj",
     [](Program& p) {
       ChangeProducts(p, "draft_token", kProjection, [](Instruction& product, Tile& tile) {
         --product.operands[0].end;
         --tile.num_inputs;
       });
     }},
    {"ProjectionAddedToOtherSums",
     "V8: segment draft_head, draft_token: their products with draft.markov_head.joint_proj",
     [](Program& p) {
       const auto logits = std::find_if(p.buffers.begin(), p.buffers.end(), [](const Buffer& b) {
         return b.name == "draft_base_logits";
       });
       const auto index = static_cast<std::uint32_t>(logits - p.buffers.begin());
       ChangeProducts(p, "draft_token", kProjection,
                      [index](Instruction& product, Tile&) { product.operands[2].buffer = index; });
     }},
    {"ProjectionAddedToTheSumsOfOtherOutputs",
     "V8: segment draft_head, draft_token: their products with draft.markov_head.joint_proj",
     [](Program& p) {
       ChangeProducts(p, "draft_token", kProjection, [](Instruction& product, Tile& tile) {
         if (tile.first_output == 0) return;
         product.operands[2].end -= product.operands[2].begin;
         product.operands[2].begin = 0;
       });
     }},
    {"ProjectionNotAdded",
     "V8: segment draft_head, draft_token: their products with draft.markov_head.joint_proj",
     [](Program& p) {
       ChangeProducts(p, "draft_token", kProjection, [](Instruction& product, Tile&) {
         product.epilogue = Epilogue::kStore;
         product.operands[2] = {};
       });
     }},
    {"OneOfTwoSegmentsReadsAMatrixOnlyInPart", "V8: segment draft_layer_0: ",
     [](Program& p) {
       ChangeProducts(p, "draft_layer_0", "draft.layers.0.self_attn.k_proj",
                      [](Instruction& product, Tile& tile) {
                        --product.operands[0].end;
                        --tile.num_inputs;
                      });
     }},
};

INSTANTIATE_TEST_SUITE_P(Each, MarkovMutation, testing::ValuesIn(kMarkovMutations),
                         [](const auto& mutation) { return std::string(mutation.param.name); });

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
