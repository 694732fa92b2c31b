#pragma once

// Rule 5 of numerics.h. Every thread that runs kernels, engine workers and tests alike, holds one
// of these: AMX and AVX-512 BF16 treat denormals as zero whatever the control register says, so the
// other paths must do the same to give comparable results, and denormal arithmetic is slow.

#include <xmmintrin.h>

namespace megalith::kernels {

/// Sets flush-to-zero and denormals-are-zero for the calling thread; restores what was set before.
class ScopedFlushDenormals {
 public:
  ScopedFlushDenormals() : saved_(_mm_getcsr()) {
    _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero);
  }
  ~ScopedFlushDenormals() { _mm_setcsr(saved_); }
  ScopedFlushDenormals(const ScopedFlushDenormals&) = delete;
  ScopedFlushDenormals& operator=(const ScopedFlushDenormals&) = delete;

 private:
  static constexpr unsigned int kFlushToZero = 0x8000;
  static constexpr unsigned int kDenormalsAreZero = 0x0040;
  unsigned int saved_;
};

}  // namespace megalith::kernels
