#include "text/unicode.h"

#include <gtest/gtest.h>
#include <unicode/uchar.h>
#include <unicode/uscript.h>

namespace megalith::text {
namespace {

// ICU 72 carries the same Unicode version as the generated ranges, so every code point must agree.
TEST(CodePointClasses, EveryCodePointAgreesWithIcu) {
  ASSERT_STREQ(U_UNICODE_VERSION, "15.0");
  for (UChar32 c = 0; c <= 0x10FFFF; ++c) {
    UErrorCode status = U_ZERO_ERROR;
    const bool han = uscript_getScript(c, &status) == USCRIPT_HAN;
    ASSERT_TRUE(U_SUCCESS(status));
    const std::uint32_t mask = U_GET_GC_MASK(c);
    std::uint32_t want = 0;
    if (han) want |= kHan;
    if (!han &&
        (mask & (U_GC_LU_MASK | U_GC_LT_MASK | U_GC_LM_MASK | U_GC_LO_MASK | U_GC_M_MASK))) {
      want |= kUpperRun;
    }
    if (!han && (mask & (U_GC_LL_MASK | U_GC_LM_MASK | U_GC_LO_MASK | U_GC_M_MASK))) {
      want |= kLowerRun;
    }
    if (mask & U_GC_L_MASK) want |= kLetter;
    if (mask & U_GC_N_MASK) want |= kNumber;
    if (u_isUWhiteSpace(c)) want |= kWhiteSpace;
    if (u_isUWhiteSpace(c) || (c >= 0x1C && c <= 0x1F)) want |= kPythonSpace;
    ASSERT_EQ(CodePointClasses(static_cast<char32_t>(c)), want) << std::hex << c;
  }
}

TEST(CodePointClasses, BeyondUnicodeHasNone) {
  EXPECT_EQ(CodePointClasses(0x110000), 0);
  EXPECT_EQ(CodePointClasses(0xFFFFFFFF), 0);
}

}  // namespace
}  // namespace megalith::text
