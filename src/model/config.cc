#include "model/config.h"

#include <simdjson.h>

#include <array>
#include <filesystem>

#include "base/file.h"
#include "model/json_place.h"
#include "model/json_reader.h"
#include "model/kimi_k3.h"

namespace megalith::model {
namespace {

namespace dom = simdjson::dom;

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{16} << 20;

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
  if (json.size() > kMaxConfigBytes) {
    return Fail(ErrorCode::kBadConfig, "{}: at most {} bytes expected, {} found", source,
                kMaxConfigBytes, json.size());
  }
  const simdjson::padded_string padded(json);
  dom::parser parser;
  dom::element document;
  if (const auto error = parser.parse(padded).get(document)) {
    return Fail(ErrorCode::kBadConfig, "{}: not valid JSON{}: {}", source, JsonErrorPlace(json),
                simdjson::error_message(error));
  }
  dom::object root;
  if (document.get(root) != simdjson::SUCCESS) {
    return Fail(ErrorCode::kBadConfig, "{}: a JSON object expected", source);
  }
  MEGALITH_RETURN_IF_ERROR(CheckDuplicateKeys(document, source));
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
  std::error_code error;
  std::filesystem::path file(path);
  if (std::filesystem::is_directory(file, error)) file /= "config.json";
  MEGALITH_ASSIGN_OR_RETURN(const std::string json, ReadTextFile(file.string(), kMaxConfigBytes));
  return ParseConfig(json, file.string());
}

}  // namespace megalith::model
