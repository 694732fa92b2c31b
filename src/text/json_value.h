#pragma once

// JSON for text that must come out exactly as it went in: members keep their order, integers all
// their digits, and the writers reproduce Python's json.dumps byte for byte, because the prompt
// format is defined by it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace megalith::text {

struct JsonMember;

class JsonValue {
 public:
  enum class Kind { kNull, kBoolean, kNumber, kString, kArray, kObject };

  JsonValue() = default;  ///< null
  static JsonValue Boolean(bool value);
  static JsonValue Integer(std::int64_t value);
  /// Written as Python writes a float; NaN and infinities as NaN, Infinity, -Infinity.
  static JsonValue Double(double value);
  /// `digits` as Python writes the number; not checked.
  static JsonValue Number(std::string digits);
  static JsonValue String(std::string value);
  static JsonValue Array(std::vector<JsonValue> items);
  /// A key that stands twice keeps its first place and takes its last value, as in Python.
  static JsonValue Object(std::vector<JsonMember> members);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_boolean() const { return kind() == Kind::kBoolean; }
  bool is_number() const { return kind() == Kind::kNumber; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_array() const { return kind() == Kind::kArray; }
  bool is_object() const { return kind() == Kind::kObject; }

  /// False for other kinds.
  bool boolean() const { return boolean_; }
  /// A string's contents (UTF-8), or a number as Python writes it. Empty for other kinds.
  const std::string& text() const { return text_; }
  /// Empty for other kinds than arrays, or objects.
  const std::vector<JsonValue>& items() const;
  const std::vector<JsonMember>& members() const;

  /// The member's value; nullptr if this is no object or has no such member.
  const JsonValue* Find(std::string_view key) const;

  /// A number that is an integer in the range of int64.
  std::optional<std::int64_t> AsInteger() const;

  /// Any number, rounded to double; infinite beyond its range.
  std::optional<double> AsDouble() const;

  friend bool operator==(const JsonValue&, const JsonValue&);

 private:
  struct Children;

  Kind kind_ = Kind::kNull;
  bool boolean_ = false;
  std::string text_;
  // Of arrays and objects; never changed, so copies share it.
  std::shared_ptr<const Children> children_;
};

struct JsonMember {
  std::string key;
  JsonValue value;
  friend bool operator==(const JsonMember&, const JsonMember&);
};

/// "null", "boolean", "number", "string", "array", "object".
std::string_view JsonKindName(JsonValue::Kind kind);

enum class JsonDialect {
  kStrict,  ///< RFC 8259
  kPython,  ///< what Python's json.loads takes: also NaN, Infinity, -Infinity
};

/// Nesting that ParseJson accepts; real schemas stay far below.
inline constexpr int kMaxJsonDepth = 128;

/// Reads one JSON value with nothing but white space around it. Strings must be valid UTF-8 and
/// surrogate escapes paired. Errors: kBadFile for text that is not JSON, kOutOfRange for nesting
/// deeper than kMaxJsonDepth; the message says at which byte.
Result<JsonValue> ParseJson(std::string_view text, JsonDialect dialect = JsonDialect::kStrict);

/// json.dumps(value, ensure_ascii=False): ", " and ": ", members in their order.
std::string WritePythonJson(const JsonValue& value);

/// json.dumps(value, ensure_ascii=False, separators=(",", ":")): members in their order.
std::string WriteCompactJson(const JsonValue& value);

/// json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True): members sorted by
/// code point at every level.
std::string WriteCompactSortedJson(const JsonValue& value);

/// Appends text as it stands between the quotes of a JSON string: quote, backslash and characters
/// below U+0020 escaped, everything else as it is. A text may be escaped in parts.
void AppendJsonEscaped(std::string_view text, std::string& out);

/// Python's repr(float): shortest digits that read back the same, "1.0", "1e+16", "1e-05".
std::string PythonFloatRepr(double value);

}  // namespace megalith::text
