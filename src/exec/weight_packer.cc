#include "exec/weight_packer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <set>

#include "base/align.h"
#include "base/bf16.h"
#include "exec/thread_crew.h"
#include "weights/finite.h"

namespace megalith::exec {
namespace {

// Work items of one worker that the system is told about before they are packed.
constexpr std::uint64_t kItemsAhead = 2;
constexpr std::uint64_t kScanBytes = std::uint64_t{4} << 20;
/// Source pages are let go each time this part of the model has been read: at most about twice that
/// (maps reach around what is read) is in memory beside the arenas.
constexpr std::uint64_t kReleases = 128;
constexpr std::uint64_t kMinReleaseBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxReleaseBytes = std::uint64_t{1} << 30;

/// Packed at a time, so that large tiles are shared out and source pages let go within them.
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;

/// Outputs of a tile that are packed at a time: whole panels.
std::int64_t PieceOutputs(const TilePlacement& tile) {
  const weights::PanelJob& job = tile.job;
  // Columns of the stored matrix: every piece would read all its rows.
  if (job.transposed) return job.num_outputs;
  const std::int64_t panels = CeilDiv<std::int64_t>(job.num_outputs, kernels::kPanelOutputs);
  const std::int64_t bytes_of_16 = tile.bytes / panels;  // of a pair both
  return std::max<std::int64_t>(kPieceBytes / bytes_of_16, 1) * kernels::kPanelOutputs;
}

std::int64_t NumPieces(const TilePlacement& tile) {
  return CeilDiv(tile.job.num_outputs, PieceOutputs(tile));
}

/// The tiles of one worker, expert by expert and piece by piece, taken in order by any thread.
struct TileQueue {
  std::vector<std::uint32_t> tiles;       ///< index into the layout's
  std::vector<std::uint64_t> first_item;  ///< [tiles], ascending
  std::uint64_t num_items = 0;
  std::atomic<std::uint64_t> next{0};
};

class Packer {
 public:
  Packer(const PackJob& job, std::vector<weights::TensorView> tables, CrewState* state)
      : job_(job), layout_(*job.layout), tables_(std::move(tables)), state_(state) {
    std::int64_t piece = 0;
    for (std::size_t table = 0; table < tables_.size(); ++table) {
      for (std::uint64_t at = 0; at < tables_[table].num_bytes; at += kScanBytes) {
        if (piece++ % layout_.num_ranks == layout_.rank) scans_.push_back({table, at});
      }
    }
    release_bytes_ = std::clamp(static_cast<std::uint64_t>(layout_.PackedBytes()) / kReleases,
                                kMinReleaseBytes, kMaxReleaseBytes);
    for (std::size_t i = 0; i < layout_.worker_bytes.size(); ++i) queues_.emplace_back();
    for (std::size_t i = 0; i < layout_.tiles.size(); ++i) {
      const TilePlacement& tile = layout_.tiles[i];
      TileQueue& queue = queues_[static_cast<std::size_t>(tile.worker)];
      queue.tiles.push_back(static_cast<std::uint32_t>(i));
      queue.first_item.push_back(queue.num_items);
      queue.num_items +=
          static_cast<std::uint64_t>(std::max<std::int64_t>(tile.num_experts, 1) * NumPieces(tile));
    }
  }

  Status Work(const LoadThread& thread) {
    for (const std::int32_t worker : thread.workers) {
      TileQueue& queue = queues_[static_cast<std::size_t>(worker)];
      // Relaxed: an item is one thread's alone, and joining publishes what it wrote.
      for (std::uint64_t item = queue.next.fetch_add(1, std::memory_order_relaxed);
           item < queue.num_items; item = queue.next.fetch_add(1, std::memory_order_relaxed)) {
        if (!state_->Continue()) return {};
        MEGALITH_RETURN_IF_ERROR(PackItem(queue, item));
      }
    }
    for (std::size_t i = next_vector_.fetch_add(1, std::memory_order_relaxed);
         i < layout_.vectors.size(); i = next_vector_.fetch_add(1, std::memory_order_relaxed)) {
      if (!state_->Continue()) return {};
      MEGALITH_RETURN_IF_ERROR(PackOneVector(layout_.vectors[i]));
    }
    for (std::size_t i = next_scan_.fetch_add(1, std::memory_order_relaxed); i < scans_.size();
         i = next_scan_.fetch_add(1, std::memory_order_relaxed)) {
      if (!state_->Continue()) return {};
      MEGALITH_RETURN_IF_ERROR(ScanTable(scans_[i]));
    }
    return {};
  }

 private:
  struct Place {
    const TilePlacement* tile;
    std::int64_t expert;
    std::int64_t first_output;  ///< of the piece, within the tile
  };
  Place Find(const TileQueue& queue, std::uint64_t item) const {
    const auto after = std::upper_bound(queue.first_item.begin(), queue.first_item.end(), item);
    const auto index = static_cast<std::size_t>(after - queue.first_item.begin()) - 1;
    const TilePlacement& tile = layout_.tiles[queue.tiles[index]];
    const auto within = static_cast<std::int64_t>(item - queue.first_item[index]);
    const std::int64_t pieces = NumPieces(tile);
    return {&tile, within / pieces, within % pieces * PieceOutputs(tile)};
  }

  static weights::PanelJob JobOf(const Place& place) {
    weights::PanelJob job = place.tile->job;
    if (place.tile->num_experts > 0) {
      const std::int64_t expert = place.tile->first_expert + place.expert;
      job.tensor = FillName(job.tensor, "{expert}", expert);
      job.pair_tensor = FillName(job.pair_tensor, "{expert}", expert);
    }
    job.first_output += place.first_output;
    job.num_outputs = std::min(PieceOutputs(*place.tile), job.num_outputs - place.first_output);
    return job;
  }

  Status PackItem(const TileQueue& queue, std::uint64_t item) {
    if (item + kItemsAhead < queue.num_items) {
      Expect(JobOf(Find(queue, item + kItemsAhead)));
    }
    const Place place = Find(queue, item);
    const TilePlacement& tile = *place.tile;
    const weights::PanelJob job = JobOf(place);
    std::byte* arena = job_.worker_arenas[static_cast<std::size_t>(tile.worker)];
    // Pieces are whole panels, so the bytes before this one are those of its outputs.
    const std::int64_t panels = CeilDiv<std::int64_t>(tile.job.num_outputs, kernels::kPanelOutputs);
    const std::int64_t before = tile.bytes / panels * (place.first_output / kernels::kPanelOutputs);
    std::byte* destination = arena + tile.offset + place.expert * tile.expert_stride_bytes + before;
    const auto bytes = static_cast<std::size_t>(weights::PackedBytes(job));
    MEGALITH_RETURN_IF_ERROR(weights::PackPanels(*job_.checkpoint, job, {destination, bytes}));
    AddRead(bytes);
    state_->AddDone(bytes);
    return {};
  }

  /// Lets the system fetch the stored rows of a job while others are packed.
  void Expect(const weights::PanelJob& job) const {
    const std::int64_t first = job.transposed ? job.first_input : job.first_output;
    const std::int64_t count = job.transposed ? job.num_inputs : job.num_outputs;
    for (const std::string* name : {&job.tensor, &job.pair_tensor}) {
      if (name->empty()) continue;
      const auto matrix = job_.checkpoint->FindMatrix(*name);
      if (!matrix) return;  // packing says why
      for (const weights::TensorView* view : {&matrix->weight, &matrix->scale}) {
        if (view->num_bytes == 0 || matrix->rows < first + count) continue;
        const std::uint64_t row_bytes = view->num_bytes / static_cast<std::uint64_t>(matrix->rows);
        job_.checkpoint->shards().ExpectReads(*view, static_cast<std::uint64_t>(first) * row_bytes,
                                              static_cast<std::uint64_t>(count) * row_bytes);
      }
    }
  }

  /// Counts what was read and lets source pages go now and then. All of them at once: the system
  /// maps pages around a touched one too, so that a reader does not know which ones are its own;
  /// those that others still need come back at little cost.
  void AddRead(std::uint64_t bytes) {
    const std::uint64_t before = read_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    if (before / release_bytes_ != (before + bytes) / release_bytes_) {
      job_.checkpoint->shards().ReleasePages();
    }
  }

  Status PackOneVector(const VectorPlacement& vector) {
    const auto bytes = static_cast<std::size_t>(weights::PackedBytes(vector.job));
    MEGALITH_RETURN_IF_ERROR(weights::PackVector(*job_.checkpoint, vector.job,
                                                 {job_.vector_arena + vector.offset, bytes}));
    state_->AddDone(bytes);
    return {};
  }

  /// Part of a table.
  struct Scan {
    std::size_t table;
    std::uint64_t begin;  ///< bytes
  };

  Status ScanTable(const Scan& scan) {
    const weights::TensorView& view = tables_[scan.table];
    const program::Table& table = layout_.tables[scan.table];
    const std::uint64_t count = std::min(kScanBytes, view.num_bytes - scan.begin);
    const weights::ShardSet& shards = job_.checkpoint->shards();
    MEGALITH_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, shards.Map(view));
    const auto part =
        bytes.subspan(static_cast<std::size_t>(scan.begin), static_cast<std::size_t>(count));
    if (const auto bad = weights::FindNonFinite(part, DType::kBf16)) {
      Bf16 value{};
      std::memcpy(&value, part.data() + *bad * sizeof(value), sizeof(value));
      const auto element = static_cast<std::int64_t>(scan.begin / sizeof(value) + *bad);
      return Fail(ErrorCode::kBadTensor,
                  "{} in {}: row {}, column {}: a finite number expected, {} (bits 0x{:x}) found",
                  table.name, shards.ShardPath(view.shard), element / table.columns,
                  element % table.columns, ToFloat(value), value.bits);
    }
    AddRead(count);
    return {};
  }

  const PackJob& job_;
  const WeightLayout& layout_;
  std::vector<weights::TensorView> tables_;
  std::vector<Scan> scans_;
  CrewState* state_;
  std::deque<TileQueue> queues_;  ///< [workers]
  std::atomic<std::size_t> next_vector_{0};
  std::atomic<std::size_t> next_scan_{0};
  std::uint64_t release_bytes_ = 0;
  std::atomic<std::uint64_t> read_bytes_{0};
};

}  // namespace

std::vector<LoadThread> PlanLoadThreads(const Topology* topology, std::span<const int> worker_cpus,
                                        std::int32_t num_workers) {
  std::vector<LoadThread> threads;
  if (worker_cpus.empty()) {
    const auto cpus = topology == nullptr
                          ? num_workers
                          : static_cast<std::int32_t>(topology->allowed_cpus.size());
    for (std::int32_t i = 0; i < std::clamp(cpus, 1, num_workers); ++i) {
      LoadThread thread;
      for (std::int32_t w = 0; w < num_workers; ++w) {
        thread.workers.push_back((i + w) % num_workers);
      }
      threads.push_back(std::move(thread));
    }
    return threads;
  }
  if (topology == nullptr) {
    for (std::size_t w = 0; w < worker_cpus.size(); ++w) {
      threads.push_back({worker_cpus[w], {static_cast<std::int32_t>(w)}});
    }
    return threads;
  }
  std::map<int, int> node_of_cpu;
  for (const Core& core : topology->cores) {
    for (const int cpu : core.cpus) node_of_cpu[cpu] = core.numa_node;
  }
  const auto node_of = [&](int cpu) {
    const auto found = node_of_cpu.find(cpu);
    return found == node_of_cpu.end() ? -1 : found->second;
  };
  std::map<int, std::vector<std::int32_t>> workers_of_node;
  for (std::size_t w = 0; w < worker_cpus.size(); ++w) {
    workers_of_node[node_of(worker_cpus[w])].push_back(static_cast<std::int32_t>(w));
  }
  for (std::size_t w = 0; w < worker_cpus.size(); ++w) {
    LoadThread thread;
    thread.cpu = worker_cpus[w];
    thread.workers = workers_of_node[node_of(thread.cpu)];
    // Its own arena first, then the neighbours in turn.
    std::rotate(
        thread.workers.begin(),
        std::find(thread.workers.begin(), thread.workers.end(), static_cast<std::int32_t>(w)),
        thread.workers.end());
    threads.push_back(std::move(thread));
  }
  const std::set<int> used(worker_cpus.begin(), worker_cpus.end());
  for (const Core& core : topology->cores) {
    const bool idle = std::none_of(core.cpus.begin(), core.cpus.end(),
                                   [&](int cpu) { return used.contains(cpu); });
    const auto workers = workers_of_node.find(core.numa_node);
    if (!idle || workers == workers_of_node.end()) continue;
    LoadThread thread;
    thread.cpu = core.cpus.front();
    thread.workers = workers->second;
    std::rotate(thread.workers.begin(),
                thread.workers.begin() +
                    static_cast<std::ptrdiff_t>(threads.size() % thread.workers.size()),
                thread.workers.end());
    threads.push_back(std::move(thread));
  }
  return threads;
}

Status PackArenas(const PackJob& job, std::span<const LoadThread> threads,
                  const ProgressCallback& progress, const CancelFlag* cancel) {
  std::vector<weights::TensorView> tables;
  for (const program::Table& table : job.layout->tables) {
    MEGALITH_ASSIGN_OR_RETURN(tables.emplace_back(), job.checkpoint->Find(table.name));
  }
  CrewState state("pack weights", cancel);
  Packer packer(job, std::move(tables), &state);
  MEGALITH_RETURN_IF_ERROR(
      RunCrew(threads, &state, static_cast<std::uint64_t>(job.layout->PackedBytes()), progress,
              [&packer](const LoadThread& thread) { return packer.Work(thread); }));
  job.checkpoint->shards().ReleasePages();
  return {};
}

}  // namespace megalith::exec
