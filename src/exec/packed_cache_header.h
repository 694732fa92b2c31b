#pragma once

// The head of a packed-cache file. Everything in it is checked: a file may come from another
// version, another machine, or a disk that lies.
//
//   bytes 0..8       "MEGAPACK"
//   u32 version, u32 num_arenas
//   u64 key[2]       what the file was made of (packed_cache.h)
//   u64 chunk_bytes, u64 header_bytes, u64 file_bytes
//   num_arenas x { u64 offset, u64 bytes }
//   checksums: one u64 per chunk_bytes of each arena, in order, the last of an arena may be short
//   u64 checksum of all of the above
//   zeros up to header_bytes, a multiple of 4096
//
// Arenas follow, each at a multiple of 4096. Little endian.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace megalith::exec {

inline constexpr std::uint32_t kPackedCacheVersion = 1;
inline constexpr std::uint64_t kPackedCachePage = 4096;

using PackedCacheKey = std::array<std::uint64_t, 2>;

struct PackedCacheArena {
  std::uint64_t offset = 0;  ///< in the file
  std::uint64_t bytes = 0;
  friend bool operator==(const PackedCacheArena&, const PackedCacheArena&) = default;
};

struct PackedCacheHeader {
  PackedCacheKey key = {};
  std::uint64_t chunk_bytes = 0;
  std::uint64_t header_bytes = 0;
  std::uint64_t file_bytes = 0;
  std::vector<PackedCacheArena> arenas;
  std::vector<std::uint64_t> checksums;  ///< of all arenas' chunks
  friend bool operator==(const PackedCacheHeader&, const PackedCacheHeader&) = default;
};

/// A chunk of an arena as the checksums count them.
struct PackedCacheChunk {
  std::size_t arena = 0;
  std::uint64_t begin = 0;  ///< in the arena
  std::uint64_t bytes = 0;
};
std::vector<PackedCacheChunk> ListChunks(const PackedCacheHeader& header);

/// Checksum of chunk number `index` of the file: also its place is checked.
std::uint64_t ChunkChecksum(std::span<const std::byte> bytes, std::size_t index);

/// Places for arenas of these sizes; checksums are zero.
PackedCacheHeader PlanPackedCache(const PackedCacheKey& key,
                                  std::span<const std::uint64_t> arena_bytes,
                                  std::uint64_t chunk_bytes);

/// header.header_bytes bytes.
std::vector<std::byte> SerializePackedCacheHeader(const PackedCacheHeader& header);

/// Bytes that must be read to know how long a header is.
inline constexpr std::size_t kPackedCachePrefixBytes = 56;

/// Length of the header that begins with `prefix`. kBadFile if this is no cache file of this
/// version or the length cannot be that of a file of `file_bytes`.
Result<std::uint64_t> PackedCacheHeaderBytes(std::span<const std::byte> prefix,
                                             std::uint64_t file_bytes);

/// `bytes`: the whole header. kBadFile saying what is wrong.
Result<PackedCacheHeader> ParsePackedCacheHeader(std::span<const std::byte> bytes,
                                                 std::uint64_t file_bytes);

}  // namespace megalith::exec
