#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "text/json_value.h"

namespace megalith::text {
namespace {

struct JsonStyle {
  std::string_view item_separator;
  std::string_view key_separator;
  bool sort_keys;
};

void AppendString(std::string_view text, std::string& out) {
  out.push_back('"');
  AppendJsonEscaped(text, out);
  out.push_back('"');
}

// Recursion is bounded: values come from parsers that limit nesting.
void AppendValue(const JsonValue& value, const JsonStyle& style, std::string& out);

void AppendMembers(const JsonValue& object, const JsonStyle& style, std::string& out) {
  std::vector<const JsonMember*> members;
  for (const JsonMember& member : object.members()) members.push_back(&member);
  if (style.sort_keys) {
    // Bytes of UTF-8 sort like code points; char_traits<char> compares bytes as unsigned.
    std::sort(members.begin(), members.end(),
              [](const JsonMember* a, const JsonMember* b) { return a->key < b->key; });
  }
  out.push_back('{');
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (i > 0) out.append(style.item_separator);
    AppendString(members[i]->key, out);
    out.append(style.key_separator);
    AppendValue(members[i]->value, style, out);
  }
  out.push_back('}');
}

void AppendValue(const JsonValue& value, const JsonStyle& style, std::string& out) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      out.append("null");
      return;
    case JsonValue::Kind::kBoolean:
      out.append(value.boolean() ? "true" : "false");
      return;
    case JsonValue::Kind::kNumber:
      out.append(value.text());
      return;
    case JsonValue::Kind::kString:
      AppendString(value.text(), out);
      return;
    case JsonValue::Kind::kArray:
      out.push_back('[');
      for (std::size_t i = 0; i < value.items().size(); ++i) {
        if (i > 0) out.append(style.item_separator);
        AppendValue(value.items()[i], style, out);
      }
      out.push_back(']');
      return;
    case JsonValue::Kind::kObject:
      AppendMembers(value, style, out);
      return;
  }
}

}  // namespace

std::string WritePythonJson(const JsonValue& value) {
  std::string out;
  AppendValue(value, {", ", ": ", false}, out);
  return out;
}

std::string WriteCompactJson(const JsonValue& value) {
  std::string out;
  AppendValue(value, {",", ":", false}, out);
  return out;
}

std::string WriteCompactSortedJson(const JsonValue& value) {
  std::string out;
  AppendValue(value, {",", ":", true}, out);
  return out;
}

void AppendJsonEscaped(std::string_view text, std::string& out) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out.append("\\\"");
        break;
      case '\\':
        out.append("\\\\");
        break;
      case '\n':
        out.append("\\n");
        break;
      case '\r':
        out.append("\\r");
        break;
      case '\t':
        out.append("\\t");
        break;
      case '\b':
        out.append("\\b");
        break;
      case '\f':
        out.append("\\f");
        break;
      default:
        if (static_cast<std::uint8_t>(c) < 0x20) {
          out.append(fmt::format("\\u{:04x}", static_cast<std::uint8_t>(c)));
        } else {
          out.push_back(c);
        }
    }
  }
}

std::string PythonFloatRepr(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  // "-d.ddde-XX": the shortest digits that read back the same.
  std::array<char, 32> buffer;
  const auto written = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                     std::chars_format::scientific);
  std::string_view text(buffer.data(), static_cast<std::size_t>(written.ptr - buffer.data()));
  std::string out;
  if (text.front() == '-') {
    out.push_back('-');
    text.remove_prefix(1);
  }
  const std::size_t mark = text.find('e');
  std::string digits(text.substr(0, mark));
  if (digits.size() > 1) digits.erase(1, 1);
  const std::string_view sign_and_power = text.substr(mark + 1);
  int power = 0;
  std::from_chars(sign_and_power.data() + 1, sign_and_power.data() + sign_and_power.size(), power);
  if (sign_and_power.front() == '-') power = -power;

  if (power < -4 || power >= 16) {
    out.push_back(digits.front());
    if (digits.size() > 1) out.append(".").append(digits, 1);
    out.append(fmt::format("e{}{:02}", power < 0 ? '-' : '+', std::abs(power)));
  } else if (power < 0) {
    out.append("0.").append(static_cast<std::size_t>(-power - 1), '0').append(digits);
  } else {
    const auto num_whole = static_cast<std::size_t>(power) + 1;
    if (digits.size() < num_whole) digits.append(num_whole - digits.size(), '0');
    out.append(digits, 0, num_whole).append(".");
    out.append(digits.size() > num_whole ? digits.substr(num_whole) : "0");
  }
  return out;
}

}  // namespace megalith::text
