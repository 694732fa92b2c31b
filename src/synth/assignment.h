#pragma once

// KEY=VALUE edits of JSON objects. Private to this folder.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace megalith::synth {

struct Assignment {
  std::string source;  ///< "OPTION TEXT" for messages
  std::string path;    ///< keys with dots between them
  nlohmann::ordered_json value;
};

/// "key=value" or "outer.inner=value" with a JSON value. kUsage with `option`.
Result<Assignment> ParseAssignment(std::string_view option, const std::string& text);

/// Sets the value in `object`. kUsage: an outer key that is no object of it.
Status ApplyAssignment(const Assignment& assignment, nlohmann::ordered_json* object);

}  // namespace megalith::synth
