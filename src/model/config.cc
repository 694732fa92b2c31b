#include "model/config.h"

#include <simdjson.h>

#include <array>

#include "model/json_reader.h"
#include "model/kimi_k3.h"

namespace megalith::model {
namespace {

namespace dom = simdjson::dom;

/// A family is one entry here and one reader.
struct Family {
  std::string_view model_type;
  Result<Config> (*read)(dom::object root, std::string_view source);
};
constexpr std::array kFamilies = std::to_array<Family>({
    {"kimi_k3", ReadKimiK3},
    {"kimi_linear", ReadKimiK3},  // the text part of a kimi_k3 config on its own
});

std::string KnownModelTypes() {
  std::string names;
  for (const Family& family : kFamilies) {
    if (!names.empty()) names += ", ";
    names += family.model_type;
  }
  return names;
}

}  // namespace

Result<Config> ParseConfig(std::string_view json, std::string_view source) {
  dom::parser parser;
  MEGALITH_ASSIGN_OR_RETURN(const dom::object root, ParseJsonObject(json, source, &parser));
  std::string_view model_type;
  if (root.at_key("model_type").get(model_type) != simdjson::SUCCESS) {
    return Fail(ErrorCode::kBadConfig, "{}: model_type: a string is required", source);
  }
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type) return family.read(root, source);
  }
  return Fail(ErrorCode::kUnsupported, "{}: model_type: one of {} expected, '{}' found", source,
              KnownModelTypes(), model_type);
}

Result<Config> ReadConfig(const std::string& path) {
  std::string source;
  MEGALITH_ASSIGN_OR_RETURN(const std::string json, ReadConfigText(path, &source));
  return ParseConfig(json, source);
}

}  // namespace megalith::model
