#pragma once

// Shorthand for the JSON that answers are made of.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "text/json_value.h"

namespace megalith::serve {

using text::JsonMember;
using text::JsonValue;

inline JsonValue Json(std::string value) { return JsonValue::String(std::move(value)); }
inline JsonValue Json(std::string_view value) { return JsonValue::String(std::string(value)); }
inline JsonValue Json(const char* value) { return JsonValue::String(value); }
inline JsonValue Json(bool value) { return JsonValue::Boolean(value); }
inline JsonValue Json(std::int64_t value) { return JsonValue::Integer(value); }
inline JsonValue Json(int value) { return JsonValue::Integer(value); }
inline JsonValue Json(std::size_t value) {
  return JsonValue::Integer(static_cast<std::int64_t>(value));
}
/// null unless finite: JSON has no other numbers.
JsonValue Json(double value);
JsonValue Json(std::vector<std::string> values);
inline JsonValue Json(JsonValue value) { return value; }

inline JsonValue JsonArray(std::vector<JsonValue> items = {}) {
  return JsonValue::Array(std::move(items));
}
inline JsonValue JsonObject(std::vector<JsonMember> members = {}) {
  return JsonValue::Object(std::move(members));
}

}  // namespace megalith::serve
