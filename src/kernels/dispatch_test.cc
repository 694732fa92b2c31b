#include <cstdlib>
#include <string>

#include "kernels/kernel_table.h"
#include "kernels/test_util.h"

namespace megalith::kernels {
namespace {

/// Sets MEGALITH_FORCE_ISA (null: unset) and restores it.
class ScopedForceIsa {
 public:
  explicit ScopedForceIsa(const char* value) {
    if (const char* old = std::getenv(kName)) {
      old_ = old;
      was_set_ = true;
    }
    Set(value);
  }
  ~ScopedForceIsa() { Set(was_set_ ? old_.c_str() : nullptr); }
  ScopedForceIsa(const ScopedForceIsa&) = delete;
  ScopedForceIsa& operator=(const ScopedForceIsa&) = delete;

 private:
  static constexpr const char* kName = "MEGALITH_FORCE_ISA";
  static void Set(const char* value) {
    if (value == nullptr) {
      unsetenv(kName);
    } else {
      setenv(kName, value, 1);
    }
  }
  std::string old_;
  bool was_set_ = false;
};

TEST(ParseIsa, EveryNameRoundTrips) {
  for (const Isa isa : test::kAllIsas) {
    const Result<Isa> parsed = ParseIsa(IsaName(isa));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(*parsed, isa);
  }
}

TEST(ParseIsa, UnknownNameIsAUsageErrorThatListsTheNames) {
  const Result<Isa> parsed = ParseIsa("avx1024");
  ASSERT_FALSE(parsed.has_value());
  EXPECT_EQ(parsed.error().code, ErrorCode::kUsage);
  for (const char* name :
       {"avx1024", "portable", "avx2", "avx512", "avx512_bf16", "amx", "amx_emulated"}) {
    EXPECT_NE(parsed.error().message.find(name), std::string::npos) << name;
  }
}

TEST(SupportedIsas, BeginWithPortableAndAreAscending) {
  const std::vector<Isa> isas = SupportedIsas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kPortable);
  for (std::size_t i = 1; i < isas.size(); ++i) EXPECT_LT(isas[i - 1], isas[i]);
}

TEST(NumericsOf, EveryTableHasThem) {
  for (const Isa isa : SupportedIsas()) EXPECT_EQ(Bf16Kernels(isa).numerics, NumericsOf(isa));
  EXPECT_EQ(Float32Kernels().numerics.quantized, QuantizedDot::kFloatChains);
}

TEST(SelectIsa, WithoutAForcedPathIsTheBestSupported) {
  const ScopedForceIsa force(nullptr);
  const Result<Isa> isa = SelectIsa();
  ASSERT_TRUE(isa.has_value());
  EXPECT_EQ(*isa, SupportedIsas().back());
}

TEST(SelectIsa, ForcedPathIsTheOneWhoseTableIsReturned) {
  for (const Isa wanted : test::kAllIsas) {
    const ScopedForceIsa force(std::string(IsaName(wanted)).c_str());
    const Result<Isa> isa = SelectIsa();
    if (!IsaSupported(wanted)) {
      ASSERT_FALSE(isa.has_value());
      EXPECT_EQ(isa.error().code, ErrorCode::kUsage);
      continue;
    }
    ASSERT_TRUE(isa.has_value());
    EXPECT_EQ(*isa, wanted);
    EXPECT_EQ(Bf16Kernels(*isa).isa, wanted);
  }
}

TEST(SelectIsa, UnknownForcedPathFails) {
  const ScopedForceIsa force("sse9");
  const Result<Isa> isa = SelectIsa();
  ASSERT_FALSE(isa.has_value());
  EXPECT_EQ(isa.error().code, ErrorCode::kUsage);
  EXPECT_NE(isa.error().message.find("MEGALITH_FORCE_ISA"), std::string::npos);
}

TEST(SelectIsa, EmptyForcedPathFails) {
  const ScopedForceIsa force("");
  EXPECT_FALSE(SelectIsa().has_value());
}

TEST(Bf16Kernels, EveryEntryIsFilledAndNoTwoPathsShareAKernel) {
  const std::vector<Isa> isas = SupportedIsas();
  for (std::size_t i = 0; i < isas.size(); ++i) {
    const KernelTable<Bf16>& table = Bf16Kernels(isas[i]);
    for (int f = 0; f < kNumPanelFormats; ++f) {
      EXPECT_NE(table.matmul[f], nullptr);
      EXPECT_NE(table.matmul_float[f], nullptr);
    }
    EXPECT_NE(table.attn_res_norm, nullptr);
    EXPECT_NE(table.rms_norm, nullptr);
    EXPECT_NE(table.gated_pair, nullptr);
    EXPECT_NE(table.store, nullptr);
    EXPECT_NE(table.add_residual, nullptr);
    EXPECT_NE(table.add_shared_residual, nullptr);
    EXPECT_NE(table.sigmoid_gate, nullptr);
    EXPECT_NE(table.weighted_add, nullptr);
    EXPECT_NE(table.kda_head, nullptr);
    EXPECT_NE(table.mla_attention, nullptr);
    EXPECT_NE(table.mla_partial, nullptr);
    EXPECT_NE(table.mla_merge, nullptr);
    EXPECT_NE(table.router_top_k, nullptr);
    EXPECT_EQ(table.numerics.order,
              isas[i] == Isa::kAvx512Bf16 ? DotOrder::kJoinedPairs : DotOrder::kSplitPairs);
    EXPECT_EQ(table.numerics.quantized,
              isas[i] == Isa::kAmx ? QuantizedDot::kExpanded : QuantizedDot::kFixedPoint);
    for (std::size_t j = 0; j < i; ++j) {
      for (int f = 0; f < kNumPanelFormats; ++f) {
        EXPECT_NE(table.matmul[f], Bf16Kernels(isas[j]).matmul[f]);
      }
      EXPECT_NE(table.kda_head, Bf16Kernels(isas[j]).kda_head);
    }
  }
}

TEST(Float32Kernels, ArePortable) {
  EXPECT_EQ(Float32Kernels().isa, Isa::kPortable);
  EXPECT_EQ(Float32Kernels().numerics.order, DotOrder::kSplitPairs);
}

}  // namespace
}  // namespace megalith::kernels
