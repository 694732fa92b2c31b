#include "exec/packed_weights.h"

#include <gtest/gtest.h>

#include "exec/testing/executors.h"
#include "tools/temp_dir.h"

namespace megalith::exec::testing {
namespace {

ExecutorSpec Spec(std::int32_t workers) {
  ExecutorSpec spec;
  spec.directory = std::string(MEGALITH_TEST_DATA) + "/golden/k3-unit";
  spec.num_workers = workers;
  return spec;
}

program::VerifiedProgram ProgramOf(const ExecutorSpec& spec) {
  return MakePrograms(spec).value().front();
}

TEST(PackedWeights, EveryTileIsWhatItsJobPacks) {
  const ExecutorSpec spec = Spec(3);
  const auto packed = Pack(spec);
  ASSERT_TRUE(packed.has_value()) << packed.error().message;
  const weights::Checkpoint& checkpoint = **OpenCheckpoint(spec.directory);
  std::int64_t bytes = 0;
  for (const TilePlacement& tile : (*packed)->layout().tiles) {
    const std::int64_t copies = std::max<std::int64_t>(tile.num_experts, 1);
    for (std::int64_t expert = 0; expert < copies; ++expert) {
      weights::PanelJob job = tile.job;
      job.tensor = FillName(job.tensor, "{expert}", expert);
      job.pair_tensor = FillName(job.pair_tensor, "{expert}", expert);
      std::vector<std::byte> want(static_cast<std::size_t>(tile.bytes));
      const Status status = weights::PackPanels(checkpoint, job, want);
      ASSERT_TRUE(status.has_value()) << status.error().message;
      const std::byte* have =
          (*packed)->WorkerArena(tile.worker) + tile.offset + expert * tile.expert_stride_bytes;
      ASSERT_TRUE(std::equal(want.begin(), want.end(), have)) << job.tensor;
      bytes += tile.bytes;
    }
  }
  EXPECT_GT(bytes, 1'000'000);
}

TEST(PackedWeights, RowBucketsOfOneModelShareThem) {
  ExecutorSpec spec = Spec(2);
  const auto packed = Pack(spec);
  ASSERT_TRUE(packed.has_value()) << packed.error().message;
  for (const std::int32_t bucket : {1, 2, 64, 256}) {
    spec.row_buckets = {bucket};
    EXPECT_TRUE((*packed)->CheckFits(*ProgramOf(spec)).has_value()) << bucket;
  }
}

TEST(PackedWeights, ProgramWithAnotherTileIsRefused) {
  const ExecutorSpec spec = Spec(2);
  const auto packed = Pack(spec);
  ASSERT_TRUE(packed.has_value()) << packed.error().message;
  program::Program other = *ProgramOf(spec);
  program::Tile& tile = other.segments[1].streams[1].tiles[0];
  // The same bytes from other outputs of the matrix.
  ASSERT_GE(tile.first_output, 16);
  tile.first_output -= 16;
  const Status status = (*packed)->CheckFits(other);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(ErrorCodeName(status.error().code), ErrorCodeName(ErrorCode::kUsage));
  EXPECT_NE(status.error().message.find("worker 1"), std::string::npos) << status.error().message;

  other = *ProgramOf(spec);
  other.visits[1].vector_base += 64;
  EXPECT_FALSE((*packed)->CheckFits(other).has_value());
}

TEST(PackedWeights, ProgressEndsAtTheTotal) {
  const ExecutorSpec spec = Spec(2);
  const weights::Checkpoint& checkpoint = **OpenCheckpoint(spec.directory);
  PackOptions options;
  std::vector<Progress> reports;
  options.progress = [&](const Progress& progress) { reports.push_back(progress); };
  const auto packed = PackedWeights::Pack(*ProgramOf(spec), checkpoint, options);
  ASSERT_TRUE(packed.has_value()) << packed.error().message;
  ASSERT_FALSE(reports.empty());
  for (std::size_t i = 1; i < reports.size(); ++i) EXPECT_GE(reports[i].done, reports[i - 1].done);
  EXPECT_EQ(reports.back().done, reports.back().total);
  EXPECT_EQ(reports.back().total, static_cast<std::uint64_t>(packed->layout().PackedBytes()));
  EXPECT_TRUE(reports.back().in_bytes);
  EXPECT_TRUE(packed->Pages().has_value());
}

TEST(PackedWeights, CancelledPackingStops) {
  const ExecutorSpec spec = Spec(2);
  const weights::Checkpoint& checkpoint = **OpenCheckpoint(spec.directory);
  CancelFlag cancel;
  cancel.Cancel();
  PackOptions options;
  options.cancel = &cancel;
  const auto packed = PackedWeights::Pack(*ProgramOf(spec), checkpoint, options);
  ASSERT_FALSE(packed.has_value());
  EXPECT_EQ(ErrorCodeName(packed.error().code), ErrorCodeName(ErrorCode::kCancelled));
}

TEST(PackedWeights, CpusForAnotherWorkerCountAreRefused) {
  const ExecutorSpec spec = Spec(2);
  const weights::Checkpoint& checkpoint = **OpenCheckpoint(spec.directory);
  PackOptions options;
  options.worker_cpus = {0};
  const auto packed = PackedWeights::Pack(*ProgramOf(spec), checkpoint, options);
  ASSERT_FALSE(packed.has_value());
  EXPECT_EQ(ErrorCodeName(packed.error().code), ErrorCodeName(ErrorCode::kUsage));
}

TEST(PackedWeights, DamagedExpertIsNamed) {
  const ExecutorSpec spec = Spec(2);
  const tools::TempDir directory;
  directory.CopyFrom(spec.directory);
  {
    const weights::Checkpoint& good = **OpenCheckpoint(spec.directory);
    const auto view = good.FindMatrix("layers.1.block_sparse_moe.experts.9.w2")->scale;
    std::fstream file(directory.File(good.shards().ShardName(view.shard)),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(view.file_offset) + 5);
    file.put('\0');
  }
  const auto damaged = weights::Checkpoint::Open(directory.path());
  ASSERT_TRUE(damaged.has_value()) << damaged.error().message;
  const auto packed = PackedWeights::Pack(*ProgramOf(spec), *damaged, PackOptions{});
  ASSERT_FALSE(packed.has_value());
  EXPECT_EQ(ErrorCodeName(packed.error().code), ErrorCodeName(ErrorCode::kBadTensor));
  EXPECT_NE(packed.error().message.find("experts.9.w2"), std::string::npos)
      << packed.error().message;
}

TEST(FillName, ReplacesItsWordOnly) {
  EXPECT_EQ(FillName("layers.{layer}.experts.{expert}.w1", "{layer}", 12),
            "layers.12.experts.{expert}.w1");
  EXPECT_EQ(FillName("lm_head", "{layer}", 12), "lm_head");
}

}  // namespace
}  // namespace megalith::exec::testing
