// The head of a packed-cache file: whatever the bytes say, parsing must not crash, and a head that
// is accepted must describe chunks inside the file and be written back as it was.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "exec/packed_cache_header.h"

namespace {

void Check(std::span<const std::byte> bytes, std::uint64_t file_bytes) {
  using namespace megalith;
  const auto length = exec::PackedCacheHeaderBytes(bytes, file_bytes);
  const auto header = exec::ParsePackedCacheHeader(bytes, file_bytes);
  if (!header) return;
  if (!length || *length != bytes.size()) std::abort();
  std::size_t chunks = 0;
  for (const exec::PackedCacheChunk& chunk : exec::ListChunks(*header)) {
    const exec::PackedCacheArena& arena = header->arenas[chunk.arena];
    if (chunk.bytes == 0 || chunk.begin + chunk.bytes > arena.bytes ||
        arena.offset + arena.bytes > file_bytes) {
      std::abort();
    }
    ++chunks;
  }
  if (chunks != header->checksums.size()) std::abort();
  const auto again =
      exec::ParsePackedCacheHeader(exec::SerializePackedCacheHeader(*header), file_bytes);
  if (!again || *again != *header) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megalith;
  const auto bytes = std::as_bytes(std::span(data, size));
  Check(bytes, size);
  // No search finds a checksum: the input chooses sizes of a correct head, and one byte to damage.
  if (size < 4) return 0;
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 3; i < size && sizes.size() < 16; ++i) sizes.push_back(data[i] * 37u);
  if (sizes.empty()) return 0;
  exec::PackedCacheHeader header =
      exec::PlanPackedCache({data[0], data[1]}, sizes, std::uint64_t{1} + data[2]);
  for (std::size_t i = 0; i < header.checksums.size(); ++i) header.checksums[i] = i * data[0];
  std::vector<std::byte> head = exec::SerializePackedCacheHeader(header);
  Check(head, header.file_bytes);
  head[(data[0] * 256u + data[1]) % head.size()] ^= std::byte{data[2]};
  Check(head, header.file_bytes);
  return 0;
}
