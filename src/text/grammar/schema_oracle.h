#pragma once

// What JSON schemas mean, written a second time and as plainly as possible, for tests to compare
// with: a value is walked beside the schema. oneOf is taken as anyOf.

#include "text/json_value.h"

namespace megalith::text::grammar {

/// `root`: what references point into. Patterns are matched by std::regex: ASCII only.
bool IsValid(const JsonValue& value, const JsonValue& schema, const JsonValue& root);

}  // namespace megalith::text::grammar
