// What random models compute: as lively as trained ones, so that measurements on them mean
// something.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "exec/device_memory.h"
#include "exec/testing/executors.h"
#include "synth/plan.h"
#include "synth/presets.h"
#include "synth/write.h"
#include "tools/temp_dir.h"

namespace megalith::synth {
namespace {

using exec::testing::ExecutorSpec;

constexpr std::int32_t kNumTokens = 64;

const std::string& TinyDirectory() {
  static const tools::TempDir temp;
  static const std::string directory = [] {
    const auto config = PresetConfig("k3-tiny");
    const auto plan = PlanCheckpoint(config.value_or(""), {});
    const std::string path = temp.File("k3-tiny");
    EXPECT_TRUE(plan && WriteCheckpoint(*plan, path, {}));
    return path;
  }();
  return directory;
}

std::vector<std::int32_t> Tokens() {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < kNumTokens; ++i) tokens.push_back((i * 389 + 17) % 1024);
  return tokens;
}

double RootMeanSquare(const std::byte* row, std::int64_t columns) {
  double squares = 0.0;
  for (std::int64_t i = 0; i < columns; ++i) {
    const auto value = static_cast<double>(ToFloat(reinterpret_cast<const Bf16*>(row)[i]));
    squares += value * value;
  }
  return std::sqrt(squares / static_cast<double>(columns));
}

TEST(RandomModel, ExpertsAreUsedEvenlyAndTheResidualStreamKeepsItsSize) {
  ExecutorSpec spec;
  spec.directory = TinyDirectory();
  spec.reference = true;
  spec.row_buckets = {kNumTokens};
  std::map<std::int64_t, std::vector<int>> uses;  // by visit
  std::map<std::int64_t, double> sizes;           // of the residual stream after each visit
  spec.observer = [&](const exec::InstructionEvent& event) {
    const program::Program& program = event.memory.program();
    const program::Visit& visit = program.visits[static_cast<std::size_t>(event.visit_index)];
    const program::Stream& stream =
        program.segments[visit.segment].streams[static_cast<std::size_t>(event.worker)];
    const program::Instruction& instruction =
        stream.instructions[static_cast<std::size_t>(event.instruction_index)];
    if (visit.layer >= 0) {
      const std::uint32_t prefix = event.memory.FindBuffer("prefix");
      sizes[event.visit_index] = RootMeanSquare(event.memory.Bytes(prefix).data(), 128);
    }
    if (instruction.opcode != program::Opcode::kRouterTopK) return true;
    const auto ids = event.memory.Rows<std::int32_t>(instruction.operands[1]);
    std::vector<int>& counts = uses[event.visit_index];
    counts.resize(16);
    for (std::int64_t row = 0; row < kNumTokens; ++row) {
      for (int i = 0; i < 4; ++i) ++counts.at(static_cast<std::size_t>(ids.Row(row)[i]));
    }
    return true;
  };
  const auto executor = MakeExecutor(spec);
  ASSERT_TRUE(executor.has_value()) << executor.error().message;
  const auto tokens = Tokens();
  const exec::Run run{0, 0, kNumTokens};
  ASSERT_TRUE((*executor)->Step({{&run, 1}, tokens, {}}).has_value());

  EXPECT_EQ(uses.size(), 8U) << "layers with experts";
  constexpr int kMean = kNumTokens * 4 / 16;
  for (const auto& [visit, counts] : uses) {
    EXPECT_GT(*std::min_element(counts.begin(), counts.end()), 0) << "visit " << visit;
    EXPECT_LT(*std::max_element(counts.begin(), counts.end()), 3 * kMean) << "visit " << visit;
  }
  EXPECT_EQ(sizes.size(), 9U);
  for (const auto& [visit, size] : sizes) {
    EXPECT_GT(size, 0.2) << "visit " << visit;
    EXPECT_LT(size, 8.0) << "visit " << visit;
  }
}

TEST(RandomModel, LogitsAreFiniteAndSayDifferentThingsAtEveryToken) {
  ExecutorSpec spec;
  spec.directory = TinyDirectory();
  spec.row_buckets = {kNumTokens};
  const auto executor = MakeExecutor(spec);
  ASSERT_TRUE(executor.has_value()) << executor.error().message;
  const auto logits = exec::testing::Feed(**executor, 0, Tokens(), kNumTokens);
  ASSERT_TRUE(logits.has_value()) << logits.error().message;
  std::set<std::int32_t> best;
  for (const std::vector<float>& row : *logits) {
    double squares = 0.0;
    for (const float value : row) {
      ASSERT_TRUE(std::isfinite(value));
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    const double spread = std::sqrt(squares / static_cast<double>(row.size()));
    EXPECT_GT(spread, 1.0);
    EXPECT_LT(spread, 6.0);
    best.insert(exec::testing::ArgMax(row));
  }
  EXPECT_GT(best.size(), 40U) << "of 64 tokens";
}

}  // namespace
}  // namespace megalith::synth
