// Program bytes -> loader -> verifier -> dump: none may crash, whatever the bytes say, and what
// passes must survive a round trip.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "program/dump.h"
#include "program/serialize.h"
#include "program/verifier.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megalith;
  const auto program = program::Deserialize(std::as_bytes(std::span(data, size)));
  if (!program) return 0;
  if (program::Serialize(*program).size() != size) std::abort();
  const auto verified = program::Verify(*program);
  if (verified && program::DumpText(**verified).empty()) std::abort();
  return 0;
}
