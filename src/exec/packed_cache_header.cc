#include "exec/packed_cache_header.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/align.h"

namespace megalith::exec {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little endian");

constexpr char kMagic[8] = {'M', 'E', 'G', 'A', 'P', 'A', 'C', 'K'};
/// A header is small beside what it describes; no more is read than this.
constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{1} << 28;
constexpr std::uint32_t kMaxArenas = 1 << 16;

std::uint64_t CeilDivide(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

class Writer {
 public:
  template <typename T>
  void Put(T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(value));
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads in order; past the end everything is zero and `short_` is set.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T Get() {
    T value{};
    if (bytes_.size() - at_ < sizeof(value)) {
      short_ = true;
      return value;
    }
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));
    at_ += sizeof(value);
    return value;
  }
  bool is_short() const { return short_; }
  std::size_t at() const { return at_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool short_ = false;
};

struct Prefix {
  std::uint32_t num_arenas = 0;
  PackedCacheHeader header;
};

Result<Prefix> ParsePrefix(Reader* reader, std::uint64_t file_bytes) {
  const auto magic = reader->Get<std::array<char, sizeof(kMagic)>>();
  const auto version = reader->Get<std::uint32_t>();
  Prefix prefix;
  PackedCacheHeader& header = prefix.header;
  prefix.num_arenas = reader->Get<std::uint32_t>();
  header.key = reader->Get<PackedCacheKey>();
  header.chunk_bytes = reader->Get<std::uint64_t>();
  header.header_bytes = reader->Get<std::uint64_t>();
  header.file_bytes = reader->Get<std::uint64_t>();
  if (reader->is_short() || std::memcmp(magic.data(), kMagic, sizeof(kMagic)) != 0) {
    return Fail(ErrorCode::kBadFile, "not a packed-cache file");
  }
  if (version != kPackedCacheVersion) {
    return Fail(ErrorCode::kBadFile, "version {} expected, {} found", kPackedCacheVersion, version);
  }
  if (header.file_bytes != file_bytes) {
    return Fail(ErrorCode::kBadFile, "{} bytes expected, the file has {}", header.file_bytes,
                file_bytes);
  }
  if (header.header_bytes > std::min(file_bytes, kMaxHeaderBytes) ||
      header.header_bytes % kPackedCachePage != 0 || header.header_bytes == 0) {
    return Fail(ErrorCode::kBadFile, "a header of {} bytes is impossible", header.header_bytes);
  }
  if (prefix.num_arenas == 0 || prefix.num_arenas > kMaxArenas || header.chunk_bytes == 0) {
    return Fail(ErrorCode::kBadFile, "{} arenas in chunks of {} bytes are impossible",
                prefix.num_arenas, header.chunk_bytes);
  }
  return prefix;
}

}  // namespace

std::vector<PackedCacheChunk> ListChunks(const PackedCacheHeader& header) {
  std::vector<PackedCacheChunk> chunks;
  for (std::size_t i = 0; i < header.arenas.size(); ++i) {
    const std::uint64_t bytes = header.arenas[i].bytes;
    for (std::uint64_t begin = 0; begin < bytes; begin += header.chunk_bytes) {
      chunks.push_back({i, begin, std::min(header.chunk_bytes, bytes - begin)});
    }
  }
  return chunks;
}

std::uint64_t ChunkChecksum(std::span<const std::byte> bytes, std::size_t index) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), index);
}

PackedCacheHeader PlanPackedCache(const PackedCacheKey& key,
                                  std::span<const std::uint64_t> arena_bytes,
                                  std::uint64_t chunk_bytes) {
  PackedCacheHeader header;
  header.key = key;
  header.chunk_bytes = chunk_bytes;
  std::uint64_t chunks = 0;
  for (const std::uint64_t bytes : arena_bytes) chunks += CeilDivide(bytes, chunk_bytes);
  header.checksums.assign(static_cast<std::size_t>(chunks), 0);
  header.header_bytes = RoundUp<std::uint64_t>(
      kPackedCachePrefixBytes + arena_bytes.size() * sizeof(PackedCacheArena) + (chunks + 1) * 8,
      kPackedCachePage);
  header.file_bytes = header.header_bytes;
  for (const std::uint64_t bytes : arena_bytes) {
    header.arenas.push_back({header.file_bytes, bytes});
    header.file_bytes += RoundUp<std::uint64_t>(bytes, kPackedCachePage);
  }
  return header;
}

std::vector<std::byte> SerializePackedCacheHeader(const PackedCacheHeader& header) {
  Writer writer;
  for (const char c : kMagic) writer.Put(c);
  writer.Put(kPackedCacheVersion);
  writer.Put(static_cast<std::uint32_t>(header.arenas.size()));
  writer.Put(header.key);
  writer.Put(header.chunk_bytes);
  writer.Put(header.header_bytes);
  writer.Put(header.file_bytes);
  for (const PackedCacheArena& arena : header.arenas) {
    writer.Put(arena.offset);
    writer.Put(arena.bytes);
  }
  for (const std::uint64_t checksum : header.checksums) writer.Put(checksum);
  writer.Put(static_cast<std::uint64_t>(XXH3_64bits(writer.bytes().data(), writer.bytes().size())));
  writer.bytes().resize(static_cast<std::size_t>(header.header_bytes));
  return std::move(writer.bytes());
}

Result<std::uint64_t> PackedCacheHeaderBytes(std::span<const std::byte> prefix,
                                             std::uint64_t file_bytes) {
  Reader reader(prefix);
  MEGALITH_ASSIGN_OR_RETURN(const Prefix parsed, ParsePrefix(&reader, file_bytes));
  return parsed.header.header_bytes;
}

Result<PackedCacheHeader> ParsePackedCacheHeader(std::span<const std::byte> bytes,
                                                 std::uint64_t file_bytes) {
  Reader reader(bytes);
  MEGALITH_ASSIGN_OR_RETURN(Prefix prefix, ParsePrefix(&reader, file_bytes));
  PackedCacheHeader& header = prefix.header;
  if (bytes.size() != header.header_bytes) {
    return Fail(ErrorCode::kBadFile, "a header of {} bytes expected, {} given", header.header_bytes,
                bytes.size());
  }
  std::uint64_t end = header.header_bytes;
  std::uint64_t chunks = 0;
  for (std::uint32_t i = 0; i < prefix.num_arenas && !reader.is_short(); ++i) {
    PackedCacheArena arena;
    arena.offset = reader.Get<std::uint64_t>();
    arena.bytes = reader.Get<std::uint64_t>();
    // Neither sum can wrap: both sides are below the file's size.
    if (arena.offset != end || arena.bytes > file_bytes - end ||
        RoundUp<std::uint64_t>(arena.bytes, kPackedCachePage) > file_bytes - end) {
      return Fail(ErrorCode::kBadFile, "arena {} does not lie inside the file", i);
    }
    end += RoundUp<std::uint64_t>(arena.bytes, kPackedCachePage);
    chunks += CeilDivide(arena.bytes, header.chunk_bytes);
    header.arenas.push_back(arena);
  }
  if (chunks > header.header_bytes / 8) {
    return Fail(ErrorCode::kBadFile, "{} chunks do not fit the header", chunks);
  }
  for (std::uint64_t i = 0; i < chunks && !reader.is_short(); ++i) {
    header.checksums.push_back(reader.Get<std::uint64_t>());
  }
  const std::size_t covered = reader.at();
  const auto want = reader.Get<std::uint64_t>();
  if (reader.is_short()) return Fail(ErrorCode::kBadFile, "the header ends too early");
  if (XXH3_64bits(bytes.data(), covered) != want) {
    return Fail(ErrorCode::kBadFile, "the header's checksum is wrong");
  }
  if (end != file_bytes) {
    return Fail(ErrorCode::kBadFile, "arenas end at {}, the file at {}", end, file_bytes);
  }
  return header;
}

}  // namespace megalith::exec
