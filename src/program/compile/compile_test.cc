#include "program/compile/compile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "program/compile/test_models.h"
#include "program/dump.h"
#include "program/serialize.h"

namespace megalith::program {
namespace {

void ExpectVerified(const Program& program, const std::string& what) {
  const auto verified = Verify(program);
  EXPECT_TRUE(verified.has_value()) << what << ": " << verified.error().message;
}

TEST(Compile, EveryWorkerCountAndRowBucketOfTheNanoModelIsProved) {
  const model::Model model = Nano();
  for (std::int32_t workers : {1, 2, 3, 4, 5, 7, 16, 64}) {
    for (std::int32_t rows : {1, 2, 8, 64}) {
      ExpectVerified(MustCompile(model, Workers(workers, rows)),
                     fmt::format("{} workers, {} rows", workers, rows));
    }
  }
}

TEST(Compile, EveryGoldenConfigIsProved) {
  for (const char* name : {"k3-tiny", "k3-odd", "k3-unit", "k3-realdims"}) {
    const model::Model model = LoadModel(std::string(MEGALITH_TEST_DATA "/golden/") + name);
    for (std::int32_t workers : {1, 2, 3, 5}) {
      ExpectVerified(MustCompile(model, Workers(workers, 8)), name);
    }
  }
}

TEST(Compile, Float32ActivationsAreProved) {
  CompileOptions options = Workers(2, 4);
  options.activation_dtype = DType::kF32;
  ExpectVerified(MustCompile(Nano(), options), "f32");
}

CompileOptions Fast(std::int32_t workers, std::int32_t rows) {
  CompileOptions options = Workers(workers, rows);
  options.fast_prefill = true;
  return options;
}

TEST(Compile, FastPrefillIsProvedWhetherHeadsDivideOrNot) {
  for (const char* name : {"k3-tiny", "k3-odd", "k3-unit", "k3-realdims"}) {
    const model::Model model = LoadModel(std::string(MEGALITH_TEST_DATA "/golden/") + name);
    for (std::int32_t workers : {1, 2, 3, 5}) {
      ExpectVerified(MustCompile(model, Fast(workers, 64)),
                     fmt::format("{}, {} workers", name, workers));
    }
  }
  ExpectVerified(MustCompile(RealK3(), Fast(64, 256)), "Kimi K3");
  CompileOptions barriers = Fast(3, 64);
  barriers.barrier_after_each_op = true;
  ExpectVerified(MustCompile(Nano(), barriers), "with barriers");
}

// Small steps stay as they are, to the byte, and large ones keep the weights where they lie.
TEST(Compile, FastPrefillChangesLargeStepsOnly) {
  const model::Model model = Nano();
  EXPECT_EQ(ContentHash(MustCompile(model, Fast(2, 16))),
            ContentHash(MustCompile(model, Workers(2, 16))));
  const Program fast = MustCompile(model, Fast(2, 64));
  const Program exact = MustCompile(model, Workers(2, 64));
  EXPECT_NE(ContentHash(fast), ContentHash(exact));
  EXPECT_EQ(fast.weight_arena_bytes, exact.weight_arena_bytes);
  ASSERT_EQ(fast.visits.size(), exact.visits.size());
  for (std::size_t i = 0; i < fast.visits.size(); ++i) {
    EXPECT_EQ(fast.visits[i].weight_base, exact.visits[i].weight_base) << i;
    EXPECT_EQ(fast.visits[i].expert_base, exact.visits[i].expert_base) << i;
  }
}

TEST(Compile, FastPrefillWithFloatActivationsIsRefused) {
  CompileOptions options = Fast(1, 64);
  options.activation_dtype = DType::kF32;
  const auto program = Compile(Nano(), options);
  ASSERT_FALSE(program.has_value());
  EXPECT_EQ(program.error().code, ErrorCode::kUsage);
  EXPECT_NE(program.error().message.find("fast prefill"), std::string::npos);
}

TEST(Compile, RealKimiK3ReadsTheBytesPerTokenOfItsSpecification) {
  const model::Model model = RealK3();
  const Program program = MustCompile(model, Workers(64));
  ExpectVerified(program, "Kimi K3");
  const StepBytes bytes = CountStepBytes(program, 1, 16);
  // spec section 8: exact bytes per instance times their number.
  const std::int64_t dense = 69 * 887'800'832LL + 24 * 464'392'192LL + 726'663'168LL * 2 +
                             92 * (6'422'528LL * 2 + 896 * 4) + 92 * 51'383'808LL * 2 +
                             92 * 132'120'576LL * 2 + 93 * 43'008LL * 2 + 21'504 * 2 +
                             1'174'405'120LL * 2;
  EXPECT_EQ(bytes.dense_source + bytes.vector_source, dense);
  EXPECT_EQ(bytes.expert_source, 92LL * 16 * 17'547'264);
  EXPECT_EQ(bytes.embedding_source, 14'336);
  EXPECT_EQ(bytes.Source(), dense + 92LL * 16 * 17'547'264 + 14'336);
  EXPECT_NEAR(static_cast<double>(bytes.Source()), 136.990e9, 5e6);
  // Padding to whole panels costs next to nothing here; of A_log only the used entries are read.
  EXPECT_NEAR(static_cast<double>(bytes.packed), static_cast<double>(bytes.Source()), 1e6);
}

TEST(Compile, RealKimiK3SharesTheBytesEvenly) {
  const Program program = MustCompile(RealK3(), Workers(64));
  std::int64_t most = 0;
  std::int64_t sum = 0;
  for (std::int64_t bytes : program.weight_arena_bytes) {
    most = std::max(most, bytes);
    sum += bytes;
  }
  EXPECT_LT(static_cast<double>(most), static_cast<double>(sum) / 64 * 1.05);
}

TEST(Compile, RealKimiK3WithEightRowsOn64WorkersIsProved) {
  const model::Model model = RealK3();
  const auto begin = std::chrono::steady_clock::now();
  Program program = MustCompile(model, Workers(64, 8));
  const auto compiled = std::chrono::steady_clock::now();
  ExpectVerified(program, "Kimi K3, 8 rows");
  const auto verified = std::chrono::steady_clock::now();
  const auto milliseconds = [](auto duration) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  };
  std::printf("compile %ld ms, verify %ld ms, %ld instructions\n",
              static_cast<long>(milliseconds(compiled - begin)),
              static_cast<long>(milliseconds(verified - compiled)),
              static_cast<long>(CountInstructions(program)));
}

TEST(Compile, RowBucketsShareOneWeightLayout) {
  const model::Model model = Nano();
  const Program one = MustCompile(model, Workers(3, 1));
  const Program many = MustCompile(model, Workers(3, 64));
  ASSERT_EQ(one.visits.size(), many.visits.size());
  EXPECT_EQ(one.weight_arena_bytes, many.weight_arena_bytes);
  for (std::size_t i = 0; i < one.visits.size(); ++i) {
    EXPECT_EQ(one.visits[i].weight_base, many.visits[i].weight_base);
    EXPECT_EQ(one.visits[i].expert_base, many.visits[i].expert_base);
  }
}

// docs/program.md says which join is there for what.
TEST(Compile, OneRowLayersHaveNoMoreJoinsThanTheirDataNeeds) {
  const std::map<std::string, int> most = {
      {"embedding", 1}, {"kda_dense", 5}, {"kda_moe", 7}, {"mla_moe", 8}, {"head", 2}};
  const Program program = MustCompile(Nano(), Workers(2, 1));
  for (const Segment& segment : program.segments) {
    for (const Stream& stream : segment.streams) {
      const auto joins = std::count_if(
          stream.instructions.begin(), stream.instructions.end(),
          [](const Instruction& instruction) { return instruction.wait_counter != kNone; });
      EXPECT_LE(joins, most.at(segment.name)) << segment.name;
    }
  }
}

CompileOptions LongContext(std::int32_t workers, std::int32_t rows, std::int32_t max_positions) {
  CompileOptions options = Workers(workers, rows);
  options.max_positions = max_positions;
  return options;
}

std::int64_t Count(const Program& program, Opcode opcode) {
  std::int64_t count = 0;
  for (const Segment& segment : program.segments) {
    for (const Stream& stream : segment.streams) {
      count += std::count_if(
          stream.instructions.begin(), stream.instructions.end(),
          [opcode](const Instruction& instruction) { return instruction.opcode == opcode; });
    }
  }
  return count;
}

TEST(Compile, AttentionOverLongContextsIsProved) {
  for (const char* name : {"k3-tiny", "k3-odd", "k3-unit", "k3-realdims"}) {
    const model::Model model = LoadModel(std::string(MEGALITH_TEST_DATA "/golden/") + name);
    for (std::int32_t workers : {2, 3, 5}) {
      for (std::int32_t rows : {1, 8}) {
        CompileOptions options = LongContext(workers, rows, 100'000);
        ExpectVerified(MustCompile(model, options), name);
        options.barrier_after_each_op = true;
        ExpectVerified(MustCompile(model, options), name);
        options.activation_dtype = DType::kF32;
        ExpectVerified(MustCompile(model, options), name);
      }
    }
  }
  const Program program = MustCompile(RealK3(), LongContext(64, 8, 1 << 20));
  ExpectVerified(program, "Kimi K3");
  EXPECT_LT(program.activation_arena_bytes, std::int64_t{1} << 30);
}

// Workers that share attention out by heads alone keep their joins.
TEST(Compile, OnlySmallStepsOfSeveralWorkersOverLongContextsDivideTheContext) {
  const model::Model model = Nano();
  EXPECT_EQ(Count(MustCompile(model, LongContext(3, 8, 4097)), Opcode::kMlaAttention), 0);
  EXPECT_EQ(Count(MustCompile(model, LongContext(3, 8, 4097)), Opcode::kMlaPartial), 3);
  for (const CompileOptions& options :
       {LongContext(3, 8, 4096), LongContext(1, 1, 1 << 20), LongContext(3, 16, 1 << 20)}) {
    const Program program = MustCompile(model, options);
    EXPECT_EQ(Count(program, Opcode::kMlaPartial), 0);
    EXPECT_EQ(Count(program, Opcode::kMlaMerge), 0);
    EXPECT_GT(Count(program, Opcode::kMlaAttention), 0);
  }
}

// docs/program.md: one for what the others have computed. Another, for the queries of all heads,
// stands in for that for the cache entry.
TEST(Compile, DividedAttentionHasOneJoinMore) {
  const auto joins = [](const Program& program) {
    std::int64_t most = 0;
    for (const Segment& segment : program.segments) {
      if (segment.name != "mla_moe") continue;
      for (const Stream& stream : segment.streams) {
        const auto count = std::count_if(
            stream.instructions.begin(), stream.instructions.end(),
            [](const Instruction& instruction) { return instruction.wait_counter != kNone; });
        most = std::max<std::int64_t>(most, count);
      }
    }
    return most;
  };
  EXPECT_EQ(joins(MustCompile(Nano(), LongContext(2, 1, 100'000))),
            joins(MustCompile(Nano(), LongContext(2, 1, 4096))) + 1);
}

TEST(Compile, SameInputsGiveTheSameHashAndOthersAnother) {
  const model::Model model = Nano();
  const std::string hash = ContentHash(MustCompile(model, Workers(2)));
  EXPECT_EQ(hash, ContentHash(MustCompile(model, Workers(2))));
  EXPECT_NE(hash, ContentHash(MustCompile(model, Workers(3))));
  EXPECT_NE(hash, ContentHash(MustCompile(model, Workers(2, 2))));
}

TEST(Compile, ImpossibleOptionsAreRefusedByName) {
  const model::Model model = Nano();
  CompileOptions options = Workers(0);
  auto program = Compile(model, options);
  ASSERT_FALSE(program.has_value());
  EXPECT_NE(program.error().message.find("workers"), std::string::npos);
  options = Workers(1, 1);
  options.max_logit_rows = 2;
  EXPECT_FALSE(Compile(model, options).has_value());
}

TEST(RowBucket, RoundsUpToTheNextBucket) {
  EXPECT_EQ(RowBucket(1), 1);
  EXPECT_EQ(RowBucket(3), 4);
  EXPECT_EQ(RowBucket(9), 16);
  EXPECT_EQ(RowBucket(17), 64);
  EXPECT_EQ(RowBucket(256), 256);
  EXPECT_EQ(RowBucket(257), 1024);
  EXPECT_EQ(RowBucket(4096), kMaxRowBucket);
}

TEST(Serialize, RoundTripKeepsEveryByte) {
  const Program program = MustCompile(Nano(), Workers(2, 2));
  const std::vector<std::byte> bytes = Serialize(program);
  const auto read = Deserialize(bytes);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(Serialize(*read), bytes);
  ExpectVerified(*read, "read back");
}

TEST(Deserialize, TruncatedOrExtendedBytesAreRefused) {
  std::vector<std::byte> bytes = Serialize(MustCompile(Nano(), Workers(1)));
  for (std::size_t size = 0; size < bytes.size(); size += 1 + size / 3) {
    EXPECT_FALSE(Deserialize(std::span(bytes).first(size)).has_value()) << size;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(Deserialize(bytes).has_value());
}

TEST(Deserialize, AnotherVersionIsNamed) {
  std::vector<std::byte> bytes = Serialize(MustCompile(Nano(), Workers(1)));
  const auto version = static_cast<int>(bytes[7]);
  bytes[7] = std::byte{250};
  const auto newer = Deserialize(bytes);
  ASSERT_FALSE(newer.has_value());
  EXPECT_EQ(newer.error().message,
            fmt::format("program file: version {} expected, 250 found", version));
  bytes[0] = std::byte{'m'};
  const auto other = Deserialize(bytes);
  ASSERT_FALSE(other.has_value());
  EXPECT_NE(other.error().message.find("MEGAPRG"), std::string::npos) << other.error().message;
}

TEST(Dump, NamesSegmentsTensorsAndTheHash) {
  const Program program = MustCompile(Nano(), Workers(2));
  for (const std::string& text : {DumpText(program), DumpJson(program)}) {
    EXPECT_NE(text.find("kda_moe"), std::string::npos);
    EXPECT_NE(text.find("layers.{layer}.self_attn.q_proj"), std::string::npos);
    EXPECT_NE(text.find(ContentHash(program)), std::string::npos);
  }
}

}  // namespace
}  // namespace megalith::program
