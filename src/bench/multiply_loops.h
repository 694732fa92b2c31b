#pragma once

#include <cstdint>

namespace megalith::bench {

/// Runs `iterations` rounds of independent multiply-adds and returns how many operations (two for
/// each multiply-add of each element) that were. `sink` receives a value that depends on all.
using MultiplyLoop = double (*)(std::int64_t iterations, float* sink);

double MultiplyPortable(std::int64_t iterations, float* sink);
// Only where the processor has the instructions.
double MultiplyAvx2(std::int64_t iterations, float* sink);
double MultiplyAvx512(std::int64_t iterations, float* sink);
double MultiplyAvx512Bf16(std::int64_t iterations, float* sink);
double MultiplyAmx(std::int64_t iterations, float* sink);

}  // namespace megalith::bench
