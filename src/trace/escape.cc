#include "trace/escape.h"

#include <fmt/format.h>

#include <cstdint>

namespace megalith::trace {
namespace {

constexpr std::uint32_t kReplacement = 0xfffd;
constexpr std::string_view kReplacementBytes = "\xef\xbf\xbd";

struct CodePoint {
  std::uint32_t value;
  std::string_view bytes;  // as in the text
};

/// Takes the next code point off the front of a text that is not empty; one bad byte counts as
/// kReplacement.
CodePoint Next(std::string_view& text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  std::size_t length = 1;
  std::uint32_t value = lead;
  std::uint32_t least = 0;
  if (lead >= 0xc2 && lead < 0xe0) {
    length = 2;
    value = lead & 0x1fU;
    least = 0x80;
  } else if (lead >= 0xe0 && lead < 0xf0) {
    length = 3;
    value = lead & 0x0fU;
    least = 0x800;
  } else if (lead >= 0xf0 && lead < 0xf5) {
    length = 4;
    value = lead & 0x07U;
    least = 0x10000;
  }
  bool good = lead < 0x80 || length > 1;
  good = good && length <= text.size();
  for (std::size_t i = 1; good && i < length; ++i) {
    good = (byte(i) & 0xc0U) == 0x80;
    value = value << 6U | (byte(i) & 0x3fU);
  }
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  if (!good || value < least || surrogate || value > 0x10ffff) {
    text.remove_prefix(1);
    return {kReplacement, kReplacementBytes};
  }
  const CodePoint point{value, text.substr(0, length)};
  text.remove_prefix(length);
  return point;
}

}  // namespace

std::string EscapeJson(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const CodePoint point = Next(text);
    if (point.value == '"' || point.value == '\\') {
      out += '\\';
      out += point.bytes;
    } else if (point.value < 0x20) {
      out += fmt::format("\\u{:04x}", point.value);
    } else {
      out += point.bytes;
    }
  }
  return out;
}

std::string EscapeXml(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const CodePoint point = Next(text);
    switch (point.value) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&apos;";
        break;
      default: {
        const bool allowed =
            point.value == '\t' || point.value == '\n' || point.value == '\r' ||
            (point.value >= 0x20 && point.value != 0xfffe && point.value != 0xffff);
        out += allowed ? point.bytes : kReplacementBytes;
      }
    }
  }
  return out;
}

}  // namespace megalith::trace
