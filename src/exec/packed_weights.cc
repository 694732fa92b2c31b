#include "exec/packed_weights.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/affinity.h"
#include "exec/memory_check.h"

namespace megalith::exec {
namespace {

/// Shared by the packing threads and the caller who watches them.
struct PackingState {
  PackingState(const weights::Checkpoint& source, const CancelFlag* flag)
      : checkpoint(&source), cancel(flag) {}

  const weights::Checkpoint* checkpoint;
  const CancelFlag* cancel;
  std::atomic<std::uint64_t> packed_bytes{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable finished;
  std::size_t num_running = 0;  // guarded by mutex
  std::optional<Error> error;   // guarded by mutex; the first one

  void SetError(Error value) {
    const std::lock_guard lock(mutex);
    if (!error) error = std::move(value);
    stop.store(true, std::memory_order_relaxed);
  }
  /// After every job: whether to go on.
  bool Continue() {
    if (cancel != nullptr && cancel->IsCancelled()) {
      SetError(Error{ErrorCode::kCancelled, "packing weights: stopped on request"});
    }
    return !stop.load(std::memory_order_relaxed);
  }
};

Status PackTile(const TilePlacement& tile, std::byte* arena, PackingState* state) {
  const std::int64_t copies = std::max<std::int64_t>(tile.num_experts, 1);
  for (std::int64_t expert = 0; expert < copies; ++expert) {
    if (!state->Continue()) return {};
    std::byte* destination = arena + tile.offset + expert * tile.expert_stride_bytes;
    const std::span<std::byte> bytes(destination, static_cast<std::size_t>(tile.bytes));
    if (tile.num_experts == 0) {
      MEGALITH_RETURN_IF_ERROR(weights::PackPanels(*state->checkpoint, tile.job, bytes));
    } else {
      weights::PanelJob job = tile.job;
      job.tensor = FillName(job.tensor, "{expert}", expert);
      job.pair_tensor = FillName(job.pair_tensor, "{expert}", expert);
      MEGALITH_RETURN_IF_ERROR(weights::PackPanels(*state->checkpoint, job, bytes));
    }
    state->packed_bytes.fetch_add(static_cast<std::uint64_t>(tile.bytes),
                                  std::memory_order_relaxed);
  }
  return {};
}

/// One worker's tiles, on that worker's CPU.
void PackWorker(const WeightLayout& layout, std::int32_t worker, int cpu, std::byte* arena,
                PackingState* state) {
  Status status;
  if (cpu >= 0) status = PinThisThread(cpu);
  for (const TilePlacement& tile : layout.tiles) {
    if (!status || !state->Continue()) break;
    if (tile.worker == worker) status = PackTile(tile, arena, state);
  }
  if (!status) state->SetError(std::move(status).error());
  const std::lock_guard lock(state->mutex);
  --state->num_running;
  state->finished.notify_one();
}

void ReportProgress(const PackOptions& options, const PackingState& state, std::uint64_t total) {
  if (!options.progress) return;
  options.progress(
      Progress{"pack weights", state.packed_bytes.load(std::memory_order_relaxed), total, true});
}

Result<Arena> AllocateOrEmpty(std::int64_t bytes, HugePages mode) {
  if (bytes == 0) return Arena();
  return Arena::Allocate(static_cast<std::size_t>(bytes), mode);
}

}  // namespace

Result<PackedWeights> PackedWeights::Pack(const program::Program& program,
                                          const weights::Checkpoint& checkpoint,
                                          const PackOptions& options) {
  const auto num_workers = static_cast<std::size_t>(program.num_workers);
  if (!options.worker_cpus.empty() && options.worker_cpus.size() != num_workers) {
    return Fail(ErrorCode::kUsage, "{} CPUs given for {} workers", options.worker_cpus.size(),
                num_workers);
  }
  PackedWeights packed;
  MEGALITH_ASSIGN_OR_RETURN(packed.layout_, MakeWeightLayout(program));
  const WeightLayout& layout = packed.layout_;

  MEGALITH_RETURN_IF_ERROR(packed.OpenEmbedding(checkpoint));

  std::int64_t arena_bytes = layout.vector_bytes;
  for (const std::int64_t bytes : layout.worker_bytes) arena_bytes += bytes;
  MEGALITH_RETURN_IF_ERROR(CheckMemory("packed weights", arena_bytes));
  for (const std::int64_t bytes : layout.worker_bytes) {
    MEGALITH_ASSIGN_OR_RETURN(Arena arena, AllocateOrEmpty(bytes, options.huge_pages));
    packed.worker_arenas_.push_back(std::move(arena));
  }
  MEGALITH_ASSIGN_OR_RETURN(packed.vector_arena_,
                            AllocateOrEmpty(layout.vector_bytes, HugePages::kOff));

  PackingState state(checkpoint, options.cancel);
  state.num_running = num_workers;
  std::vector<std::jthread> threads;
  for (std::size_t worker = 0; worker < num_workers; ++worker) {
    const int cpu = options.worker_cpus.empty() ? -1 : options.worker_cpus[worker];
    threads.emplace_back(PackWorker, std::cref(layout), static_cast<std::int32_t>(worker), cpu,
                         packed.worker_arenas_[worker].data(), &state);
  }
  for (const VectorPlacement& vector : layout.vectors) {
    if (!state.Continue()) break;
    const auto bytes = static_cast<std::size_t>(weights::PackedBytes(vector.job));
    Status status = weights::PackVector(checkpoint, vector.job,
                                        {packed.vector_arena_.data() + vector.offset, bytes});
    if (!status) state.SetError(std::move(status).error());
    state.packed_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  const auto total = static_cast<std::uint64_t>(layout.PackedBytes());
  {
    std::unique_lock lock(state.mutex);
    while (!state.finished.wait_for(lock, std::chrono::milliseconds(100),
                                    [&] { return state.num_running == 0; })) {
      lock.unlock();
      ReportProgress(options, state, total);
      lock.lock();
    }
  }
  threads.clear();
  if (state.error) return tl::unexpected<Error>(*std::move(state.error));
  ReportProgress(options, state, total);
  return packed;
}

Status PackedWeights::OpenEmbedding(const weights::Checkpoint& checkpoint) {
  MEGALITH_ASSIGN_OR_RETURN(const weights::TensorView table,
                            checkpoint.Find(layout_.embedding_name));
  if (table.dtype != DType::kBf16 || table.shape.size() != 2 ||
      table.shape[0] != layout_.vocab_size || table.shape[1] != layout_.hidden_size) {
    return Fail(ErrorCode::kBadTensor, "{}: BF16 [{}, {}] expected, {} [{}] found",
                layout_.embedding_name, layout_.vocab_size, layout_.hidden_size,
                DTypeName(table.dtype), fmt::join(table.shape, ", "));
  }
  MEGALITH_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                            checkpoint.shards().Bytes(table, &embedding_copy_));
  embedding_ = reinterpret_cast<const Bf16*>(bytes.data());
  return {};
}

Status PackedWeights::CheckFits(const program::Program& program) const {
  MEGALITH_ASSIGN_OR_RETURN(const WeightLayout layout, MakeWeightLayout(program));
  return CheckSameLayout(layout_, layout);
}

std::int64_t PackedWeights::arena_bytes() const {
  std::size_t bytes = vector_arena_.size_bytes();
  for (const Arena& arena : worker_arenas_) bytes += arena.size_bytes();
  return static_cast<std::int64_t>(bytes);
}

Result<PageReport> PackedWeights::Pages() const {
  PageReport sum{};
  for (const Arena& arena : worker_arenas_) {
    if (arena.size_bytes() == 0) continue;
    MEGALITH_ASSIGN_OR_RETURN(const PageReport report, arena.Report());
    sum.mapped_bytes += report.mapped_bytes;
    sum.resident_bytes += report.resident_bytes;
    sum.huge_bytes += report.huge_bytes;
  }
  return sum;
}

}  // namespace megalith::exec
