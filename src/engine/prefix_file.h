#pragma once

// A snapshot in a file.
//
//   bytes 0..8   "MEGAPREF"
//   u32 version, u32 zero
//   u64 num_tokens, u64 content_bytes
//   u64 checksum of the above and the tokens
//   num_tokens x i32
//   content_bytes: exec::Snapshot::Contents, one part after the other
//   u64 checksum of the contents
//
// Little endian. Everything is checked: a file may be cut short, damaged or of another version.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "exec/snapshot.h"

namespace megalith::engine {

inline constexpr std::size_t kPrefixHeadBytes = 40;

/// What a file holds, from its beginning.
struct PrefixFileHead {
  std::uint64_t num_tokens = 0;
  std::uint64_t content_bytes = 0;
  std::uint64_t checksum = 0;
};

/// `bytes`: the first kPrefixHeadBytes. kBadFile saying what is wrong with it as the head of a file
/// of `file_bytes`; kOutOfRange for more than `max_tokens`.
Result<PrefixFileHead> ParsePrefixHead(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                                       std::uint64_t max_tokens);

/// The tokens of the file. kBadFile, kOutOfRange, kIo.
Result<std::vector<std::int32_t>> ReadPrefixTokens(const RandomAccessFile& file,
                                                   std::uint64_t max_tokens);

/// Fills in the snapshot, which is of the file's number of tokens. kBadFile if the contents have
/// another size or are damaged; kIo.
Status ReadPrefixContents(const RandomAccessFile& file, std::uint64_t max_tokens,
                          exec::Snapshot& snapshot);

/// Writes the file whole or not at all. Errors of AtomicFile. Only what no step changes is read, so
/// that steps may run meanwhile.
Status WritePrefixFile(const std::string& path, std::span<const std::int32_t> tokens,
                       const exec::Snapshot& snapshot);

/// Size of that file.
std::uint64_t PrefixFileBytes(std::span<const std::int32_t> tokens, const exec::Snapshot& snapshot);

}  // namespace megalith::engine
