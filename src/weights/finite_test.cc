#include "weights/finite.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/bf16.h"

namespace megalith::weights {
namespace {

TEST(FindNonFinite, EveryBf16PatternIsJudgedByItsExponent) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 value{static_cast<std::uint16_t>(bits)};
    const bool bad = (bits & 0x7f80u) == 0x7f80u;
    // Alone, and as a lane of a word beside the largest finite values.
    EXPECT_EQ(FindNonFinite(std::as_bytes(std::span(&value, 1)), DType::kBf16).has_value(), bad);
    Bf16 word[4] = {{0xff7f}, {0x7f7f}, {0xff7f}, {0x7f7f}};
    word[bits % 4] = value;
    const auto found = FindNonFinite(std::as_bytes(std::span(word)), DType::kBf16);
    EXPECT_EQ(found.has_value(), bad) << bits;
    EXPECT_EQ(found.value_or(bits % 4), bits % 4);
  }
}

TEST(FindNonFinite, FirstIsFoundWhereverItStands) {
  for (const std::size_t count : {1u, 3u, 1023u, 1024u, 1025u, 2048u, 5003u}) {
    std::vector<float> values(count, -1.5f);
    values[count / 2] = 3.4e38f;
    EXPECT_EQ(FindNonFinite(std::as_bytes(std::span(values)), DType::kF32), std::nullopt);
    for (const std::size_t at : {std::size_t{0}, count / 3, count - 1}) {
      for (const std::uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u}) {
        const float kept = values[at];
        std::memcpy(&values[at], &bits, sizeof(bits));
        // At an odd address, too.
        std::vector<std::byte> shifted(count * sizeof(float) + 1);
        std::memcpy(shifted.data() + 1, values.data(), count * sizeof(float));
        EXPECT_EQ(FindNonFinite(std::span(shifted).subspan(1), DType::kF32), at);
        values[at] = kept;
      }
    }
  }
}

TEST(FindNonFinite, CodesAndIntegersHaveNone) {
  const std::vector<std::byte> ones(100, std::byte{0xff});
  EXPECT_EQ(FindNonFinite(ones, DType::kU8), std::nullopt);
  EXPECT_EQ(FindNonFinite(ones, DType::kBf16), std::size_t{0});
  EXPECT_EQ(FindNonFinite({}, DType::kBf16), std::nullopt);
}

}  // namespace
}  // namespace megalith::weights
