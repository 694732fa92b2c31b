#include "serve/api/json_build.h"

#include <cmath>

namespace megalith::serve {

JsonValue Json(double value) {
  return std::isfinite(value) ? JsonValue::Double(value) : JsonValue();
}

JsonValue Json(std::vector<std::string> values) {
  std::vector<JsonValue> items;
  for (std::string& value : values) items.push_back(JsonValue::String(std::move(value)));
  return JsonArray(std::move(items));
}

}  // namespace megalith::serve
