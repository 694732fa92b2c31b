// The head of a stored prefix: whatever the bytes say, what is accepted describes a file of exactly
// that size.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "engine/prefix_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megalith;
  const auto bytes = std::as_bytes(std::span(data, size));
  std::uint64_t file_bytes = size;
  if (size >= 8) std::memcpy(&file_bytes, data + size - 8, 8);
  for (const std::uint64_t of : {std::uint64_t{size}, file_bytes}) {
    const auto head = engine::ParsePrefixHead(bytes, of, 1 << 20);
    if (!head) continue;
    if (head->num_tokens == 0 || head->num_tokens > 1 << 20) std::abort();
    if (engine::kPrefixHeadBytes + 4 * head->num_tokens + head->content_bytes + 8 != of) {
      std::abort();
    }
  }
  return 0;
}
