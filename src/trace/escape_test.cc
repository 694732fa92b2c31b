#include "trace/escape.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace megalith::trace {
namespace {

TEST(EscapeXml, MarkupAndForbiddenBytes) {
  EXPECT_EQ(EscapeXml("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &apos;d&apos;");
  EXPECT_EQ(EscapeXml("\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80"),
            "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80");
  EXPECT_EQ(EscapeXml(std::string("\x01\x00", 2)), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(EscapeXml("\xff"), "\xef\xbf\xbd");
  EXPECT_EQ(EscapeXml("\xc3"), "\xef\xbf\xbd");                                  // cut off
  EXPECT_EQ(EscapeXml("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd");                  // overlong
  EXPECT_EQ(EscapeXml("\xef\xbf\xbe"), "\xef\xbf\xbd");                          // U+FFFE
  EXPECT_EQ(EscapeXml("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // a surrogate
}

TEST(EscapeJson, ParsesBackToTheText) {
  std::string text = "\"\\/\b\n\t \x7f \xc3\xa9\xf0\x9f\x98\x80";
  for (char c = 0; c < 0x20; ++c) text += c;
  const auto json = nlohmann::json::parse("\"" + EscapeJson(text) + "\"");
  EXPECT_EQ(json.get<std::string>(), text);
  EXPECT_EQ(EscapeJson("a\xff"), "a\xef\xbf\xbd");
}

}  // namespace
}  // namespace megalith::trace
