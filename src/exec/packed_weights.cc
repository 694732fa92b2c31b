#include "exec/packed_weights.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "exec/memory_check.h"
#include "exec/packed_cache.h"
#include "exec/weight_packer.h"

namespace megalith::exec {
namespace {

Result<Arena> AllocateOrEmpty(std::int64_t bytes, HugePages mode) {
  if (bytes == 0) return Arena();
  return Arena::Allocate(static_cast<std::size_t>(bytes), mode);
}

/// Why a cache file is not used, to the log. False for errors that end the load.
bool IsReason(const Status& status) {
  switch (status.error().code) {
    case ErrorCode::kNotFound:
      return true;  // the first start
    case ErrorCode::kBadFile:
    case ErrorCode::kIo:
      LogFormat(LogLevel::kWarning, "packed cache not used, packing again: {}",
                status.error().message);
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string_view CacheUseName(CacheUse use) { return use == CacheUse::kMap ? "map" : "copy"; }

Result<CacheUse> ParseCacheUse(std::string_view name) {
  for (const CacheUse use : {CacheUse::kMap, CacheUse::kCopy}) {
    if (name == CacheUseName(use)) return use;
  }
  return Fail(ErrorCode::kUsage, "use of the packed cache '{}': map or copy expected", name);
}

std::string_view WeightOriginName(WeightOrigin origin) {
  switch (origin) {
    case WeightOrigin::kPacked:
      return "packed";
    case WeightOrigin::kCacheMapped:
      return "cache mapped";
    case WeightOrigin::kCacheCopied:
      return "cache copied";
  }
  return "unknown";
}

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
  MEGALITH_RETURN_IF_ERROR(packed.OpenTables(checkpoint));

  const std::vector<LoadThread> threads =
      PlanLoadThreads(options.topology, options.worker_cpus, program.num_workers);
  PackedCacheJob cache;
  cache.threads = threads;
  cache.progress = options.progress;
  cache.cancel = options.cancel;
  for (const std::int64_t bytes : layout.worker_bytes) {
    cache.arena_bytes.push_back(static_cast<std::uint64_t>(bytes));
  }
  cache.arena_bytes.push_back(static_cast<std::uint64_t>(layout.vector_bytes));
  const bool has_cache = !options.cache_directory.empty();
  std::int64_t start = NowNs();
  if (has_cache) {
    MEGALITH_ASSIGN_OR_RETURN(cache.key, MakePackedCacheKey(checkpoint, layout));
    cache.path = PackedCachePath(options.cache_directory, cache.key);
    const Status status = options.cache_use == CacheUse::kMap
                              ? packed.MapCache(cache)
                              : packed.CopyCache(cache, options.huge_pages);
    packed.fill_seconds_ = SecondsSince(start);
    if (status) return packed;
    if (!IsReason(status)) return tl::unexpected<Error>(status.error());
  }

  if (packed.owned_.empty()) MEGALITH_RETURN_IF_ERROR(packed.Allocate(options.huge_pages));
  start = NowNs();
  PackJob job;
  job.layout = &layout;
  job.checkpoint = &checkpoint;
  for (std::size_t i = 0; i < num_workers; ++i) {
    job.worker_arenas.push_back(packed.owned_[i].data());
  }
  job.vector_arena = packed.owned_.back().data();
  MEGALITH_RETURN_IF_ERROR(PackArenas(job, threads, options.progress, options.cancel));
  packed.fill_seconds_ = SecondsSince(start);

  if (has_cache) {
    start = NowNs();
    const Status status = WritePackedCache(cache, packed.arenas_);
    packed.cache_write_seconds_ = SecondsSince(start);
    if (!status && status.error().code == ErrorCode::kCancelled) {
      return tl::unexpected<Error>(status.error());
    }
    if (!status) {
      LogFormat(LogLevel::kWarning, "packed cache not written: {}", status.error().message);
    }
  }
  return packed;
}

/// Memory for all arenas, zeroed, not touched.
Status PackedWeights::Allocate(HugePages huge_pages) {
  MEGALITH_RETURN_IF_ERROR(CheckMemory("packed weights", arena_bytes()));
  for (const std::int64_t bytes : layout_.worker_bytes) {
    MEGALITH_ASSIGN_OR_RETURN(Arena arena, AllocateOrEmpty(bytes, huge_pages));
    owned_.push_back(std::move(arena));
  }
  MEGALITH_ASSIGN_OR_RETURN(Arena vectors, AllocateOrEmpty(layout_.vector_bytes, HugePages::kOff));
  owned_.push_back(std::move(vectors));
  for (const Arena& arena : owned_) arenas_.push_back(arena.data());
  return {};
}

Status PackedWeights::MapCache(const PackedCacheJob& job) {
  MEGALITH_ASSIGN_OR_RETURN(MappedPackedCache cache, MapPackedCache(job));
  mapped_ = std::move(cache.map);
  arenas_ = std::move(cache.arenas);
  origin_ = WeightOrigin::kCacheMapped;
  return {};
}

Status PackedWeights::CopyCache(const PackedCacheJob& job, HugePages huge_pages) {
  // Looked at first: without a file the memory is packing's to allocate.
  if (IsAbsent(job.path)) return Fail(ErrorCode::kNotFound, "{}: no such file", job.path);
  MEGALITH_RETURN_IF_ERROR(Allocate(huge_pages));
  std::vector<std::byte*> arenas;
  for (const Arena& arena : owned_) arenas.push_back(arena.data());
  const Status status = ReadPackedCache(job, arenas);
  if (status) {
    origin_ = WeightOrigin::kCacheCopied;
    return {};
  }
  // Packing writes every byte of every tile, but counts on zeros in between.
  arenas_.clear();
  owned_.clear();
  return status;
}

Status PackedWeights::OpenTables(const weights::Checkpoint& checkpoint) {
  tables_.resize(layout_.tables.size());
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const program::Table& table = layout_.tables[i];
    MEGALITH_ASSIGN_OR_RETURN(const weights::TensorView view, checkpoint.Find(table.name));
    if (view.dtype != DType::kBf16 || view.shape.size() != 2 || view.shape[0] != table.rows ||
        view.shape[1] != table.columns) {
      return Fail(ErrorCode::kBadTensor, "{}: BF16 [{}, {}] expected, {} [{}] found", table.name,
                  table.rows, table.columns, DTypeName(view.dtype), fmt::join(view.shape, ", "));
    }
    MEGALITH_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                              checkpoint.shards().Bytes(view, &tables_[i].copy));
    tables_[i].rows = reinterpret_cast<const Bf16*>(bytes.data());
  }
  return {};
}

Status PackedWeights::CheckFits(const program::Program& program) const {
  MEGALITH_ASSIGN_OR_RETURN(const WeightLayout layout, MakeWeightLayout(program));
  return CheckLayoutFits(layout_, layout);
}

std::int64_t PackedWeights::arena_bytes() const {
  std::int64_t bytes = layout_.vector_bytes;
  for (const std::int64_t worker_bytes : layout_.worker_bytes) bytes += worker_bytes;
  return bytes;
}

Result<PageReport> PackedWeights::Pages() const {
  PageReport sum{};
  if (mapped_) {
    for (const std::int64_t bytes : layout_.worker_bytes) {
      sum.mapped_bytes += static_cast<std::uint64_t>(bytes);
    }
    sum.resident_bytes = sum.mapped_bytes;
    return sum;
  }
  for (std::size_t i = 0; i < layout_.worker_bytes.size(); ++i) {
    if (owned_[i].size_bytes() == 0) continue;
    MEGALITH_ASSIGN_OR_RETURN(const PageReport report, owned_[i].Report());
    sum.mapped_bytes += report.mapped_bytes;
    sum.resident_bytes += report.resident_bytes;
    sum.huge_bytes += report.huge_bytes;
  }
  return sum;
}

}  // namespace megalith::exec
