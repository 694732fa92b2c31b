#include "default_model.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace megalith::apps {
namespace {

namespace fs = std::filesystem;

bool IsModel(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / "config.json", error);
}

}  // namespace

Result<std::string> ResolveModel(const std::string& argument) {
  std::error_code error;
  if (!argument.empty()) {
    if (IsModel(argument)) return argument;
    if (!fs::exists(argument, error)) {
      return Fail(ErrorCode::kNotFound, "model '{}': no such folder", argument);
    }
    return Fail(ErrorCode::kNotFound, "model '{}': a checkpoint folder with config.json expected",
                argument);
  }
  if (const char* variable = std::getenv("MEGALITH_MODEL");
      variable != nullptr && variable[0] != '\0') {
    if (IsModel(variable)) return std::string(variable);
    return Fail(ErrorCode::kNotFound,
                "MEGALITH_MODEL '{}': a checkpoint folder with config.json expected", variable);
  }
  // Inside a build folder (<sources>/build/<preset>/bin), then as installed, then the sources.
  const fs::path bin = fs::read_symlink("/proc/self/exe", error).parent_path();
  std::string tried;
  for (const fs::path& folder :
       {bin / "../../../models/k3-nano", bin / "../share/megalith/models/k3-nano",
        fs::path(MEGALITH_SOURCE_DIR) / "models/k3-nano"}) {
    const fs::path normal = folder.lexically_normal();
    if (IsModel(normal)) return normal.string();
    tried += (tried.empty() ? "" : ", ") + normal.string();
  }
  return Fail(ErrorCode::kNotFound,
              "embedded model k3-nano: not found in {}; name a checkpoint folder or set "
              "MEGALITH_MODEL",
              tried);
}

Result<std::string> ResolveConfig(const std::string& argument) {
  std::error_code error;
  if (!argument.empty() && fs::is_regular_file(argument, error)) return argument;
  return ResolveModel(argument);
}

}  // namespace megalith::apps
