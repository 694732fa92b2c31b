// CompileOptions::barrier_after_each_op: the same work, but everybody meets after every operation.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "program/compile/compile.h"
#include "program/compile/test_models.h"

namespace megalith::program {
namespace {

CompileOptions WithBarriers(std::int32_t workers, std::int32_t rows = 1) {
  CompileOptions options = Workers(workers, rows);
  options.barrier_after_each_op = true;
  return options;
}

TEST(BarrierAfterEachOp, IsProvedForEveryGoldenConfigWorkerCountAndRowBucket) {
  std::vector<model::Model> models = {Nano()};
  for (const char* name : {"k3-tiny", "k3-odd", "k3-unit"}) {
    models.push_back(LoadModel(std::string(MEGALITH_TEST_DATA "/golden/") + name));
  }
  for (const model::Model& model : models) {
    for (std::int32_t workers : {1, 2, 3, 5, 16}) {
      for (std::int32_t rows : {1, 8}) {
        const auto verified = Verify(MustCompile(model, WithBarriers(workers, rows)));
        EXPECT_TRUE(verified.has_value())
            << workers << " workers, " << rows << " rows: " << verified.error().message;
      }
    }
  }
}

TEST(BarrierAfterEachOp, KeepsTilesAndWeightArenas) {
  const Program normal = MustCompile(Nano(), Workers(3));
  const Program barriers = MustCompile(Nano(), WithBarriers(3));
  EXPECT_EQ(barriers.weight_arena_bytes, normal.weight_arena_bytes);
  EXPECT_EQ(barriers.vector_arena_bytes, normal.vector_arena_bytes);
  EXPECT_EQ(CountStepBytes(barriers, 1, 4).packed, CountStepBytes(normal, 1, 4).packed);
  ASSERT_EQ(barriers.segments.size(), normal.segments.size());
  for (std::size_t i = 0; i < normal.segments.size(); ++i) {
    for (std::size_t w = 0; w < normal.segments[i].streams.size(); ++w) {
      const Stream& want = normal.segments[i].streams[w];
      const Stream& have = barriers.segments[i].streams[w];
      ASSERT_EQ(have.tiles.size(), want.tiles.size());
      for (std::size_t t = 0; t < want.tiles.size(); ++t) {
        EXPECT_EQ(have.tiles[t].offset, want.tiles[t].offset);
        EXPECT_EQ(have.tiles[t].bytes, want.tiles[t].bytes);
      }
    }
  }
}

TEST(BarrierAfterEachOp, NothingIsFetchedAcrossOperations) {
  const Program program = MustCompile(Nano(), WithBarriers(2));
  for (const Segment& segment : program.segments) {
    for (const Stream& stream : segment.streams) {
      EXPECT_TRUE(stream.prologue.empty());
      for (std::size_t i = 0; i < stream.instructions.size(); ++i) {
        const Instruction& instruction = stream.instructions[i];
        EXPECT_NE(instruction.opcode, Opcode::kFetchNext);
        if (instruction.opcode != Opcode::kFetch) continue;
        ASSERT_LT(i + 1, stream.instructions.size());
        EXPECT_EQ(stream.instructions[i + 1].opcode, Opcode::kMatmul);
        EXPECT_EQ(stream.instructions[i + 1].tile, instruction.tile);
      }
    }
  }
}

/// Between two operations of one worker there is a wait for all workers.
TEST(BarrierAfterEachOp, EveryWorkerWaitsForAllBetweenAnyTwoOperations) {
  constexpr std::int32_t kWorkers = 2;
  const Program program = MustCompile(Nano(), WithBarriers(kWorkers));
  for (const Segment& segment : program.segments) {
    for (const Stream& stream : segment.streams) {
      using Operation = std::pair<Opcode, std::pair<std::uint32_t, bool>>;
      std::set<Operation> done;
      std::optional<Operation> current;
      bool met = false;
      for (const Instruction& instruction : stream.instructions) {
        if (instruction.wait_counter != kNone) {
          EXPECT_TRUE(instruction.wait_amount == kWorkers ||
                      program.counters[instruction.wait_counter].scope == CounterScope::kHost);
          met = true;
        }
        if (instruction.opcode == Opcode::kWait || instruction.opcode == Opcode::kFetch) continue;
        Operation operation{instruction.opcode, {kNone, false}};
        if (instruction.tile != kNone) {
          const Tile& tile = stream.tiles[instruction.tile];
          operation.second = {tile.tensor, tile.transposed};
        }
        if (operation == current) continue;
        EXPECT_TRUE(met) << segment.name << " " << Info(instruction.opcode).name;
        EXPECT_TRUE(done.insert(operation).second || instruction.opcode == Opcode::kAttnResNorm ||
                    instruction.opcode == Opcode::kRmsNorm)
            << segment.name << " " << Info(instruction.opcode).name << " comes twice";
        current = operation;
        met = false;
      }
    }
  }
}

TEST(BarrierAfterEachOp, HasMoreJoinsThanTheNormalForm) {
  const auto joins = [](const Program& program) {
    std::int64_t count = 0;
    for (const Visit& visit : program.visits) {
      for (const Instruction& instruction :
           program.segments[visit.segment].streams[0].instructions) {
        if (instruction.wait_counter != kNone) ++count;
      }
    }
    return count;
  };
  EXPECT_GT(joins(MustCompile(Nano(), WithBarriers(2))),
            joins(MustCompile(Nano(), Workers(2))) * 3 / 2);
}

}  // namespace
}  // namespace megalith::program
