#pragma once

// Bridge for code that holds nlohmann values. For request bodies ParseJson is the better reader:
// it limits nesting, keeps the order of members and every digit, and stays linear for objects of
// many members (nlohmann's ordered objects are quadratic).

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "text/json_value.h"

namespace megalith::text {

/// kOutOfRange for nesting deeper than kMaxJsonDepth, kUnsupported for binary values.
Result<JsonValue> FromNlohmann(const nlohmann::json& json);
Result<JsonValue> FromNlohmann(const nlohmann::ordered_json& json);

/// Integers stay integers where they fit into 64 bits; larger ones become doubles.
nlohmann::json ToNlohmann(const JsonValue& value);

}  // namespace megalith::text
