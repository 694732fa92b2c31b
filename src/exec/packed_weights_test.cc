#include "exec/packed_weights.h"

#include <gtest/gtest.h>

#include "exec/testing/executors.h"
#include "exec/weight_packer.h"
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

TEST(PackedWeights, DamagedEmbeddingIsNamed) {
  const ExecutorSpec spec = Spec(2);
  const tools::TempDir directory;
  directory.CopyFrom(spec.directory);
  const auto program = ProgramOf(spec);
  {
    const weights::Checkpoint& good = **OpenCheckpoint(spec.directory);
    const auto view = good.Find(program->tables[0].name);
    ASSERT_TRUE(view.has_value());
    std::fstream file(directory.File(good.shards().ShardName(view->shard)),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(view->file_offset) + 2 * (5 * program->hidden_size + 9));
    const std::uint16_t nan = 0x7fc0;
    file.write(reinterpret_cast<const char*>(&nan), sizeof(nan));
  }
  const auto checkpoint = weights::Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const auto packed = PackedWeights::Pack(*program, *checkpoint, {});
  ASSERT_FALSE(packed.has_value());
  EXPECT_EQ(ErrorCodeName(packed.error().code), ErrorCodeName(ErrorCode::kBadTensor));
  EXPECT_NE(packed.error().message.find("row 5, column 9"), std::string::npos)
      << packed.error().message;
  EXPECT_NE(packed.error().message.find("0x7fc0"), std::string::npos) << packed.error().message;
}

// ---- threads ------------------------------------------------------------------------------------

/// Two nodes of two cores, the first core with two hardware threads.
Topology TwoNodes() {
  Topology topology{};
  topology.cores = {{{0, 4}, 0, 0}, {{1}, 0, 0}, {{2}, 1, 1}, {{3}, 1, 1}};
  topology.numa_nodes = {{0, 0, {0, 1, 4}}, {1, 0, {2, 3}}};
  topology.allowed_cpus = {0, 1, 2, 3, 4};
  return topology;
}

TEST(PlanLoadThreads, WorkersAreHelpedOnTheirOwnNodeOnly) {
  const Topology topology = TwoNodes();
  const int cpus[] = {0, 2, 3};
  const auto threads = PlanLoadThreads(&topology, cpus, 3);
  ASSERT_EQ(threads.size(), 4U) << "the idle core of the first node helps";
  EXPECT_EQ(threads[0].cpu, 0);
  EXPECT_EQ(threads[0].workers, std::vector<std::int32_t>{0});
  EXPECT_EQ(threads[1].cpu, 2);
  EXPECT_EQ(threads[1].workers, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(threads[2].cpu, 3);
  EXPECT_EQ(threads[2].workers, (std::vector<std::int32_t>{2, 1}));
  EXPECT_EQ(threads[3].cpu, 1);
  EXPECT_EQ(threads[3].workers, std::vector<std::int32_t>{0});
}

TEST(PlanLoadThreads, NodesWithoutWorkersStayIdle) {
  const Topology topology = TwoNodes();
  const int cpus[] = {1};
  const auto threads = PlanLoadThreads(&topology, cpus, 1);
  ASSERT_EQ(threads.size(), 2U);
  EXPECT_EQ(threads[1].cpu, 0);
}

TEST(PlanLoadThreads, WithoutPlacesEveryWorkerIsStillServed) {
  const Topology topology = TwoNodes();
  for (const std::int32_t workers : {1, 3, 20}) {
    const auto threads = PlanLoadThreads(&topology, {}, workers);
    EXPECT_EQ(threads.size(), static_cast<std::size_t>(std::min(workers, 5)));
    for (const LoadThread& thread : threads) {
      EXPECT_EQ(thread.cpu, -1);
      EXPECT_EQ(thread.workers.size(), static_cast<std::size_t>(workers));
    }
  }
  const int cpus[] = {7, 8};
  const auto threads = PlanLoadThreads(nullptr, cpus, 2);
  ASSERT_EQ(threads.size(), 2U);
  EXPECT_EQ(threads[1].workers, std::vector<std::int32_t>{1});
}

TEST(PackedWeights, ThreadsChangeNothing) {
  const ExecutorSpec spec = Spec(3);
  const auto one = Pack(spec);
  ASSERT_TRUE(one.has_value());
  const auto topology = DetectTopology();
  ASSERT_TRUE(topology.has_value());
  PackOptions options;
  options.topology = &*topology;
  const auto helped =
      PackedWeights::Pack(*ProgramOf(spec), **OpenCheckpoint(spec.directory), options);
  ASSERT_TRUE(helped.has_value()) << helped.error().message;
  const WeightLayout& layout = helped->layout();
  for (std::size_t w = 0; w < layout.worker_bytes.size(); ++w) {
    const auto worker = static_cast<std::int32_t>(w);
    const auto bytes = static_cast<std::size_t>(layout.worker_bytes[w]);
    EXPECT_TRUE(std::equal(helped->WorkerArena(worker), helped->WorkerArena(worker) + bytes,
                           (*one)->WorkerArena(worker)));
  }
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
