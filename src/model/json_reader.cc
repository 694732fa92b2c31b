#include "model/json_reader.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "model/json_place.h"

namespace megalith::model {
namespace {

namespace dom = simdjson::dom;

constexpr int kMaxDepth = 64;
constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{16} << 20;

std::string_view TypeName(dom::element element) {
  switch (element.type()) {
    case dom::element_type::ARRAY:
      return "a list";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::INT64:
    case dom::element_type::UINT64:
      return "an integer";
    case dom::element_type::DOUBLE:
      return "a number with a fraction or exponent";
    case dom::element_type::STRING:
      return "a string";
    case dom::element_type::BOOL:
      return "true or false";
    case dom::element_type::NULL_VALUE:
      return "null";
  }
  return "something else";
}

Status CheckElement(dom::element element, const std::string& path, int depth) {
  if (depth > kMaxDepth) {
    return Fail(ErrorCode::kBadConfig, "{}nested deeper than {}", path, kMaxDepth);
  }
  if (element.is_array()) {
    for (const dom::element item : dom::array(element)) {
      MEGALITH_RETURN_IF_ERROR(CheckElement(item, path, depth + 1));
    }
  } else if (element.is_object()) {
    std::vector<std::string_view> keys;
    for (const dom::key_value_pair field : dom::object(element)) {
      keys.push_back(field.key);
      if (!field.value.is_object() && !field.value.is_array()) continue;
      MEGALITH_RETURN_IF_ERROR(
          CheckElement(field.value, fmt::format("{}{}.", path, field.key), depth + 1));
    }
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) {
      return Fail(ErrorCode::kBadConfig, "{}{}: the key occurs twice", path, *twice);
    }
  }
  return {};
}

}  // namespace

Result<dom::object> ParseJsonObject(std::string_view json, std::string_view source,
                                    dom::parser* parser) {
  if (json.size() > kMaxConfigBytes) {
    return Fail(ErrorCode::kBadConfig, "{}: at most {} bytes expected, {} found", source,
                kMaxConfigBytes, json.size());
  }
  const simdjson::padded_string padded(json);
  dom::element document;
  if (const auto error = parser->parse(padded).get(document)) {
    return Fail(ErrorCode::kBadConfig, "{}: not valid JSON{}: {}", source, JsonErrorPlace(json),
                simdjson::error_message(error));
  }
  dom::object root;
  if (document.get(root) != simdjson::SUCCESS) {
    return Fail(ErrorCode::kBadConfig, "{}: a JSON object expected", source);
  }
  MEGALITH_RETURN_IF_ERROR(CheckElement(document, fmt::format("{}: ", source), 1));
  return root;
}

Result<std::string> ReadConfigText(const std::string& path, std::string* source) {
  std::error_code error;
  std::filesystem::path file(path);
  if (std::filesystem::is_directory(file, error)) file /= "config.json";
  *source = file.string();
  return ReadTextFile(*source, kMaxConfigBytes);
}

bool JsonReader::Has(std::string_view key) const {
  return object_.at_key(key).error() == simdjson::SUCCESS;
}

bool JsonReader::IsNull(std::string_view key) const {
  dom::element element;
  return object_.at_key(key).get(element) == simdjson::SUCCESS && element.is_null();
}

void JsonReader::FailAt(ErrorCode code, std::string_view key, std::string_view message) {
  if (*status_) *status_ = Fail(code, "{}{}: {}", path_, key, message);
}

std::optional<dom::element> JsonReader::Get(std::string_view key) {
  known_.push_back(key);
  dom::element element;
  if (object_.at_key(key).get(element) != simdjson::SUCCESS) {
    FailAt(ErrorCode::kBadConfig, key, "required key is missing");
    return std::nullopt;
  }
  return element;
}

std::int64_t JsonReader::ToInt(dom::element element, std::string_view key, std::int64_t min,
                               std::int64_t max) {
  if (element.is_uint64() && !element.is_int64()) {
    FailAt(ErrorCode::kBadConfig, key,
           fmt::format("{} to {} expected, a larger one found", min, max));
    return min;
  }
  std::int64_t value = 0;
  if (!element.is_int64() || element.get(value) != simdjson::SUCCESS) {
    FailAt(ErrorCode::kBadConfig, key,
           fmt::format("an integer expected, {} found", TypeName(element)));
    return min;
  }
  if (value < min || value > max) {
    FailAt(ErrorCode::kBadConfig, key, fmt::format("{} to {} expected, {} found", min, max, value));
    return min;
  }
  return value;
}

double JsonReader::ToDouble(dom::element element, std::string_view key) {
  double value = 0.0;
  if (!element.is_number() || element.get(value) != simdjson::SUCCESS) {
    FailAt(ErrorCode::kBadConfig, key,
           fmt::format("a number expected, {} found", TypeName(element)));
    return 1.0;
  }
  return value;
}

float JsonReader::ToFloat(dom::element element, std::string_view key) {
  const double value = ToDouble(element, key);
  const auto narrowed = static_cast<float>(value);
  // A number that a float turns into infinity or zero is a typing error, not a setting.
  if (!std::isfinite(narrowed) || (narrowed == 0.0f && value != 0.0)) {
    FailAt(ErrorCode::kBadConfig, key, fmt::format("{} does not fit a 32-bit float", value));
    return 1.0f;
  }
  return narrowed;
}

std::int64_t JsonReader::Int(std::string_view key, std::int64_t min, std::int64_t max) {
  const auto element = Get(key);
  return element ? ToInt(*element, key, min, max) : min;
}

std::optional<std::int64_t> JsonReader::IntOrNull(std::string_view key, std::int64_t min,
                                                  std::int64_t max) {
  const auto element = Get(key);
  if (!element || element->is_null()) return std::nullopt;
  return ToInt(*element, key, min, max);
}

float JsonReader::Float(std::string_view key) {
  const auto element = Get(key);
  return element ? ToFloat(*element, key) : 1.0f;
}

std::optional<float> JsonReader::FloatOrNull(std::string_view key) {
  const auto element = Get(key);
  if (!element || element->is_null()) return std::nullopt;
  return ToFloat(*element, key);
}

double JsonReader::Double(std::string_view key) {
  const auto element = Get(key);
  return element ? ToDouble(*element, key) : 1.0;
}

bool JsonReader::Bool(std::string_view key) {
  const auto element = Get(key);
  if (!element) return false;
  bool value = false;
  if (!element->is_bool() || element->get(value) != simdjson::SUCCESS) {
    FailAt(ErrorCode::kBadConfig, key,
           fmt::format("true or false expected, {} found", TypeName(*element)));
  }
  return value;
}

std::string_view JsonReader::String(std::string_view key) {
  const auto element = Get(key);
  if (!element) return {};
  std::string_view value;
  if (!element->is_string() || element->get(value) != simdjson::SUCCESS) {
    FailAt(ErrorCode::kBadConfig, key,
           fmt::format("a string expected, {} found", TypeName(*element)));
    return {};
  }
  return value;
}

std::vector<std::int64_t> JsonReader::IntList(std::string_view key, std::int64_t min,
                                              std::int64_t max) {
  std::vector<std::int64_t> list;
  const auto element = Get(key);
  if (!element) return list;
  if (!element->is_array()) {
    FailAt(ErrorCode::kBadConfig, key,
           fmt::format("a list expected, {} found", TypeName(*element)));
    return list;
  }
  for (const dom::element item : dom::array(*element)) {
    list.push_back(ToInt(item, key, min, max));
    if (!*status_) break;
  }
  return list;
}

std::vector<std::string_view> JsonReader::StringList(std::string_view key) {
  std::vector<std::string_view> list;
  const auto element = Get(key);
  if (!element) return list;
  if (!element->is_array()) {
    FailAt(ErrorCode::kBadConfig, key,
           fmt::format("a list expected, {} found", TypeName(*element)));
    return list;
  }
  for (const dom::element item : dom::array(*element)) {
    std::string_view value;
    if (item.get(value) != simdjson::SUCCESS) {
      FailAt(ErrorCode::kBadConfig, key, fmt::format("strings expected, {} found", TypeName(item)));
      break;
    }
    list.push_back(value);
  }
  return list;
}

std::vector<std::int64_t> JsonReader::IntOrIntList(std::string_view key, std::int64_t min,
                                                   std::int64_t max) {
  const auto element = Get(key);
  if (!element) return {};
  if (!element->is_array()) return {ToInt(*element, key, min, max)};
  std::vector<std::int64_t> list = IntList(key, min, max);
  if (list.empty()) FailAt(ErrorCode::kBadConfig, key, "the list is empty");
  return list;
}

std::optional<JsonReader> JsonReader::Object(std::string_view key) {
  const auto element = Get(key);
  if (!element) return std::nullopt;
  dom::object object;
  if (element->get(object) != simdjson::SUCCESS) {
    FailAt(ErrorCode::kBadConfig, key,
           fmt::format("an object expected, {} found", TypeName(*element)));
    return std::nullopt;
  }
  return JsonReader(object, fmt::format("{}{}.", path_, key), status_);
}

std::vector<std::string_view> JsonReader::UnknownKeys() const {
  std::vector<std::string_view> keys;
  for (const dom::key_value_pair field : object_) {
    if (std::find(known_.begin(), known_.end(), field.key) == known_.end()) {
      keys.push_back(field.key);
    }
  }
  return keys;
}

void JsonReader::ListUnknown(std::vector<std::string>* warnings) const {
  for (const std::string_view key : UnknownKeys()) {
    warnings->push_back(fmt::format("{}{}: unknown key, ignored", path_, key));
  }
}

}  // namespace megalith::model
