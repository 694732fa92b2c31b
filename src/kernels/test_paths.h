#pragma once

// The kernel tables a test runs over: every path with bf16 activations, and the portable one with
// float activations.

#include <string>

#include "kernels/flush_denormals.h"
#include "kernels/test_util.h"

namespace megalith::kernels::test {

enum class TestPath { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx, kFloat32 };

inline const TestPath kAllPaths[] = {TestPath::kPortable,   TestPath::kAvx2, TestPath::kAvx512,
                                     TestPath::kAvx512Bf16, TestPath::kAmx,  TestPath::kFloat32};

inline Isa IsaOf(TestPath path) {
  switch (path) {
    case TestPath::kAvx2:
      return Isa::kAvx2;
    case TestPath::kAvx512:
      return Isa::kAvx512;
    case TestPath::kAvx512Bf16:
      return Isa::kAvx512Bf16;
    case TestPath::kAmx:
      return Isa::kAmx;
    case TestPath::kPortable:
    case TestPath::kFloat32:
      break;
  }
  return Isa::kPortable;
}

inline std::string PathName(const ::testing::TestParamInfo<TestPath>& info) {
  return info.param == TestPath::kFloat32 ? "float32" : std::string(IsaName(IsaOf(info.param)));
}

/// A test of one path: flushes denormals as the workers do, skips paths the machine cannot run.
class PathTest : public ::testing::TestWithParam<TestPath> {
 protected:
  void SetUp() override { MEGALITH_SKIP_IF_UNSUPPORTED(IsaOf(GetParam())) }

  /// Calls run(table) with the table of the path; run is generic over the activation type.
  template <typename Run>
  void OnPath(Run run) {
    if (GetParam() == TestPath::kFloat32) {
      run(Float32Kernels());
    } else {
      run(Bf16Kernels(IsaOf(GetParam())));
    }
  }

 private:
  ScopedFlushDenormals flush_;
};

/// 0 .. 2 vectors and one, and a large odd count.
inline const std::int64_t kCounts[] = {1,  2,  3,  7,  8,  9,  15, 16,  17,
                                       24, 31, 32, 33, 47, 48, 64, 100, 333};

}  // namespace megalith::kernels::test
