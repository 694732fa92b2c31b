#include "text/json_nlohmann.h"

#include <charconv>
#include <nlohmann/json.hpp>

namespace megalith::text {
namespace {

// `depth`: arrays and objects around the value.
template <typename Json>
Result<JsonValue> Convert(const Json& json, int depth) {
  if (json.is_structured() && depth == kMaxJsonDepth) {
    return Fail(ErrorCode::kOutOfRange, "JSON nesting of at most {} levels expected",
                kMaxJsonDepth);
  }
  switch (json.type()) {
    case Json::value_t::null:
      return JsonValue();
    case Json::value_t::boolean:
      return JsonValue::Boolean(json.template get<bool>());
    case Json::value_t::number_integer:
      return JsonValue::Integer(json.template get<std::int64_t>());
    case Json::value_t::number_unsigned:
      return JsonValue::Number(std::to_string(json.template get<std::uint64_t>()));
    case Json::value_t::number_float:
      return JsonValue::Double(json.template get<double>());
    case Json::value_t::string:
      return JsonValue::String(json.template get_ref<const std::string&>());
    case Json::value_t::array: {
      std::vector<JsonValue> items;
      for (const Json& item : json) {
        MEGALITH_ASSIGN_OR_RETURN(JsonValue value, Convert(item, depth + 1));
        items.push_back(std::move(value));
      }
      return JsonValue::Array(std::move(items));
    }
    case Json::value_t::object: {
      std::vector<JsonMember> members;
      for (auto it = json.begin(); it != json.end(); ++it) {
        MEGALITH_ASSIGN_OR_RETURN(JsonValue value, Convert(it.value(), depth + 1));
        members.push_back({it.key(), std::move(value)});
      }
      return JsonValue::Object(std::move(members));
    }
    default:
      return Fail(ErrorCode::kUnsupported, "JSON value of type {} found", json.type_name());
  }
}

nlohmann::json NumberToNlohmann(const JsonValue& number) {
  if (const auto integer = number.AsInteger()) return *integer;
  const std::string& text = number.text();
  std::uint64_t large = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), large);
  if (error == std::errc() && end == text.data() + text.size()) return large;
  return *number.AsDouble();
}

}  // namespace

Result<JsonValue> FromNlohmann(const nlohmann::json& json) { return Convert(json, 0); }

Result<JsonValue> FromNlohmann(const nlohmann::ordered_json& json) { return Convert(json, 0); }

nlohmann::json ToNlohmann(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return nullptr;
    case JsonValue::Kind::kBoolean:
      return value.boolean();
    case JsonValue::Kind::kNumber:
      return NumberToNlohmann(value);
    case JsonValue::Kind::kString:
      return value.text();
    case JsonValue::Kind::kArray: {
      nlohmann::json array = nlohmann::json::array();
      for (const JsonValue& item : value.items()) array.push_back(ToNlohmann(item));
      return array;
    }
    case JsonValue::Kind::kObject: {
      nlohmann::json object = nlohmann::json::object();
      for (const auto& [key, member] : value.members()) object[key] = ToNlohmann(member);
      return object;
    }
  }
  return nullptr;
}

}  // namespace megalith::text
