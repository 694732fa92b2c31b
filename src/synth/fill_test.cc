#include "synth/fill.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "base/bf16.h"
#include "kernels/layout.h"
#include "synth/random_bits.h"

namespace megalith::synth {
namespace {

using Kind = Distribution::Kind;

std::vector<std::byte> Bytes(const Distribution& distribution, DType dtype, std::size_t count,
                             std::uint64_t key = 1) {
  std::vector<std::byte> bytes(count);
  TensorFill(distribution, dtype, key).Write(0, bytes);
  return bytes;
}

struct Moments {
  double mean = 0.0;
  double deviation = 0.0;
};

Moments MomentsOf(const std::vector<float>& values) {
  double sum = 0.0;
  double squares = 0.0;
  for (const float value : values) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const auto count = static_cast<double>(values.size());
  const double mean = sum / count;
  return {mean, std::sqrt(squares / count - mean * mean)};
}

std::vector<float> Floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<float> FloatsOfBf16(const std::vector<std::byte>& bytes) {
  std::vector<Bf16> elements(bytes.size() / sizeof(Bf16));
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  std::vector<float> values;
  for (const Bf16 element : elements) values.push_back(ToFloat(element));
  return values;
}

TEST(RandomBits, StreamsOfOtherNamesAndSeedsDiffer) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (const char* name : {"a", "b", "ab", "ba", "layers.1.w", "layers.11.w"}) {
      keys.insert(StreamKey(seed, name));
    }
  }
  EXPECT_EQ(keys.size(), 300U);
}

TEST(NormalQuantiles, AreAscendingSymmetricAndOfVarianceOne) {
  const float* values = NormalQuantiles();
  const Moments moments = MomentsOf(std::vector<float>(values, values + kNormalCount));
  EXPECT_NEAR(moments.mean, 0.0, 1e-6);
  EXPECT_NEAR(moments.deviation, 1.0, 1e-3);
  for (int i = 1; i < kNormalCount; ++i) ASSERT_LT(values[i - 1], values[i]);
  EXPECT_NEAR(NormalQuantile(0.975), 1.959964, 1e-6);
}

TEST(TensorFill, BytesDependOnThePositionOnly) {
  const std::pair<Distribution, DType> tensors[] = {
      {{Kind::kNormal, 0.5f, 0.1f}, DType::kBf16},
      {{Kind::kNormal, 0.5f, 0.1f}, DType::kF32},
      {{Kind::kUniform, 0.3f, 0.7f, 0, 17}, DType::kF32},
      {{Kind::kConvTaps, 1.0f, 0.1f, 3}, DType::kF32},
      {{Kind::kMxfp4Codes, 0.0f, 0.02f}, DType::kU8},
      {{Kind::kMxfp4Scales, 0.0f, 0.02f}, DType::kU8},
  };
  for (const auto& [distribution, dtype] : tensors) {
    constexpr std::size_t kBytes = 480;
    const auto whole = Bytes(distribution, dtype, kBytes);
    const TensorFill fill(distribution, dtype, 1);
    for (std::size_t begin = 0; begin < 40; ++begin) {
      for (std::size_t count : {0U, 1U, 2U, 3U, 7U, 8U, 16U, 33U, 255U, 400U}) {
        std::vector<std::byte> part(count + 1, std::byte{0xee});
        fill.Write(begin, std::span(part).first(count));
        ASSERT_EQ(std::memcmp(part.data(), whole.data() + begin, count), 0)
            << begin << "+" << count;
        ASSERT_EQ(part[count], std::byte{0xee});
      }
    }
    EXPECT_NE(whole, Bytes(distribution, dtype, kBytes, 2));
  }
}

TEST(TensorFill, NormalTensorsHaveTheirMeanAndSpread) {
  const Distribution distribution{Kind::kNormal, 1.0f, 0.25f};
  const Moments bf16 = MomentsOf(FloatsOfBf16(Bytes(distribution, DType::kBf16, 200000)));
  EXPECT_NEAR(bf16.mean, 1.0, 0.005);
  EXPECT_NEAR(bf16.deviation, 0.25, 0.005);
  const Moments f32 = MomentsOf(Floats(Bytes(distribution, DType::kF32, 400000)));
  EXPECT_NEAR(f32.mean, 1.0, 0.005);
  EXPECT_NEAR(f32.deviation, 0.25, 0.005);
}

TEST(TensorFill, UniformVectorsStayInTheirRangeAndArePaddedWithZeros) {
  const auto values = Floats(Bytes({Kind::kUniform, 0.3f, 0.7f, 0, 96}, DType::kF32, 128 * 4));
  for (std::size_t i = 0; i < 96; ++i) {
    EXPECT_GE(values[i], -0.4f);
    EXPECT_LT(values[i], 1.0f);
    EXPECT_NE(values[i], 0.0f);
  }
  for (std::size_t i = 96; i < 128; ++i) EXPECT_EQ(values[i], 0.0f);
}

TEST(TensorFill, LastConvolutionTapIsTheLargeOne) {
  const auto values = Floats(Bytes({Kind::kConvTaps, 1.1f, 0.1f, 4}, DType::kF32, 40000));
  for (std::size_t tap = 0; tap < 4; ++tap) {
    std::vector<float> column;
    for (std::size_t i = tap; i < values.size(); i += 4) column.push_back(values[i]);
    EXPECT_NEAR(MomentsOf(column).mean, tap == 3 ? 1.1 : 0.0, 0.01) << tap;
  }
}

TEST(TensorFill, Mxfp4ElementsHaveTheWantedSpread) {
  for (const float spread : {0.3f, 0.0187f, 0.0118f}) {
    constexpr std::size_t kElements = 1 << 16;
    const auto codes = Bytes({Kind::kMxfp4Codes, 0.0f, spread}, DType::kU8, kElements / 2);
    const auto scales = Bytes({Kind::kMxfp4Scales, 0.0f, spread}, DType::kU8, kElements / 32, 7);
    std::vector<float> values;
    std::set<std::uint8_t> seen;
    std::set<std::uint8_t> exponents;
    for (std::size_t i = 0; i < kElements; ++i) {
      const auto pair = static_cast<std::uint8_t>(codes[i / 2]);
      const auto code = static_cast<std::uint8_t>(i % 2 == 0 ? pair & 15u : pair >> 4);
      const auto scale = static_cast<std::uint8_t>(scales[i / 32]);
      seen.insert(code);
      exponents.insert(scale);
      values.push_back(kernels::DecodeMxfp4(code, scale));
    }
    const Moments moments = MomentsOf(values);
    EXPECT_NEAR(moments.mean, 0.0, 0.03 * static_cast<double>(spread));
    EXPECT_NEAR(moments.deviation / static_cast<double>(spread), 1.0, 0.03);
    EXPECT_EQ(seen.size(), 16U) << "every code occurs";
    EXPECT_LE(exponents.size(), 2U);
  }
}

TEST(TensorFill, ScalesNeverLeaveTheRangeOfTheFormat) {
  for (const float spread : {0.0f, 1e-38f, 1e38f}) {
    for (const std::byte scale : Bytes({Kind::kMxfp4Scales, 0.0f, spread}, DType::kU8, 64)) {
      EXPECT_GE(static_cast<int>(scale), 1);
      EXPECT_LE(static_cast<int>(scale), 254);
    }
  }
}

}  // namespace
}  // namespace megalith::synth
