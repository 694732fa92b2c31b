#pragma once

// The weights of a model as the workers of one Program stream them: one arena per worker, packed
// and so first touched by a thread on that worker's NUMA node, and one small shared arena of
// vectors. They can be kept in a file for the next start (packed_cache.h).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "base/bf16.h"
#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/result.h"
#include "base/topology.h"
#include "exec/weight_layout.h"
#include "program/program.h"
#include "weights/checkpoint.h"

namespace megalith::exec {

struct PackedCacheJob;

/// What to do with a cache file that fits.
enum class CacheUse : std::uint8_t {
  kMap,   ///< use it where it lies: ordinary pages of the page cache, on whatever node has them
  kCopy,  ///< read it into arenas as packing fills them: on each worker's node, huge pages if asked
};
/// "map", "copy".
std::string_view CacheUseName(CacheUse use);
/// kUsage with the list of names otherwise.
Result<CacheUse> ParseCacheUse(std::string_view name);

struct PackOptions {
  HugePages huge_pages = HugePages::kOff;
  /// Logical CPU of each worker; empty: not pinned.
  std::vector<int> worker_cpus;
  /// To find idle cores that help (see PlanLoadThreads); null: only the workers' CPUs.
  const Topology* topology = nullptr;
  /// Folder of packed-cache files; empty: none are read or written.
  std::string cache_directory;
  CacheUse cache_use = CacheUse::kMap;
  /// Bytes packed so far and in all; called from the calling thread only.
  ProgressCallback progress;
  const CancelFlag* cancel = nullptr;
};

enum class WeightOrigin : std::uint8_t {
  kPacked,       ///< from the checkpoint
  kCacheMapped,  ///< from a cache file, in place
  kCacheCopied,
};
/// "packed", "cache mapped", "cache copied".
std::string_view WeightOriginName(WeightOrigin origin);

/// Const after Pack: every member may be called from any number of threads at once.
class PackedWeights {
 public:
  /// Packs everything `program` reads, or takes it from the cache. `checkpoint` must outlive the
  /// result: rows of tables are read in place. A cache file that is damaged or does not fit is
  /// reported to the log and written anew; one that cannot be written is reported, no more. Errors:
  /// those of MakeWeightLayout and PackArenas; kOutOfMemory before anything is read; kCancelled.
  static Result<PackedWeights> Pack(const program::Program& program,
                                    const weights::Checkpoint& checkpoint,
                                    const PackOptions& options);

  /// kUsage naming the first difference if `program` expects other bytes at other places.
  Status CheckFits(const program::Program& program) const;

  std::int32_t num_workers() const {
    return static_cast<std::int32_t>(layout_.worker_bytes.size());
  }
  const std::byte* WorkerArena(std::int32_t worker) const {
    return arenas_[static_cast<std::size_t>(worker)];
  }
  const std::byte* VectorArena() const { return arenas_.back(); }
  /// Row `token` of a table of the Program: [columns] bf16.
  const Bf16* TableRow(std::int64_t table, std::int64_t token) const {
    const auto index = static_cast<std::size_t>(table);
    return tables_[index].rows + token * layout_.tables[index].columns;
  }

  const WeightLayout& layout() const { return layout_; }
  /// All arenas, gaps included.
  std::int64_t arena_bytes() const;
  WeightOrigin origin() const { return origin_; }
  /// Taken by Pack: packing, or checking the cache.
  double fill_seconds() const { return fill_seconds_; }
  /// Taken by Pack: writing the cache; 0 if it was not.
  double cache_write_seconds() const { return cache_write_seconds_; }
  /// What the kernel gave, summed over the worker arenas; a mapped cache has ordinary pages, all
  /// resident once checked. kIo if it cannot be asked.
  Result<PageReport> Pages() const;

 private:
  PackedWeights() = default;
  Status OpenTables(const weights::Checkpoint& checkpoint);
  Status Allocate(HugePages huge_pages);
  Status MapCache(const PackedCacheJob& job);
  Status CopyCache(const PackedCacheJob& job, HugePages huge_pages);

  WeightLayout layout_;
  WeightOrigin origin_ = WeightOrigin::kPacked;
  double fill_seconds_ = 0.0;
  double cache_write_seconds_ = 0.0;
  std::vector<const std::byte*> arenas_;  // [workers] and the vectors'; in one of these two:
  std::vector<Arena> owned_;
  std::optional<MappedFile> mapped_;
  struct OpenTable {
    const Bf16* rows = nullptr;
    std::vector<std::byte> copy;  // only when the file does not align its elements
  };
  std::vector<OpenTable> tables_;
};

}  // namespace megalith::exec
