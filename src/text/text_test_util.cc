#include "text/text_test_util.h"

#include <nlohmann/json.hpp>

namespace megalith::text {

const Tokenizer& ReleasedTokenizer() {
  static const Tokenizer tokenizer = [] {
    const auto spec = nlohmann::json::parse(ReadTestFile(GoldenDir() / "spec.json"));
    const nlohmann::json config = {{"added_tokens_decoder", spec["added_tokens"]}};
    return ValueOf(
        Tokenizer::FromFiles(ReadTestFile(GoldenDir() / "tiktoken.model"), config.dump(), 163840));
  }();
  return tokenizer;
}

const Tokenizer& NanoTokenizer() {
  static const Tokenizer tokenizer = ValueOf(Tokenizer::Load(NanoDir(), 4096));
  return tokenizer;
}

std::string RandomText(TestRandom& random, std::size_t num_characters) {
  // Ranges of code points, each interesting to some alternative of the pattern.
  static constexpr struct {
    char32_t first;
    char32_t last;
  } kRanges[] = {{'a', 'z'},         {'a', 'e'},          {'A', 'Z'},         {'0', '9'},
                 {' ', ' '},         {' ', ' '},          {'\n', '\n'},       {'\r', '\r'},
                 {'\t', '\r'},       {0x1C, 0x1F},        {0x80, 0xA0},       {0x2000, 0x200B},
                 {0x2028, 0x2029},   {0x3000, 0x3007},    {'!', '/'},         {'\'', '\''},
                 {':', '@'},         {0xAA, 0xBF},        {0xC0, 0x24F},      {0x17F, 0x17F},
                 {0x1C5, 0x1CC},     {0x2B0, 0x2FF},      {0x300, 0x36F},     {0x400, 0x4FF},
                 {0x5D0, 0x6FF},     {0x900, 0x97F},      {0xE00, 0xE7F},     {0x1100, 0x11FF},
                 {0x16EE, 0x16F0},   {0x1F88, 0x1FFF},    {0x2019, 0x2019},   {0x2150, 0x2189},
                 {0x2460, 0x24FF},   {0x2E80, 0x2FD5},    {0x3021, 0x303B},   {0x3040, 0x30FF},
                 {0x3220, 0x3247},   {0x4E00, 0x9FFF},    {0x4E00, 0x4E10},   {0xAC00, 0xD7A3},
                 {0xE000, 0xE010},   {0xF900, 0xFAFF},    {0xFE00, 0xFE0F},   {0x10400, 0x1044F},
                 {0x16FE0, 0x16FF1}, {0x1D400, 0x1D7FF},  {0x1F300, 0x1F64F}, {0x20000, 0x20010},
                 {0xE0100, 0xE0110}, {0x10FFF0, 0x10FFFF}};
  static constexpr std::string_view kFragments[] = {"'s", "'T",      "'rE",  "'VE", "'m", "'LL",
                                                    "'d", "'\u017F", "\r\n", "  ",  "n't"};
  std::string text;
  while (num_characters > 0) {
    if (random.Below(12) == 0) {
      text += random.Pick(kFragments);
      --num_characters;
      continue;
    }
    const auto& range = random.Pick(kRanges);
    for (std::size_t run = 1 + random.Below(random.Below(8) == 0 ? 12 : 3);
         run > 0 && num_characters > 0; --run, --num_characters) {
      AppendUtf8(range.first + static_cast<char32_t>(random.Below(range.last - range.first + 1)),
                 text);
    }
  }
  return text;
}

std::string RandomBytes(TestRandom& random, std::size_t num_bytes) {
  static constexpr std::string_view kFragments[] = {
      "\xFF",         "\xC0\x80",         "\x80",
      "\xE0\x80\x80", "\xED\xA0\x80",     "\xF4\x90\x80\x80",
      "\xF0\x9F\x98", "\xF0\x9F",         "\xE2\x82",
      "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xC3",
      "\xC3\xA9",     "\xF0\x80\x80",     "\xF8",
      "\xED\x9F\xBF", "\xEF\xBF\xBD",     "abc"};
  std::string bytes;
  while (bytes.size() < num_bytes) {
    switch (random.Below(4)) {
      case 0:
        bytes.push_back(static_cast<char>(random.Below(256)));
        break;
      case 1:
        bytes += RandomText(random, 1 + random.Below(3));
        break;
      default:
        bytes += random.Pick(kFragments);
    }
  }
  return bytes;
}

}  // namespace megalith::text
