#include <charconv>
#include <limits>

#include "text/json_value.h"
#include "text/utf8.h"

namespace megalith::text {
namespace {

// The value of a decimal float. from_chars refuses what lies outside the range of double; Python
// reads it as infinity or zero.
double ReadDouble(std::string_view digits) {
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc()) return value;
  // Out of range: decide by the decimal exponent of the first digit that is not zero.
  const bool negative = digits.front() == '-';
  const std::size_t mark = std::min(digits.find_first_of("eE"), digits.size());
  const std::string_view mantissa = digits.substr(0, mark);
  const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
  const std::size_t leading = mantissa.find_first_of("123456789");
  bool large = false;
  if (mark < digits.size()) {
    std::string_view exponent = digits.substr(mark + 1);
    if (exponent.front() == '+') exponent.remove_prefix(1);
    std::int64_t power = 0;
    const auto power_end =
        std::from_chars(exponent.data(), exponent.data() + exponent.size(), power);
    if (power_end.ec != std::errc()) {
      large = exponent.front() != '-';
    } else {
      large = power + static_cast<std::int64_t>(point) - static_cast<std::int64_t>(leading) > 0;
    }
  } else {
    large = leading < point;
  }
  const double magnitude = large ? std::numeric_limits<double>::infinity() : 0.0;
  return negative ? -magnitude : magnitude;
}

class Parser {
 public:
  Parser(std::string_view text, JsonDialect dialect) : text_(text), dialect_(dialect) {}

  Result<JsonValue> Parse() {
    SkipSpace();
    MEGALITH_ASSIGN_OR_RETURN(JsonValue value, ParseValue(0));
    SkipSpace();
    if (offset_ != text_.size()) return Expected("the end of the text");
    return value;
  }

 private:
  tl::unexpected<Error> Expected(std::string_view what) const {
    if (offset_ >= text_.size()) {
      return Fail(ErrorCode::kBadFile, "JSON byte {}: {} expected, the text ends", offset_, what);
    }
    return Fail(ErrorCode::kBadFile, "JSON byte {}: {} expected, byte 0x{:02X} found", offset_,
                what, static_cast<std::uint8_t>(text_[offset_]));
  }

  void SkipSpace() {
    while (offset_ < text_.size() &&
           std::string_view(" \t\n\r").find(text_[offset_]) != std::string_view::npos) {
      ++offset_;
    }
  }

  bool Take(char c) {
    if (offset_ >= text_.size() || text_[offset_] != c) return false;
    ++offset_;
    return true;
  }

  bool TakeWord(std::string_view word) {
    if (!text_.substr(offset_).starts_with(word)) return false;
    offset_ += word.size();
    return true;
  }

  bool TakeDigits() {
    const std::size_t begin = offset_;
    while (offset_ < text_.size() && text_[offset_] >= '0' && text_[offset_] <= '9') ++offset_;
    return offset_ > begin;
  }

  // `depth`: arrays and objects around the value.
  Result<JsonValue> ParseValue(int depth) {
    if (offset_ >= text_.size()) return Expected("a value");
    switch (text_[offset_]) {
      case '{':
      case '[':
        if (depth == kMaxJsonDepth) {
          return Fail(ErrorCode::kOutOfRange, "JSON byte {}: nesting of at most {} levels expected",
                      offset_, kMaxJsonDepth);
        }
        return text_[offset_] == '{' ? ParseObject(depth + 1) : ParseArray(depth + 1);
      case '"': {
        MEGALITH_ASSIGN_OR_RETURN(std::string text, ParseString());
        return JsonValue::String(std::move(text));
      }
      case 't':
        if (TakeWord("true")) return JsonValue::Boolean(true);
        break;
      case 'f':
        if (TakeWord("false")) return JsonValue::Boolean(false);
        break;
      case 'n':
        if (TakeWord("null")) return JsonValue();
        break;
      default:
        break;
    }
    if (dialect_ == JsonDialect::kPython) {
      for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
        if (TakeWord(word)) return JsonValue::Number(std::string(word));
      }
    }
    return ParseNumber();
  }

  Result<JsonValue> ParseNumber() {
    const std::size_t begin = offset_;
    bool is_float = false;
    Take('-');
    if (!Take('0') && !TakeDigits()) {
      if (offset_ == begin) return Expected("a value");
      return Expected("a digit");
    }
    if (Take('.')) {
      is_float = true;
      if (!TakeDigits()) return Expected("a digit");
    }
    if (Take('e') || Take('E')) {
      is_float = true;
      if (!Take('+')) Take('-');
      if (!TakeDigits()) return Expected("a digit");
    }
    const std::string_view digits = text_.substr(begin, offset_ - begin);
    if (is_float) return JsonValue::Double(ReadDouble(digits));
    if (digits == "-0") return JsonValue::Number("0");
    return JsonValue::Number(std::string(digits));
  }

  Result<std::uint32_t> ParseHexUnit() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      std::uint32_t digit = 16;
      if (offset_ < text_.size()) {
        const char c = text_[offset_];
        if (c >= '0' && c <= '9') digit = static_cast<std::uint32_t>(c - '0');
        if (c >= 'a' && c <= 'f') digit = static_cast<std::uint32_t>(c - 'a' + 10);
        if (c >= 'A' && c <= 'F') digit = static_cast<std::uint32_t>(c - 'A' + 10);
      }
      if (digit == 16) return Expected("a hexadecimal digit");
      value = value * 16 + digit;
      ++offset_;
    }
    return value;
  }

  // Behind "\u".
  Status ParseUnicodeEscape(std::string& out) {
    MEGALITH_ASSIGN_OR_RETURN(char32_t code_point, ParseHexUnit());
    if (code_point >= 0xDC00 && code_point <= 0xDFFF) {
      return Expected("a high surrogate before the low one");
    }
    if (code_point >= 0xD800 && code_point <= 0xDBFF) {
      if (!TakeWord("\\u")) return Expected("the escape of a low surrogate");
      MEGALITH_ASSIGN_OR_RETURN(const char32_t low, ParseHexUnit());
      if (low < 0xDC00 || low > 0xDFFF) return Expected("a low surrogate");
      code_point = 0x10000 + ((code_point - 0xD800) << 10) + (low - 0xDC00);
    }
    AppendUtf8(code_point, out);
    return {};
  }

  // At the opening quote.
  Result<std::string> ParseString() {
    ++offset_;
    std::string out;
    for (;;) {
      if (offset_ >= text_.size()) return Expected("the closing quote");
      const char c = text_[offset_];
      if (c == '"') {
        ++offset_;
        return out;
      }
      if (static_cast<std::uint8_t>(c) < 0x20) return Expected("an escaped control character");
      if (c != '\\') {
        const Utf8Step step = DecodeUtf8(text_, offset_);
        if (!step.valid) return Expected("valid UTF-8");
        out.append(text_, offset_, step.length_bytes);
        offset_ += step.length_bytes;
        continue;
      }
      ++offset_;
      constexpr std::string_view kShort = "\"\\/bfnrt";
      constexpr std::string_view kMeaning = "\"\\/\b\f\n\r\t";
      if (Take('u')) {
        MEGALITH_RETURN_IF_ERROR(ParseUnicodeEscape(out));
      } else if (offset_ < text_.size() && kShort.find(text_[offset_]) != std::string_view::npos) {
        out.push_back(kMeaning[kShort.find(text_[offset_])]);
        ++offset_;
      } else {
        return Expected("an escape sequence");
      }
    }
  }

  // At the opening bracket.
  Result<JsonValue> ParseArray(int depth) {
    ++offset_;
    std::vector<JsonValue> items;
    SkipSpace();
    if (Take(']')) return JsonValue::Array(std::move(items));
    for (;;) {
      SkipSpace();
      MEGALITH_ASSIGN_OR_RETURN(JsonValue item, ParseValue(depth));
      items.push_back(std::move(item));
      SkipSpace();
      if (Take(']')) return JsonValue::Array(std::move(items));
      if (!Take(',')) return Expected("',' or ']'");
    }
  }

  // At the opening brace.
  Result<JsonValue> ParseObject(int depth) {
    ++offset_;
    std::vector<JsonMember> members;
    SkipSpace();
    if (Take('}')) return JsonValue::Object(std::move(members));
    for (;;) {
      SkipSpace();
      if (offset_ >= text_.size() || text_[offset_] != '"') return Expected("a member's name");
      MEGALITH_ASSIGN_OR_RETURN(std::string key, ParseString());
      SkipSpace();
      if (!Take(':')) return Expected("':'");
      SkipSpace();
      MEGALITH_ASSIGN_OR_RETURN(JsonValue value, ParseValue(depth));
      members.push_back({std::move(key), std::move(value)});
      SkipSpace();
      if (Take('}')) return JsonValue::Object(std::move(members));
      if (!Take(',')) return Expected("',' or '}'");
    }
  }

  std::string_view text_;
  JsonDialect dialect_;
  std::size_t offset_ = 0;
};

}  // namespace

Result<JsonValue> ParseJson(std::string_view text, JsonDialect dialect) {
  return Parser(text, dialect).Parse();
}

}  // namespace megalith::text
