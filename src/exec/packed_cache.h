#pragma once

// Packed weights in a file, so that the next start maps them instead of packing again. A file that
// is not exactly what this program would write for this checkpoint and layout is not used.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/result.h"
#include "exec/packed_cache_header.h"
#include "exec/thread_crew.h"
#include "exec/weight_layout.h"
#include "weights/checkpoint.h"

namespace megalith::exec {

/// What tells a checkpoint's files from others: every shard's name, size, time of change and
/// header. kIo, kNotFound: a shard cannot be looked at.
Result<PackedCacheKey> MakeCheckpointKey(const weights::Checkpoint& checkpoint);

/// What packed weights follow from: every shard's name, size, time of change and header; every
/// place of the layout; and how this program packs each format (found by packing a sample). kIo,
/// kNotFound: a shard cannot be looked at.
Result<PackedCacheKey> MakePackedCacheKey(const weights::Checkpoint& checkpoint,
                                          const WeightLayout& layout);

/// `directory`/KEY.packed
std::string PackedCachePath(const std::string& directory, const PackedCacheKey& key);

/// What reading and writing a cache file have in common.
struct PackedCacheJob {
  std::string path;
  PackedCacheKey key = {};
  std::vector<std::uint64_t> arena_bytes;  ///< workers' arenas, then the vectors'
  std::span<const LoadThread> threads;
  ProgressCallback progress;
  const CancelFlag* cancel = nullptr;
};

/// Maps the file read-only and compares every checksum. Returns the map and where its arenas
/// begin. kNotFound: there is no file; kBadFile: it is damaged, cut short, or of other weights;
/// kIo; kCancelled. The file must not be changed while it is mapped: writers replace it by name.
struct MappedPackedCache {
  MappedFile map;
  std::vector<const std::byte*> arenas;
};
Result<MappedPackedCache> MapPackedCache(const PackedCacheJob& job);

/// Reads the file into `arenas` of the job's sizes, each filled by a thread of its worker's node,
/// and compares every checksum on the way. Errors as MapPackedCache; the arenas then hold anything.
Status ReadPackedCache(const PackedCacheJob& job, std::span<std::byte* const> arenas);

/// Writes the file: aside, onto the medium, then under its name. The folder is created if its
/// parent exists. kIo: no space, or the system's reason, with the path; kUsage: another process is
/// writing it; kCancelled. After a failure nothing new is there.
Status WritePackedCache(const PackedCacheJob& job, std::span<const std::byte* const> arenas);

}  // namespace megalith::exec
