#pragma once

// AMX on processors without it: the kernel ends such an instruction with SIGILL, and a handler
// decodes and executes it as the manual describes it (Intel SDM volume 2). So the very instructions
// of the amx path run everywhere: encodings, shapes, addresses. What a processor would refuse ends
// the process with a message. A few microseconds an instruction, for tests.

#include <csignal>
#include <cstdint>

namespace megalith::kernels::test {

class ScopedTrappedTiles {
 public:
  ScopedTrappedTiles();
  ~ScopedTrappedTiles();
  ScopedTrappedTiles(const ScopedTrappedTiles&) = delete;
  ScopedTrappedTiles& operator=(const ScopedTrappedTiles&) = delete;

  /// Products of tiles that this thread has executed by trap.
  static std::int64_t num_products();

 private:
  struct sigaction previous_ {};
};

}  // namespace megalith::kernels::test
