#include "model/json_place.h"

#include <gtest/gtest.h>

namespace megalith::model {
namespace {

TEST(JsonErrorPlace, PointsAtTheFirstByteThatDoesNotFit) {
  EXPECT_EQ(JsonErrorPlace("{\"a\": 1,\n \"b\" 2}"),
            " at byte 14 (line 2), after '{\"a\": 1,  \"b\" '");
  EXPECT_EQ(JsonErrorPlace("x"), " at byte 0 (line 1)");
  EXPECT_EQ(JsonErrorPlace("[1,]"), " at byte 3 (line 1), after '[1,'");
}

TEST(JsonErrorPlace, TextCutShortEndsAtItsLength) {
  EXPECT_EQ(JsonErrorPlace(""), " at byte 0 (line 1)");
  EXPECT_EQ(JsonErrorPlace("{\"a\":"), " at byte 5 (line 1), after '{\"a\":'");
}

TEST(JsonErrorPlace, ShowsLittleAndNoControlCharacters) {
  const std::string text = std::string(1000, '[') + "\x01\xff";
  const std::string place = JsonErrorPlace(text);
  EXPECT_NE(place.find("at byte 1000"), std::string::npos) << place;
  EXPECT_LT(place.size(), 80u);
}

TEST(JsonErrorPlace, WellFormedTextHasNone) {
  EXPECT_EQ(JsonErrorPlace("{}"), "");
  EXPECT_EQ(JsonErrorPlace("123456789012345678901234567890"), "");
  EXPECT_EQ(JsonErrorPlace("1e999"), "");
}

}  // namespace
}  // namespace megalith::model
