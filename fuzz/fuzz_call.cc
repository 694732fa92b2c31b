// What rank 0 tells the others: whatever the bytes say, nothing crashes, and a call that is
// accepted is encoded as the same bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "exec/call.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megalith;
  const auto bytes = std::as_bytes(std::span(data, size));
  // One decoder for all, as in use: nothing of an earlier call may shine through.
  static exec::CallDecoder decoder;
  const auto call = decoder.Decode(bytes);
  if (!call) return 0;
  std::vector<std::byte> again;
  exec::AppendCall(*call, &again);
  // A float keeps its bits, NaN too.
  if (!std::ranges::equal(again, bytes)) std::abort();
  return 0;
}
