#pragma once

// Strict reading of a request's JSON. Every error is kUsage and begins with the path of the member
// it is about: "messages[2].content: string expected, number found".

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/json_value.h"

namespace megalith::serve {

/// Numbers from `min` to `max`; NaN and infinities never pass.
struct NumberRange {
  double min;
  double max;
  bool min_open = false;  ///< `min` itself is refused
};

struct IntegerRange {
  std::int64_t min;
  std::int64_t max;
};

/// "null", "an empty list", "number 1.5", "string": what an error says it found.
std::string Describe(const text::JsonValue& value);

Result<bool> ReadBoolean(const text::JsonValue& value, std::string_view path);
Result<std::int64_t> ReadInteger(const text::JsonValue& value, std::string_view path,
                                 IntegerRange range);
Result<double> ReadNumber(const text::JsonValue& value, std::string_view path, NumberRange range);
Result<std::string> ReadString(const text::JsonValue& value, std::string_view path);
Status CheckArray(const text::JsonValue& value, std::string_view path);

/// The members of one object, remembering which were asked for. An absent member and null are the
/// same: the reading functions leave `out` as it is.
class ObjectReader {
 public:
  /// `path`: of the object itself; empty for the request body.
  static Result<ObjectReader> Create(const text::JsonValue& value, std::string path);

  /// nullptr if absent or null.
  const text::JsonValue* Find(std::string_view key);
  /// An error if absent or null.
  Result<const text::JsonValue*> Require(std::string_view key, std::string_view expected);
  Result<std::string> RequireString(std::string_view key);
  std::string PathOf(std::string_view key) const;

  template <typename Out>
  Status Boolean(std::string_view key, Out& out) {
    return Store(key, out,
                 [&](const text::JsonValue& value) { return ReadBoolean(value, PathOf(key)); });
  }
  template <typename Out>
  Status Integer(std::string_view key, IntegerRange range, Out& out) {
    return Store(key, out, [&](const text::JsonValue& value) {
      return ReadInteger(value, PathOf(key), range);
    });
  }
  template <typename Out>
  Status Number(std::string_view key, NumberRange range, Out& out) {
    return Store(key, out, [&](const text::JsonValue& value) {
      return ReadNumber(value, PathOf(key), range);
    });
  }
  template <typename Out>
  Status String(std::string_view key, Out& out) {
    return Store(key, out,
                 [&](const text::JsonValue& value) { return ReadString(value, PathOf(key)); });
  }

  /// Keys of the members that were never asked for and are not null.
  std::vector<std::string> Unread() const;

 private:
  ObjectReader(const text::JsonValue& object, std::string path)
      : object_(object), path_(std::move(path)) {}

  template <typename Out, typename Read>
  Status Store(std::string_view key, Out& out, const Read& read) {
    const text::JsonValue* value = Find(key);
    if (value == nullptr) return {};
    MEGALITH_ASSIGN_OR_RETURN(auto read_value, read(*value));
    out = std::move(read_value);
    return {};
  }

  text::JsonValue object_;  // shares its members with the caller's
  std::string path_;
  std::vector<std::string> asked_;
};

}  // namespace megalith::serve
