#include "text/grammar/pattern.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "text/grammar/code_point_dfa.h"
#include "text/grammar/string_format.h"
#include "text/text_test_util.h"

namespace megalith::text::grammar {
namespace {

CodePointDfa Dfa(std::string_view pattern) { return ValueOf(CompilePattern(pattern)); }

std::string PatternError(std::string_view pattern) {
  const auto dfa = CompilePattern(pattern);
  if (dfa) return "";
  return std::string(ErrorCodeName(dfa.error().code)) + ": " + dfa.error().message;
}

TEST(Pattern, AgreesWithStandardLibraryOnRandomStrings) {
  TestRandom random(1);
  for (const std::string pattern : {"^abc$",
                                    "b",
                                    "^a",
                                    "c$",
                                    "^$",
                                    "",
                                    "a*",
                                    "^a*$",
                                    "^(ab|c)+$",
                                    "^a{2}b{1,3}c{2,}$",
                                    "^[abc]+$",
                                    "^[^abc]+$",
                                    "^[a-b1-2]{2,4}$",
                                    "^\\d+(\\.\\d{1,2})?$",
                                    "\\w\\W\\w",
                                    "^\\s*\\S",
                                    "^(?:a|ab)(?:c|bcd)?$",
                                    "^a+?b*?$",
                                    "^.a.$",
                                    "a|^b|c$|^1$",
                                    "^((a|b)*c|1)*$",
                                    "[.]",
                                    "\\.",
                                    "^[\\w-]+$",
                                    "^[a\\]]+$",
                                    "^a\\x62\\u0063$",
                                    "(?:(?:)|a)b",
                                    "^(a|b|)$",
                                    "\\/",
                                    "^[-a]$",
                                    "^[a-]$",
                                    "^\\[a\\]$",
                                    "^a{0}b$",
                                    "^(a{0,2}){2}$",
                                    "a{1,}c"}) {
    const CodePointDfa dfa = Dfa(pattern);
    const std::regex expected(pattern, std::regex::ECMAScript);
    for (int i = 0; i < 2000; ++i) {
      std::string text;
      for (std::size_t n = random.Below(8); n > 0; --n) {
        text.push_back(random.Pick(std::string_view("aaabbbccc112.- ]/[d\n")));
      }
      ASSERT_EQ(dfa.Accepts(text), std::regex_search(text, expected))
          << "pattern " << pattern << " text \"" << text << '"';
    }
  }
}

TEST(Pattern, CharactersBeyondAsciiAreSingleCharacters) {
  EXPECT_TRUE(Dfa("^.$").Accepts("é"));
  EXPECT_TRUE(Dfa("^.$").Accepts("😀"));
  EXPECT_FALSE(Dfa("^.$").Accepts("éé"));
  EXPECT_FALSE(Dfa("^.$").Accepts("\n"));
  EXPECT_FALSE(Dfa("^.$").Accepts("\u2028"));
  EXPECT_TRUE(Dfa("^[а-я]{2}$").Accepts("да"));
  EXPECT_FALSE(Dfa("^[^а-я]$").Accepts("д"));
  EXPECT_TRUE(Dfa("^\\u{1F600}\\ud83d\\ude00$").Accepts("😀😀"));
  EXPECT_TRUE(Dfa("^\\s$").Accepts("\u3000"));
  EXPECT_TRUE(Dfa("^(?<year>\\d{4})$").Accepts("2024"));
}

TEST(Pattern, WhatIsNotSupportedIsRefusedByName) {
  EXPECT_EQ(PatternError("^a(?=b)"),
            "unsupported: byte 3 of the pattern: look-ahead, look-behind or flags");
  EXPECT_EQ(PatternError("(?<!a)b"),
            "unsupported: byte 1 of the pattern: look-ahead, look-behind or flags");
  EXPECT_EQ(PatternError("(a)\\1"), "unsupported: byte 5 of the pattern: a back-reference");
  EXPECT_EQ(PatternError("\\bword"), "unsupported: byte 2 of the pattern: \\b");
  EXPECT_EQ(PatternError("\\p{L}"), "unsupported: byte 2 of the pattern: this escape");
  EXPECT_EQ(PatternError("a^b"),
            "unsupported: byte 1 of the pattern: '^' that does not begin the pattern");
  EXPECT_EQ(PatternError("a$b"),
            "unsupported: byte 2 of the pattern: '$' that does not end the pattern");
  EXPECT_EQ(PatternError("(a$)"),
            "unsupported: byte 2 of the pattern: '$' that does not end the pattern");
  EXPECT_EQ(PatternError("(a"), "usage: byte 2 of the pattern: ')' expected, the pattern ends");
  EXPECT_EQ(PatternError("a)"), "usage: byte 1 of the pattern: ')' without '('");
  EXPECT_EQ(PatternError("[a"), "usage: byte 2 of the pattern: ']' expected, the pattern ends");
  EXPECT_EQ(PatternError("*a"),
            "usage: byte 0 of the pattern: a quantifier with nothing before it");
  EXPECT_EQ(PatternError("a**"), "usage: byte 2 of the pattern: a quantifier behind a quantifier");
  EXPECT_EQ(PatternError("a{3,2}"),
            "usage: byte 6 of the pattern: a quantifier whose numbers are out of order");
  EXPECT_EQ(PatternError("[z-a]"),
            "usage: byte 4 of the pattern: a range whose ends are out of order");
  EXPECT_EQ(PatternError("\\"), "usage: byte 1 of the pattern: a character expected behind '\\'");
  EXPECT_EQ(PatternError("\\ud800"), "unsupported: byte 6 of the pattern: half a surrogate pair");
}

TEST(Pattern, TooLargeOnesAreRefusedInTime) {
  EXPECT_NE(PatternError("(((a{1000}){1000}){1000})"), "");
  EXPECT_NE(PatternError("(a|b)*a(a|b){20}"), "");
  EXPECT_NE(PatternError("(a?){4096}(a?){4096}"), "");
  EXPECT_NE(PatternError(std::string(200, '(')), "");
  EXPECT_NE(PatternError(std::string(5000, 'a')), "");
  EXPECT_NE(PatternError("a{99999999999999999999}"), "");
}

TEST(CodePointDfa, IntersectionAcceptsWhatBothAccept) {
  const CodePointDfa both = ValueOf(Intersect(Dfa("^a"), Dfa("b$")));
  EXPECT_TRUE(both.Accepts("ab"));
  EXPECT_TRUE(both.Accepts("axb"));
  EXPECT_FALSE(both.Accepts("a"));
  EXPECT_FALSE(both.Accepts("b"));
}

TEST(CodePointDfa, LengthIsCountedInCharacters) {
  const CodePointDfa dfa = ValueOf(LimitLength(Dfa("^é*$"), 2, 3));
  EXPECT_FALSE(dfa.Accepts("é"));
  EXPECT_TRUE(dfa.Accepts("éé"));
  EXPECT_TRUE(dfa.Accepts("ééé"));
  EXPECT_FALSE(dfa.Accepts("éééé"));
  EXPECT_TRUE(ValueOf(LimitLength(Dfa("^é*$"), 2, std::nullopt)).Accepts("éééééé"));
}

TEST(CodePointDfa, AllButRefusesOnlyThoseTexts) {
  const CodePointDfa dfa = AllBut({"a", "ab", "é"});
  for (const std::string_view text : {"a", "ab", "é"}) EXPECT_FALSE(dfa.Accepts(text)) << text;
  for (const std::string_view text : {"", "b", "abc", "ac", "éa", "x"}) {
    EXPECT_TRUE(dfa.Accepts(text)) << text;
  }
}

struct FormatCase {
  std::string_view format;
  std::vector<std::string_view> valid;
  std::vector<std::string_view> invalid;
};

TEST(StringFormat, ValidAndInvalidExamples) {
  const FormatCase cases[] = {
      {"date",
       {"2024-02-29", "2000-02-29", "2023-12-31", "0001-04-30"},
       {"2023-02-29", "1900-02-29", "2024-02-30", "2023-04-31", "2023-13-01", "2023-00-01",
        "2023-01-00", "2023-1-1", " 2023-01-01"}},
      {"time", {"00:00:00Z", "23:59:59.123+05:30"}, {"24:00:00Z", "12:00:00", "12:60:00Z"}},
      {"date-time", {"2024-02-29T12:00:00Z"}, {"2024-02-29 12:00:00Z", "2023-02-29T12:00:00Z"}},
      {"duration", {"P1Y2M3DT4H5M6S", "PT1M", "P2W", "P1D"}, {"P", "PT", "1D", "P1S", "P1Y3D"}},
      {"uuid", {"123e4567-e89b-12d3-a456-426614174000"}, {"123e4567e89b12d3a456426614174000"}},
      {"ipv4", {"0.0.0.0", "255.249.199.9"}, {"256.1.1.1", "1.1.1", "01.1.1.1"}},
      {"ipv6",
       {"::", "::1", "1::", "fe80::1:2", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::"},
       {":", "1:2", ":::", "1::2::3", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7::8", "12345::"}},
      {"hostname", {"a", "example.com", "a-b.c"}, {"", "-a", "a-", "a..b", ".a"}},
      {"email", {"a@b.c", "first.last+tag@example.com"}, {"a", "@b", "a@", "a..b@c", "a b@c"}},
      {"uri", {"http://a", "https://a.b:80/c/%20?d=e&f#g"}, {"a", "http:", "http://a b", "://a"}},
  };
  for (const FormatCase& format : cases) {
    const CodePointDfa dfa = Dfa(PatternOfFormat(format.format).value());
    for (const auto text : format.valid) EXPECT_TRUE(dfa.Accepts(text)) << format.format << text;
    for (const auto text : format.invalid) EXPECT_FALSE(dfa.Accepts(text)) << format.format << text;
  }
  EXPECT_EQ(PatternOfFormat("regex"), std::nullopt);
}

TEST(StringFormat, NamesOfHostsAndMailboxesAreBounded) {
  const auto labels = [](int count, std::size_t size) {
    std::string host(size, 'a');
    for (int i = 1; i < count; ++i) host += "." + std::string(size, 'a');
    return host;
  };
  const CodePointDfa host = Dfa(PatternOfFormat("hostname").value());
  EXPECT_TRUE(host.Accepts(labels(6, 41)));
  EXPECT_FALSE(host.Accepts(labels(7, 1)));
  EXPECT_FALSE(host.Accepts(labels(1, 42)));
  const CodePointDfa email = Dfa(PatternOfFormat("email").value());
  EXPECT_TRUE(email.Accepts(std::string(64, 'a') + "@" + labels(5, 37)));
  EXPECT_FALSE(email.Accepts(std::string(65, 'a') + "@b"));
  EXPECT_FALSE(email.Accepts("a@" + labels(6, 1)));
  EXPECT_TRUE(email.Accepts(labels(32, 1) + "@b"));
  EXPECT_FALSE(email.Accepts(labels(33, 1) + "@b"));
  EXPECT_FALSE(email.Accepts(labels(2, 33) + "@b"));
  // Where the length is limited, the parts need not be.
  EXPECT_TRUE(Dfa(PatternOfFormat("hostname", 64).value()).Accepts(labels(7, 1)));
  EXPECT_FALSE(Dfa(PatternOfFormat("hostname", 65).value()).Accepts(labels(7, 1)));
  EXPECT_TRUE(Dfa(PatternOfFormat("email", 64).value()).Accepts("a@" + labels(6, 1)));
  EXPECT_FALSE(Dfa(PatternOfFormat("email", 64).value()).Accepts("a..b@c"));
  EXPECT_FALSE(Dfa(PatternOfFormat("email", 65).value()).Accepts("a@" + labels(6, 1)));
}

}  // namespace
}  // namespace megalith::text::grammar
