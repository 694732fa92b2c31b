// Mutations of proved Programs: each breaks one property, and the verifier must name it.

#include "program/verifier.h"

#include <gtest/gtest.h>

#include <functional>

#include "program/compile/test_models.h"

namespace megalith::program {
namespace {

Segment& FindSegment(Program& program, std::string_view name) {
  for (Segment& segment : program.segments) {
    if (segment.name == name) return segment;
  }
  ADD_FAILURE() << "no segment " << name;
  return program.segments.front();
}

std::uint32_t FindBuffer(const Program& program, std::string_view name) {
  for (std::uint32_t i = 0; i < program.buffers.size(); ++i) {
    if (program.buffers[i].name == name) return i;
  }
  ADD_FAILURE() << "no buffer " << name;
  return 0;
}

/// The n-th instruction of the opcode on the worker.
Instruction& Find(Segment& segment, std::size_t worker, Opcode opcode, int n = 0) {
  for (Instruction& instruction : segment.streams[worker].instructions) {
    if (instruction.opcode == opcode && n-- == 0) return instruction;
  }
  ADD_FAILURE() << "no " << Info(opcode).name << " in " << segment.name;
  return segment.streams[worker].instructions.front();
}

struct Mutation {
  const char* name;
  const char* property;  ///< what the message must name
  std::function<void(Program&)> apply;
};

void PrintTo(const Mutation& mutation, std::ostream* out) { *out << mutation.name; }

/// The Program passes, and no longer after the mutation.
void ExpectRejected(Program program, const Mutation& mutation) {
  ASSERT_TRUE(Verify(program).has_value());
  mutation.apply(program);
  const auto verified = Verify(std::move(program));
  ASSERT_FALSE(verified.has_value()) << "the mutated Program passed";
  EXPECT_EQ(verified.error().code, ErrorCode::kBadProgram);
  EXPECT_NE(verified.error().message.find(mutation.property), std::string::npos)
      << verified.error().message;
}

class VerifierMutation : public testing::TestWithParam<Mutation> {};

TEST_P(VerifierMutation, IsRejected) {
  ExpectRejected(MustCompile(Nano(), Workers(3, 2)), GetParam());
}

/// The first instruction of the worker that waits for a counter of its own segment.
Instruction& FirstWait(Program& program, Segment& segment, std::size_t worker) {
  for (Instruction& instruction : segment.streams[worker].instructions) {
    if (instruction.wait_counter != kNone &&
        program.counters[instruction.wait_counter].scope == CounterScope::kSegment) {
      return instruction;
    }
  }
  ADD_FAILURE() << "no wait";
  return segment.streams[worker].instructions.front();
}

const Mutation kMutations[] = {
    {"DroppedWait", "V5",
     [](Program& p) {
       Instruction& wait = FirstWait(p, FindSegment(p, "kda_moe"), 1);
       wait.wait_counter = kNone;
       wait.wait_amount = 0;
     }},
    {"DroppedHandOverWait", "V",
     [](Program& p) {
       // Worker 1 has a row of the norm; worker 2 has none and waits for the norm itself.
       Instruction& wait = Find(FindSegment(p, "mla_moe"), 1, Opcode::kWait);
       wait.wait_counter = kNone;
       wait.wait_amount = 0;
     }},
    {"LoweredTarget", "V3",
     [](Program& p) { FirstWait(p, FindSegment(p, "kda_moe"), 1).wait_amount -= 1; }},
    {"RaisedTarget", "V3",
     [](Program& p) { FirstWait(p, FindSegment(p, "kda_moe"), 1).wait_amount += 1; }},
    {"LoweredTargetAndSignalCount", "V3",
     [](Program& p) {
       Instruction& wait = FirstWait(p, FindSegment(p, "kda_moe"), 1);
       p.counters[wait.wait_counter].signals_per_visit -= 1;
       for (Segment& segment : p.segments) {
         for (Stream& stream : segment.streams) {
           for (Instruction& instruction : stream.instructions) {
             if (instruction.wait_counter == wait.wait_counter && &instruction != &wait) {
               instruction.wait_amount -= 1;
             }
           }
         }
       }
       wait.wait_amount -= 1;
     }},
    {"DroppedSignal", "V3",
     [](Program& p) {
       for (Instruction& i : FindSegment(p, "mla_moe").streams[0].instructions) {
         if (i.signal_counter != kNone) {
           i.signal_counter = kNone;
           i.signal_amount = 0;
           return;
         }
       }
     }},
    {"SignalMovedBeforeTheWork", "V2",
     [](Program& p) {
       // The output projection of worker 2 signals already at the instruction before it.
       auto& stream = FindSegment(p, "kda_moe").streams[2].instructions;
       for (std::size_t i = 1; i < stream.size(); ++i) {
         if (stream[i].opcode == Opcode::kMatmul && stream[i].epilogue == Epilogue::kAddResidual) {
           ASSERT_NE(stream[i].signal_counter, kNone);
           std::swap(stream[i].signal_counter, stream[i - 1].signal_counter);
           std::swap(stream[i].signal_amount, stream[i - 1].signal_amount);
           return;
         }
       }
     }},
    {"CrossedWaitsDeadlock", "V2",
     [](Program& p) {
       // Everybody waits for the last phase before doing the first.
       Segment& segment = FindSegment(p, "kda_moe");
       std::uint32_t last = kNone;
       for (const Instruction& i : segment.streams[0].instructions) {
         if (i.wait_counter != kNone &&
             p.counters[i.wait_counter].scope == CounterScope::kSegment) {
           last = i.wait_counter;
         }
       }
       Instruction& first = Find(segment, 0, Opcode::kAttnResNorm);
       first.wait_counter = last;
       first.wait_amount = p.counters[last].signals_per_visit;
     }},
    {"SwappedSlot", "V4",
     [](Program& p) {
       Segment& segment = FindSegment(p, "kda_moe");
       std::swap(Find(segment, 1, Opcode::kMatmul, 0).slot,
                 Find(segment, 1, Opcode::kMatmul, 1).slot);
     }},
    {"SlotNeverReleased", "V4",
     [](Program& p) { Find(FindSegment(p, "kda_moe"), 1, Opcode::kMatmul).releases_slot = false; }},
    {"FetchIntoOccupiedSlot", "V4",
     [](Program& p) {
       Instruction& fetch = Find(FindSegment(p, "kda_moe"), 1, Opcode::kFetch);
       fetch.slot = (fetch.slot + 1) % 4;
     }},
    {"PrologueNeverRequested", "V4",
     [](Program& p) {
       auto& stream = FindSegment(p, "mla_moe").streams[1].instructions;
       stream.erase(std::find_if(stream.begin(), stream.end(), [](const Instruction& i) {
         return i.opcode == Opcode::kFetchNext;
       }));
     }},
    {"AliasedBuffers", "V5",
     [](Program& p) {
       p.buffers[FindBuffer(p, "kda_q")].offset = p.buffers[FindBuffer(p, "kda_k")].offset;
     }},
    {"AliasedResidual", "V5",
     [](Program& p) {
       p.buffers[FindBuffer(p, "prefix_mid")].offset = p.buffers[FindBuffer(p, "prefix")].offset;
     }},
    {"DoubledTile", "V8",
     [](Program& p) {
       auto& tiles = FindSegment(p, "kda_moe").streams[0].tiles;
       Tile& tile = tiles[Find(FindSegment(p, "kda_moe"), 0, Opcode::kMatmul).tile];
       tile.first_output += tile.first_output == 0 ? 1 : -1;
     }},
    {"MissingTile", "V",
     [](Program& p) {
       auto& stream = FindSegment(p, "head").streams[1];
       auto matmul = std::find_if(stream.instructions.begin(), stream.instructions.end(),
                                  [](const Instruction& i) { return i.opcode == Opcode::kMatmul; });
       matmul->operands[1].end -= 16;
       stream.tiles[matmul->tile].num_outputs -= 16;
       stream.tiles[matmul->tile].num_panels -= 1;
     }},
    {"TileReadTwice", "V",
     [](Program& p) {
       auto& stream = FindSegment(p, "kda_moe").streams[0].instructions;
       const auto experts = std::find_if(stream.begin(), stream.end(), [](const Instruction& i) {
         return i.opcode == Opcode::kExpertDown;
       });
       Instruction copy = *experts;
       copy.wait_counter = copy.signal_counter = kNone;
       copy.signal_amount = copy.wait_amount = 0;
       stream.insert(experts, copy);
     }},
    {"UnboundedTripCount", "V7",
     [](Program& p) {
       p.registers[static_cast<std::size_t>(Register::kActiveExperts)].max_value = 1'000'000;
     }},
    {"RowsBeyondTheBuffers", "V7",
     [](Program& p) { p.registers[static_cast<std::size_t>(Register::kRows)].max_value = 3; }},
    {"BufferWithTooFewRows", "V7", [](Program& p) { p.buffers[FindBuffer(p, "kda_q")].rows = 1; }},
    {"PairsWithTooFewRows", "V7",
     [](Program& p) { p.buffers[FindBuffer(p, "expert_activated")].rows = 7; }},
    {"WrongTripRegister", "V7",
     [](Program& p) {
       Find(FindSegment(p, "kda_moe"), 0, Opcode::kMatmul).trip = Register::kActiveExperts;
     }},
    {"WeightBaseOutsideItsArena", "V1",
     [](Program& p) { p.visits[3].weight_base[1] = p.weight_arena_bytes[1]; }},
    {"WeightBaseOfAnotherVisit", "V1",
     [](Program& p) { p.visits[3].weight_base[1] = p.visits[2].weight_base[1]; }},
    {"ExpertBaseOverWeights", "V1",
     [](Program& p) { p.visits[3].expert_base[0] = p.visits[3].weight_base[0]; }},
    {"StateOfAnotherLayer", "V1",
     [](Program& p) { p.visits[3].state_index = p.visits[2].state_index; }},
    {"StateBeyondTheLayers", "V1",
     [](Program& p) { p.visits[3].state_index = p.state.num_kda_layers; }},
    {"VectorBaseMisaligned", "V1", [](Program& p) { p.visits[3].vector_base += 4; }},
    {"TileOutsideItsTensor", "V1",
     [](Program& p) { FindSegment(p, "head").streams[2].tiles[0].first_output += 16; }},
    {"OperandOutsideItsBuffer", "V1",
     [](Program& p) {
       Find(FindSegment(p, "kda_moe"), 0, Opcode::kKda).operands[6].end += 1'000'000;
     }},
    {"UnknownCounter", "V1",
     [](Program& p) { FirstWait(p, FindSegment(p, "kda_moe"), 0).wait_counter = 12345; }},
    {"WrongBlockCount", "V1", [](Program& p) { p.visits[5].num_blocks += 1; }},
    {"DroppedRowShare", "V",
     [](Program& p) { Find(FindSegment(p, "mla_moe"), 1, Opcode::kAttnResNorm).rows.first = 0; }},
    {"SignalBeforeTheWorkIsDone", "V5",
     [](Program& p) {
       // Worker 0 announces the latents when it has only its queries.
       Segment& segment = FindSegment(p, "mla_moe");
       Instruction& queries = Find(segment, 0, Opcode::kMatmul, 0);
       Instruction& latents = Find(segment, 0, Opcode::kMatmul, 1);
       ASSERT_NE(latents.signal_counter, kNone);
       std::swap(queries.signal_counter, latents.signal_counter);
       std::swap(queries.signal_amount, latents.signal_amount);
     }},
    {"MatrixOfEveryLayerSharedOut", "V8: segment kda_moe: ",
     [](Program& p) {
       // Together the two segments read every input once, but those of different layers.
       const auto change = [&p](std::string_view segment_name, auto cut) {
         bool found = false;
         for (Stream& stream : FindSegment(p, segment_name).streams) {
           for (Instruction& instruction : stream.instructions) {
             if (instruction.opcode != Opcode::kMatmul) continue;
             Tile& tile = stream.tiles[instruction.tile];
             if (!p.tensors[tile.tensor].name.ends_with("block_sparse_moe.gate")) continue;
             cut(instruction.operands[0], tile);
             found = true;
           }
         }
         EXPECT_TRUE(found) << segment_name;
       };
       change("kda_moe", [](Operand& in, Tile& tile) {
         in.end -= 32;
         tile.num_inputs -= 32;
       });
       change("mla_moe", [](Operand& in, Tile& tile) {
         in.end = in.begin + 32;
         tile.first_input = tile.num_inputs - 32;
         tile.num_inputs = 32;
       });
     }},
    {"SegmentThatIsNeverVisited", "V1: segment head_again is never visited",
     [](Program& p) {
       Segment again;
       again.name = "head_again";
       again.streams.resize(static_cast<std::size_t>(p.num_workers));
       p.segments.push_back(std::move(again));
     }},
    {"OutputNeverWritten", "V8",
     [](Program& p) {
       // Worker 0's share of the recurrence is given to nobody, and nobody waits for it.
       auto& stream = FindSegment(p, "kda_moe").streams[0].instructions;
       const auto kda = std::find_if(stream.begin(), stream.end(),
                                     [](const Instruction& i) { return i.opcode == Opcode::kKda; });
       const std::uint32_t counter = kda->signal_counter;
       stream.erase(kda);
       p.counters[counter].signals_per_visit -= 1;
       for (Stream& other : FindSegment(p, "kda_moe").streams) {
         for (Instruction& i : other.instructions) {
           if (i.wait_counter == counter) i.wait_amount -= 1;
         }
       }
     }},
};

INSTANTIATE_TEST_SUITE_P(Each, VerifierMutation, testing::ValuesIn(kMutations),
                         [](const auto& mutation) { return mutation.param.name; });

/// The same for the forms of fast runs.
class VerifierMutationOfFastPrefill : public testing::TestWithParam<Mutation> {};

TEST_P(VerifierMutationOfFastPrefill, IsRejected) {
  CompileOptions options = Workers(3, 64);
  options.fast_prefill = true;
  ExpectRejected(MustCompile(Nano(), options), GetParam());
}

const Mutation kFastPrefillMutations[] = {
    {"ExpandedAttentionDoesNotWait", "V5",
     [](Program& p) {
       Segment& segment = FindSegment(p, "mla_moe");
       for (std::size_t worker = 0; worker < segment.streams.size(); ++worker) {
         Instruction& attention = Find(segment, worker, Opcode::kMlaExpanded);
         attention.wait_counter = kNone;
         attention.wait_amount = 0;
       }
     }},
    {"UpdateOfWhatNobodyWrites", "V8",
     [](Program& p) {
       // The products' rows go elsewhere, so those of the other runs would be missing.
       Segment& segment = FindSegment(p, "mla_moe");
       const std::uint32_t out = FindBuffer(p, "mla_out");
       const std::uint32_t gate = FindBuffer(p, "mla_gate");
       for (Stream& stream : segment.streams) {
         for (Instruction& instruction : stream.instructions) {
           if (instruction.opcode == Opcode::kMatmul && instruction.operands[1].buffer == out) {
             instruction.operands[1].buffer = gate;
           }
         }
       }
     }},
    {"PanelsOfAnotherSize", "V1",
     [](Program& p) {
       Find(FindSegment(p, "mla_moe"), 0, Opcode::kMlaExpanded).operands[1].end -= 16;
     }},
    {"PanelsOfAProductThatRunsForAllRows", "V1",
     [](Program& p) {
       for (Instruction& instruction : FindSegment(p, "mla_moe").streams[0].instructions) {
         if (instruction.operands[4].buffer != kNone && instruction.opcode == Opcode::kMatmul) {
           instruction.imm[1] = 0;
         }
       }
     }},
    {"PanelsKeptTwice", "V8",
     [](Program& p) {
       const auto width = [](const Instruction& instruction) {
         const Operand& panels = instruction.operands[4];
         return instruction.opcode == Opcode::kMatmul ? panels.end - panels.begin : 0;
       };
       for (Stream& stream : FindSegment(p, "mla_moe").streams) {
         for (Instruction& first : stream.instructions) {
           for (Instruction& second : stream.instructions) {
             if (&first == &second || width(first) == 0 || width(first) != width(second)) continue;
             second.operands[4] = first.operands[4];
             return;
           }
         }
       }
     }},
    {"RankThatDoesNotFit", "V1",
     [](Program& p) { Find(FindSegment(p, "mla_moe"), 0, Opcode::kMlaExpanded).imm[2] += 16; }},
};

INSTANTIATE_TEST_SUITE_P(Verifier, VerifierMutationOfFastPrefill,
                         testing::ValuesIn(kFastPrefillMutations),
                         [](const auto& test) { return test.param.name; });

/// The same for attention that is divided over the context.
class VerifierMutationOfDividedAttention : public testing::TestWithParam<Mutation> {};

TEST_P(VerifierMutationOfDividedAttention, IsRejected) {
  CompileOptions options = Workers(3, 2);
  options.max_positions = 100'000;
  ExpectRejected(MustCompile(Nano(), options), GetParam());
}

void DropWaits(Program& program, Opcode opcode) {
  Segment& segment = FindSegment(program, "mla_moe");
  for (std::size_t worker = 0; worker < segment.streams.size(); ++worker) {
    Instruction& instruction = Find(segment, worker, opcode);
    ASSERT_NE(instruction.wait_counter, kNone);
    instruction.wait_counter = kNone;
    instruction.wait_amount = 0;
  }
}

const Mutation kDividedAttentionMutations[] = {
    {"PartialDoesNotWaitForTheQueries", "V5",
     [](Program& p) { DropWaits(p, Opcode::kMlaPartial); }},
    {"MergeDoesNotWaitForTheShares", "V5", [](Program& p) { DropWaits(p, Opcode::kMlaMerge); }},
    {"ShareComputedTwice", "V8",
     [](Program& p) {
       Segment& segment = FindSegment(p, "mla_moe");
       const Instruction& first = Find(segment, 0, Opcode::kMlaPartial);
       Instruction& second = Find(segment, 1, Opcode::kMlaPartial);
       second.imm[3] = first.imm[3];
       second.operands[3] = first.operands[3];
     }},
    {"ShareMissing", "V8",
     [](Program& p) {
       Instruction& partial = Find(FindSegment(p, "mla_moe"), 2, Opcode::kMlaPartial);
       partial.opcode = Opcode::kWait;
       partial.operands = {};
       partial.trip = Register::kOne;
     }},
    {"ShareThatDoesNotExist", "V1",
     [](Program& p) { Find(FindSegment(p, "mla_moe"), 1, Opcode::kMlaPartial).imm[3] = 3; }},
    {"ColumnsOfAnotherShare", "V8",
     [](Program& p) { Find(FindSegment(p, "mla_moe"), 1, Opcode::kMlaPartial).imm[3] = 2; }},
    {"MoreSharesThanAreComputed", "V",
     [](Program& p) {
       for (std::size_t worker : {0u, 1u, 2u}) {
         Find(FindSegment(p, "mla_moe"), worker, Opcode::kMlaMerge).imm[4] = 4;
       }
     }},
    {"HeadsThatWereNotComputed", "V",
     [](Program& p) { Find(FindSegment(p, "mla_moe"), 2, Opcode::kMlaMerge).imm[3] += 1; }},
    {"HeadsOutsideTheDivision", "V1",
     [](Program& p) { Find(FindSegment(p, "mla_moe"), 2, Opcode::kMlaMerge).imm[3] -= 1; }},
    {"LongerSequencesThanTheColumnsHold", "V7", [](Program& p) { p.state.max_positions *= 2; }},
    {"ShorterSequencesThanTheColumnsAreFor", "V1", [](Program& p) { p.state.max_positions /= 2; }},
};

INSTANTIATE_TEST_SUITE_P(Verifier, VerifierMutationOfDividedAttention,
                         testing::ValuesIn(kDividedAttentionMutations),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace megalith::program
