#pragma once

// What the kernel tests share: seeded values, buffers with canaries and odd alignment, comparison
// bit by bit.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/kernel_table.h"

namespace megalith::kernels::test {

/// SplitMix64: the same values on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// 0 .. bound - 1
  std::int64_t Below(std::int64_t bound) {
    return static_cast<std::int64_t>(Next() % static_cast<std::uint64_t>(bound));
  }
  /// Uniform in [-1, 1).
  float Unit() { return static_cast<float>(static_cast<double>(Next() >> 11) * 0x1p-52 - 1.0); }
  /// Roughly normal, standard deviation 1: a sum of uniform values.
  float Normal() {
    float sum = 0.0f;
    for (int i = 0; i < 12; ++i) sum += 0.5f * Unit();
    return sum;
  }
  /// Any finite bit pattern: every exponent, denormals too.
  float AnyFinite() {
    for (;;) {
      const float value = std::bit_cast<float>(static_cast<std::uint32_t>(Next()));
      if (std::isfinite(value)) return value;
    }
  }

 private:
  std::uint64_t state_;
};

/// `count` elements that start `offset` elements after a 64-byte boundary, between canaries.
template <typename T>
class Buffer {
 public:
  explicit Buffer(std::int64_t count, std::int64_t offset = 0)
      : count_(count), begin_(kCanaryElements + offset) {
    storage_.resize(static_cast<std::size_t>(begin_ + count + kCanaryElements) * sizeof(T) + 64);
    auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    base_ = reinterpret_cast<T*>((address + 63) / 64 * 64);
    std::memset(static_cast<void*>(base_), kCanary,
                static_cast<std::size_t>(begin_ + count + kCanaryElements) * sizeof(T));
  }
  Buffer(const Buffer& other) : Buffer(other.count_, other.begin_ - kCanaryElements) {
    std::memcpy(static_cast<void*>(data()), other.data(),
                static_cast<std::size_t>(count_) * sizeof(T));
  }
  Buffer& operator=(const Buffer&) = delete;

  T* data() { return base_ + begin_; }
  const T* data() const { return base_ + begin_; }
  std::int64_t size() const { return count_; }
  T& operator[](std::int64_t i) { return data()[i]; }
  const T& operator[](std::int64_t i) const { return data()[i]; }

  /// Fills with make() values (float, rounded to T if T is Bf16).
  template <typename Make>
  Buffer& Fill(Make make) {
    for (std::int64_t i = 0; i < count_; ++i) data()[i] = RoundTo<T>(make());
    return *this;
  }
  Buffer& FillNormal(Random& random, float scale = 1.0f) {
    return Fill([&] { return scale * random.Normal(); });
  }

  ::testing::AssertionResult CanariesIntact() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(base_);
    const std::int64_t begin = begin_ * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t end = (begin_ + count_) * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t all =
        (begin_ + count_ + kCanaryElements) * static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t i = 0; i < all; ++i) {
      if (i == begin) i = end;
      if (i < all && bytes[i] != kCanary) {
        return ::testing::AssertionFailure()
               << "byte " << i - begin << " of a buffer of " << end - begin << " bytes was written";
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  // Fits any vector that starts inside the buffer. Multiple of 64 bytes for every T.
  static constexpr std::int64_t kCanaryElements = 64;
  static constexpr unsigned char kCanary = 0xa5;
  std::int64_t count_;
  std::int64_t begin_;
  std::vector<unsigned char> storage_;
  T* base_;
};

inline std::uint32_t Bits(float value) { return std::bit_cast<std::uint32_t>(value); }
inline std::uint32_t Bits(Bf16 value) { return value.bits; }
inline std::uint32_t Bits(std::int32_t value) { return static_cast<std::uint32_t>(value); }
inline bool IsNan(float value) { return value != value; }
inline bool IsNan(Bf16 value) { return IsNan(ToFloat(value)); }
inline bool IsNan(std::int32_t) { return false; }
inline double ToDouble(float value) { return static_cast<double>(value); }
inline double ToDouble(Bf16 value) { return static_cast<double>(ToFloat(value)); }
inline double ToDouble(std::int32_t value) { return value; }

/// Equal bit by bit, any NaN being equal to any NaN; names the first element that differs.
template <typename T>
::testing::AssertionResult SameBits(const T* actual, const T* expected, std::int64_t count) {
  std::int64_t differing = 0;
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (Bits(actual[i]) == Bits(expected[i]) || (IsNan(actual[i]) && IsNan(expected[i]))) continue;
    if (differing++ == 0) first = i;
  }
  if (differing == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << differing << " of " << count << " elements differ, first [" << first
         << "]: " << ToDouble(actual[first]) << " (0x" << std::hex << Bits(actual[first])
         << "), expected " << ToDouble(expected[first]) << " (0x" << Bits(expected[first]) << ")";
}
template <typename T>
::testing::AssertionResult SameBits(const Buffer<T>& actual, const Buffer<T>& expected) {
  return SameBits(actual.data(), expected.data(), expected.size());
}

inline std::string IsaTestName(const ::testing::TestParamInfo<Isa>& info) {
  return std::string(IsaName(info.param));
}
inline const Isa kAllIsas[] = {Isa::kPortable,   Isa::kAvx2, Isa::kAvx512,
                               Isa::kAvx512Bf16, Isa::kAmx,  Isa::kAmxEmulated};

}  // namespace megalith::kernels::test

/// First statement of a test that runs one path.
#define MEGALITH_SKIP_IF_UNSUPPORTED(isa)                                            \
  if (!::megalith::kernels::IsaSupported(isa)) {                                     \
    GTEST_SKIP() << "this machine cannot run " << ::megalith::kernels::IsaName(isa); \
  }
