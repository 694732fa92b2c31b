#pragma once

// The yardstick of work that is bound by multiplying: the instruction set's own multiply-add
// instruction in a bare loop over registers, nothing loaded or stored.

#include <string_view>
#include <vector>

#include "base/result.h"
#include "bench/rounds.h"
#include "kernels/kernel_table.h"

namespace megalith::bench {

/// The instruction that `isa`'s floating-point matmuls could use at best, e.g. "vdpbf16ps".
std::string_view MultiplyInstruction(kernels::Isa isa);

/// Measures operations (a multiplication and an addition count as two) per second of `num_threads`
/// threads on these CPUs (empty: not pinned; the calling thread is one of them if num_threads is 1
/// and it is not moved). About 20 ms. Requires kernels::IsaSupported(isa). The result may be called
/// any number of times.
Yardstick MultiplyYardstick(kernels::Isa isa, int num_threads, std::vector<int> cpus);

}  // namespace megalith::bench
