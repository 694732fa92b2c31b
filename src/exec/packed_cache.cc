#include "exec/packed_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <utility>

#include "base/atomic_file.h"
#include "base/bf16.h"
#include "base/units.h"
#include "kernels/layout.h"

namespace megalith::exec {
namespace {

/// Of one checksum, and what a thread takes at a time.
constexpr std::uint64_t kChunkBytes = std::uint64_t{8} << 20;
/// Read and compared at a time: stays in the core's cache in between.
constexpr std::uint64_t kReadBytes = std::uint64_t{256} << 10;

class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) { XXH3_128bits_reset(state_); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  ~Hasher() { XXH3_freeState(state_); }

  void Add(const void* bytes, std::size_t size) { XXH3_128bits_update(state_, bytes, size); }
  template <typename T>
  void Add(T value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    const auto wide = static_cast<std::int64_t>(value);
    Add(&wide, sizeof(wide));
  }
  /// With its length: otherwise "ab", "c" would be "a", "bc".
  void Add(std::string_view text) {
    Add(text.size());
    Add(text.data(), text.size());
  }
  PackedCacheKey Take() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_);
    return {hash.low64, hash.high64};
  }

 private:
  XXH3_state_t* state_;
};

/// Name, size, time of change and header of each shard. Equal ones mean equal weights unless
/// somebody changes data and then sets the time back.
Status AddCheckpoint(const weights::Checkpoint& checkpoint, Hasher* hasher) {
  const weights::ShardSet& shards = checkpoint.shards();
  hasher->Add(shards.num_shards());
  std::vector<std::byte> header;
  for (std::size_t i = 0; i < shards.num_shards(); ++i) {
    const std::string& path = shards.ShardPath(i);
    MEGALITH_ASSIGN_OR_RETURN(const RandomAccessFile file, RandomAccessFile::Open(path));
    struct stat status {};
    if (::fstat(file.descriptor(), &status) != 0) return SystemError(path, "cannot be looked at");
    hasher->Add(shards.ShardName(i));
    hasher->Add(file.size_bytes());
    hasher->Add(status.st_mtim.tv_sec);
    hasher->Add(status.st_mtim.tv_nsec);
    // The shard set has checked that the header lies inside the file.
    std::uint64_t length = 0;
    MEGALITH_RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(&length, 1))));
    if (length > file.size_bytes()) {
      return Fail(ErrorCode::kBadFile, "{}: changed while it was read", path);
    }
    header.resize(static_cast<std::size_t>(length));
    MEGALITH_RETURN_IF_ERROR(file.ReadAt(sizeof(length), header));
    hasher->Add(header.data(), header.size());
  }
  return {};
}

void AddLayout(const WeightLayout& layout, Hasher* hasher) {
  hasher->Add(layout.worker_bytes.size());
  for (const std::int64_t bytes : layout.worker_bytes) hasher->Add(bytes);
  hasher->Add(layout.vector_bytes);
  hasher->Add(layout.tiles.size());
  for (const TilePlacement& tile : layout.tiles) {
    const weights::PanelJob& job = tile.job;
    hasher->Add(std::string_view(job.tensor));
    hasher->Add(std::string_view(job.pair_tensor));
    for (const std::int64_t value :
         {static_cast<std::int64_t>(job.format), job.stored_rows, job.stored_columns,
          std::int64_t{job.transposed}, job.first_output, job.num_outputs, job.first_input,
          job.num_inputs, std::int64_t{tile.worker}, tile.first_expert, tile.num_experts,
          tile.offset, tile.expert_stride_bytes, tile.bytes}) {
      hasher->Add(value);
    }
  }
  hasher->Add(layout.vectors.size());
  for (const VectorPlacement& vector : layout.vectors) {
    const weights::VectorJob& job = vector.job;
    hasher->Add(std::string_view(job.name));
    hasher->Add(std::string_view(job.second_name));
    for (const std::int64_t value :
         {static_cast<std::int64_t>(job.form), static_cast<std::int64_t>(job.dtype), job.count,
          job.stored_count, job.taps, vector.offset}) {
      hasher->Add(value);
    }
  }
}

/// Panels of a sample in every format: a change of the packing changes them, so that nobody has to
/// remember a version number.
void AddPackingSample(Hasher* hasher) {
  constexpr std::int64_t kOutputs = kernels::kPanelOutputs;
  constexpr std::int64_t kInputs = 8 * kernels::kBlockInputs;
  std::vector<Bf16> dense(static_cast<std::size_t>(kOutputs * kInputs));
  std::vector<std::uint8_t> codes(dense.size() / 2);
  std::vector<std::uint8_t> scales(dense.size() / kernels::kBlockInputs);
  std::uint32_t state = 1;
  const auto next = [&state] { return (state = state * 1664525u + 1013904223u) >> 16; };
  for (Bf16& value : dense) {
    value = ToBf16(static_cast<float>(next() & 0xffu) / 64.0f - 2.0f);
  }
  for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(next());
  for (std::uint8_t& scale : scales) scale = static_cast<std::uint8_t>(120 + (next() & 7u));
  // Whole panels, and one with missing outputs.
  for (const std::int64_t outputs : {kOutputs, kOutputs - 3}) {
    for (const auto format :
         {kernels::PanelFormat::kBf16, kernels::PanelFormat::kMxfp4, kernels::PanelFormat::kInt8}) {
      std::vector<std::byte> panel(static_cast<std::size_t>(kernels::PanelBytes(format, kInputs)));
      if (format == kernels::PanelFormat::kBf16) {
        kernels::PackPanelBf16(dense.data(), kInputs, 1, outputs, kInputs, panel.data());
      } else if (format == kernels::PanelFormat::kMxfp4) {
        kernels::PackPanelMxfp4(codes.data(), kInputs / 2, scales.data(),
                                kInputs / kernels::kBlockInputs, outputs, kInputs, panel.data());
      } else {
        hasher->Add(kernels::PackPanelInt8(dense.data(), kInputs, outputs, kInputs, panel.data()));
      }
      hasher->Add(panel.size());
      hasher->Add(panel.data(), panel.size());
    }
  }
}

/// A cache file whose header is what the job expects.
struct OpenCache {
  RandomAccessFile file;
  PackedCacheHeader header;
};

Result<OpenCache> OpenPackedCache(const PackedCacheJob& job) {
  MEGALITH_ASSIGN_OR_RETURN(RandomAccessFile file, RandomAccessFile::Open(job.path));
  const auto named = [&job](Error error) {
    error.message = fmt::format("{}: {}", job.path, error.message);
    return tl::unexpected<Error>(std::move(error));
  };
  std::vector<std::byte> bytes(kPackedCachePrefixBytes);
  if (file.size_bytes() < bytes.size()) {
    return Fail(ErrorCode::kBadFile, "{}: not a packed-cache file", job.path);
  }
  MEGALITH_RETURN_IF_ERROR(file.ReadAt(0, bytes));
  const auto length = PackedCacheHeaderBytes(bytes, file.size_bytes());
  if (!length) return named(length.error());
  bytes.resize(static_cast<std::size_t>(*length));
  MEGALITH_RETURN_IF_ERROR(file.ReadAt(0, bytes));
  auto header = ParsePackedCacheHeader(bytes, file.size_bytes());
  if (!header) return named(header.error());
  // The name holds the key, but names can be changed.
  if (header->key != job.key) {
    return Fail(ErrorCode::kBadFile, "{}: made of another checkpoint or layout", job.path);
  }
  const PackedCacheHeader want = PlanPackedCache(job.key, job.arena_bytes, header->chunk_bytes);
  if (header->arenas != want.arenas) {
    return Fail(ErrorCode::kBadFile, "{}: arenas of other sizes than the layout's", job.path);
  }
  return OpenCache{std::move(file), *std::move(header)};
}

/// Gives every thread chunks of the arenas of its workers until all are done. `work(chunk, index)`.
class ChunkQueues {
 public:
  explicit ChunkQueues(const PackedCacheHeader& header)
      : chunks_(ListChunks(header)), next_(header.arenas.size()), first_(header.arenas.size() + 1) {
    for (const PackedCacheChunk& chunk : chunks_) ++first_[chunk.arena + 1];
    for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
  }

  template <typename Body>
  Status Work(const LoadThread& thread, CrewState* state, const Body& work) {
    for (const std::int32_t worker : thread.workers) {
      MEGALITH_RETURN_IF_ERROR(WorkArena(static_cast<std::size_t>(worker), state, work));
    }
    // The vectors are read by all workers; whoever comes first fills them.
    return WorkArena(next_.size() - 1, state, work);
  }

 private:
  template <typename Body>
  Status WorkArena(std::size_t arena, CrewState* state, const Body& work) {
    const std::size_t count = first_[arena + 1] - first_[arena];
    // Relaxed: chunks are independent, and joining publishes what was written.
    for (std::size_t i = next_[arena].fetch_add(1, std::memory_order_relaxed); i < count;
         i = next_[arena].fetch_add(1, std::memory_order_relaxed)) {
      if (!state->Continue()) return {};
      const std::size_t index = first_[arena] + i;
      MEGALITH_RETURN_IF_ERROR(work(chunks_[index], index));
      state->AddDone(chunks_[index].bytes);
    }
    return {};
  }

  std::vector<PackedCacheChunk> chunks_;
  std::vector<std::atomic<std::size_t>> next_;  ///< [arenas]
  std::vector<std::size_t> first_;              ///< [arenas + 1]
};

std::uint64_t TotalBytes(const PackedCacheHeader& header) {
  std::uint64_t total = 0;
  for (const PackedCacheArena& arena : header.arenas) total += arena.bytes;
  return total;
}

Status CompareChecksum(const PackedCacheJob& job, const PackedCacheHeader& header,
                       const PackedCacheChunk& chunk, std::size_t index, std::uint64_t have) {
  if (have == header.checksums[index]) return {};
  return Fail(ErrorCode::kBadFile, "{}: bytes {}..{} are damaged (checksum {:016x}, {:016x} found)",
              job.path, header.arenas[chunk.arena].offset + chunk.begin,
              header.arenas[chunk.arena].offset + chunk.begin + chunk.bytes,
              header.checksums[index], have);
}

}  // namespace

Result<PackedCacheKey> MakeCheckpointKey(const weights::Checkpoint& checkpoint) {
  Hasher hasher;
  MEGALITH_RETURN_IF_ERROR(AddCheckpoint(checkpoint, &hasher));
  return hasher.Take();
}

Result<PackedCacheKey> MakePackedCacheKey(const weights::Checkpoint& checkpoint,
                                          const WeightLayout& layout) {
  Hasher hasher;
  hasher.Add(kPackedCacheVersion);
  MEGALITH_RETURN_IF_ERROR(AddCheckpoint(checkpoint, &hasher));
  AddLayout(layout, &hasher);
  AddPackingSample(&hasher);
  return hasher.Take();
}

std::string PackedCachePath(const std::string& directory, const PackedCacheKey& key) {
  return (std::filesystem::path(directory) / fmt::format("{:016x}{:016x}.packed", key[1], key[0]))
      .string();
}

Result<MappedPackedCache> MapPackedCache(const PackedCacheJob& job) {
  MEGALITH_ASSIGN_OR_RETURN(const OpenCache cache, OpenPackedCache(job));
  const PackedCacheHeader& header = cache.header;
  MEGALITH_ASSIGN_OR_RETURN(MappedFile map, MappedFile::Map(cache.file));
  const std::span<const std::byte> bytes = map.bytes();
  CrewState state("check packed cache", job.cancel);
  ChunkQueues queues(header);
  MEGALITH_RETURN_IF_ERROR(
      RunCrew(job.threads, &state, TotalBytes(header), job.progress, [&](const LoadThread& thread) {
        return queues.Work(thread, &state, [&](const PackedCacheChunk& chunk, std::size_t index) {
          const auto part =
              bytes.subspan(static_cast<std::size_t>(header.arenas[chunk.arena].offset) +
                                static_cast<std::size_t>(chunk.begin),
                            static_cast<std::size_t>(chunk.bytes));
#ifdef MADV_POPULATE_READ
          // One call instead of thousands of faults; chunks begin on pages. Without it, they fault.
          static_cast<void>(
              ::madvise(const_cast<std::byte*>(part.data()), part.size(), MADV_POPULATE_READ));
#endif
          return CompareChecksum(job, header, chunk, index, ChunkChecksum(part, index));
        });
      }));
  MappedPackedCache mapped{std::move(map), {}};
  for (const PackedCacheArena& arena : header.arenas) {
    mapped.arenas.push_back(mapped.map.bytes().data() + arena.offset);
  }
  return mapped;
}

Status ReadPackedCache(const PackedCacheJob& job, std::span<std::byte* const> arenas) {
  MEGALITH_ASSIGN_OR_RETURN(const OpenCache cache, OpenPackedCache(job));
  const PackedCacheHeader& header = cache.header;
  CrewState state("read packed cache", job.cancel);
  ChunkQueues queues(header);
  return RunCrew(
      job.threads, &state, TotalBytes(header), job.progress, [&](const LoadThread& thread) {
        XXH3_state_t* hash = XXH3_createState();
        const Status status =
            queues.Work(thread, &state, [&](const PackedCacheChunk& chunk, std::size_t index) {
              XXH3_64bits_reset_withSeed(hash, index);
              for (std::uint64_t done = 0; done < chunk.bytes; done += kReadBytes) {
                const std::span<std::byte> part(
                    arenas[chunk.arena] + chunk.begin + done,
                    static_cast<std::size_t>(std::min(kReadBytes, chunk.bytes - done)));
                if (Status read = cache.file.ReadAt(
                        header.arenas[chunk.arena].offset + chunk.begin + done, part);
                    !read) {
                  return read;
                }
                XXH3_64bits_update(hash, part.data(), part.size());
              }
              return CompareChecksum(job, header, chunk, index, XXH3_64bits_digest(hash));
            });
        XXH3_freeState(hash);
        return status;
      });
}

Status WritePackedCache(const PackedCacheJob& job, std::span<const std::byte* const> arenas) {
  PackedCacheHeader header = PlanPackedCache(job.key, job.arena_bytes, kChunkBytes);
  AtomicFile file(job.path);
  MEGALITH_RETURN_IF_ERROR(file.Create(header.file_bytes));
  CrewState state("write packed cache", job.cancel);
  ChunkQueues queues(header);
  MEGALITH_RETURN_IF_ERROR(
      RunCrew(job.threads, &state, TotalBytes(header), job.progress, [&](const LoadThread& thread) {
        return queues.Work(thread, &state, [&](const PackedCacheChunk& chunk, std::size_t index) {
          const std::span<const std::byte> part(arenas[chunk.arena] + chunk.begin,
                                                static_cast<std::size_t>(chunk.bytes));
          header.checksums[index] = ChunkChecksum(part, index);
          return file.WriteAt(header.arenas[chunk.arena].offset + chunk.begin, part);
        });
      }));
  MEGALITH_RETURN_IF_ERROR(file.WriteAt(0, SerializePackedCacheHeader(header)));
  return file.Commit();
}

}  // namespace megalith::exec
