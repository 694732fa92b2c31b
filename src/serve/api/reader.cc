#include "serve/api/reader.h"

#include <algorithm>
#include <cmath>

namespace megalith::serve {
namespace {

std::string_view Article(text::JsonValue::Kind kind) {
  return kind == text::JsonValue::Kind::kArray || kind == text::JsonValue::Kind::kObject ? "an "
                                                                                         : "a ";
}

// A number as a message shows it: requests may hold thousands of digits.
std::string ShortNumber(const std::string& digits) {
  constexpr std::size_t kMaxDigits = 32;
  return digits.size() <= kMaxDigits ? digits : digits.substr(0, kMaxDigits) + "...";
}

template <typename T>
Result<T> Expected(std::string_view path, std::string_view expected, const text::JsonValue& found) {
  return Fail(ErrorCode::kUsage, "{}: {} expected, {} found", path, expected, Describe(found));
}

}  // namespace

std::string Describe(const text::JsonValue& value) {
  if (value.is_null()) return "null";
  if (value.is_number()) return "number " + ShortNumber(value.text());
  if (value.is_boolean()) return value.boolean() ? "true" : "false";
  return std::string(Article(value.kind())) + std::string(JsonKindName(value.kind()));
}

Result<bool> ReadBoolean(const text::JsonValue& value, std::string_view path) {
  if (!value.is_boolean()) return Expected<bool>(path, "boolean", value);
  return value.boolean();
}

Result<std::int64_t> ReadInteger(const text::JsonValue& value, std::string_view path,
                                 IntegerRange range) {
  const auto number = value.AsInteger();
  if (!number || *number < range.min || *number > range.max) {
    return Expected<std::int64_t>(path, fmt::format("integer from {} to {}", range.min, range.max),
                                  value);
  }
  return *number;
}

Result<double> ReadNumber(const text::JsonValue& value, std::string_view path, NumberRange range) {
  const auto number = value.AsDouble();
  // Written so that NaN fails.
  const bool fits = number && std::isfinite(*number) && *number <= range.max &&
                    (range.min_open ? *number > range.min : *number >= range.min);
  if (!fits) {
    return Expected<double>(
        path,
        fmt::format("number {} {} and at most {}", range.min_open ? "above" : "of at least",
                    range.min, range.max),
        value);
  }
  return *number;
}

Result<std::string> ReadString(const text::JsonValue& value, std::string_view path) {
  if (!value.is_string()) return Expected<std::string>(path, "string", value);
  return value.text();
}

Status CheckArray(const text::JsonValue& value, std::string_view path) {
  if (!value.is_array()) return Expected<void>(path, "array", value);
  return {};
}

Result<ObjectReader> ObjectReader::Create(const text::JsonValue& value, std::string path) {
  if (!value.is_object()) {
    return Expected<ObjectReader>(path.empty() ? "request body" : path, "object", value);
  }
  return ObjectReader(value, std::move(path));
}

const text::JsonValue* ObjectReader::Find(std::string_view key) {
  asked_.emplace_back(key);
  const text::JsonValue* value = object_.Find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<const text::JsonValue*> ObjectReader::Require(std::string_view key,
                                                     std::string_view expected) {
  const text::JsonValue* value = Find(key);
  if (value == nullptr) {
    return Fail(ErrorCode::kUsage, "{}: {} expected, nothing found", PathOf(key), expected);
  }
  return value;
}

Result<std::string> ObjectReader::RequireString(std::string_view key) {
  MEGALITH_ASSIGN_OR_RETURN(const text::JsonValue* value, Require(key, "string"));
  return ReadString(*value, PathOf(key));
}

std::string ObjectReader::PathOf(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

std::vector<std::string> ObjectReader::Unread() const {
  std::vector<std::string> unread;
  for (const text::JsonMember& member : object_.members()) {
    if (member.value.is_null()) continue;
    if (std::find(asked_.begin(), asked_.end(), member.key) == asked_.end()) {
      unread.push_back(member.key);
    }
  }
  return unread;
}

}  // namespace megalith::serve
