#include "synth/assignment.h"

#include <fmt/format.h>

#include <utility>

namespace megalith::synth {

using Json = nlohmann::ordered_json;

Result<Assignment> ParseAssignment(std::string_view option, const std::string& text) {
  Assignment assignment;
  assignment.source = fmt::format("{} {}", option, text);
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return Fail(ErrorCode::kUsage, "{}: KEY=VALUE expected", assignment.source);
  }
  assignment.path = text.substr(0, equals);
  assignment.value = Json::parse(text.substr(equals + 1), nullptr, false);
  if (assignment.value.is_discarded()) {
    return Fail(ErrorCode::kUsage, "{}: a JSON value expected: a number, true, null, \"text\"",
                assignment.source);
  }
  return assignment;
}

Status ApplyAssignment(const Assignment& assignment, Json* object) {
  std::string key = assignment.path;
  for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.')) {
    const auto inner = object->find(key.substr(0, dot));
    if (inner == object->end() || !inner->is_object()) {
      return Fail(ErrorCode::kUsage, "{}: the config has no object '{}'", assignment.source,
                  key.substr(0, dot));
    }
    object = &*inner;
    key.erase(0, dot + 1);
  }
  (*object)[key] = assignment.value;
  return {};
}

}  // namespace megalith::synth
