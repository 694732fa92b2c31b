#include "include_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

namespace megalith::structure {
namespace {

namespace fs = std::filesystem;

/// Folder -> folders it uses, the same as in the design document. Every folder may use base.
const std::map<std::string, std::vector<std::string>>& Table() {
  static const std::map<std::string, std::vector<std::string>> table = {
      {"base", {}},
      {"kernels", {"base"}},
      {"model", {"base"}},
      {"weights", {"base", "model", "kernels"}},
      {"synth", {"base", "model"}},
      {"program", {"base"}},
      {"trace", {"base", "program"}},
      {"program/compile", {"base", "program", "model", "kernels"}},
      {"fabric", {"base"}},
      {"exec", {"base", "program", "weights", "kernels", "fabric"}},
      {"text", {"base"}},
      {"engine", {"base", "exec", "program/compile", "weights", "model", "fabric"}},
      {"bench", {"base", "engine", "exec", "program/compile", "kernels", "fabric"}},
      {"serve/http", {"base"}},
      {"serve/web", {}},
      {"serve", {"base", "engine", "text", "serve/http", "serve/web"}},
      {"apps", {"base", "serve", "engine", "synth", "bench", "text", "trace", "fabric"}},
      // The installed interface stands alone.
      {"include/megalith", {}},
  };
  return table;
}

void AddReachable(const std::string& folder, std::set<std::string>* reached) {
  for (const std::string& used : Table().at(folder)) {
    if (reached->insert(used).second) AddReachable(used, reached);
  }
}

/// Headers of other projects that must not spread.
struct VendorRule {
  std::string_view prefix;
  std::string_view only_below;  ///< path prefix where it is allowed; empty: anywhere
  bool stays_in_folder;         ///< headers that other folders include may not include it
  std::string_view reason;
};
constexpr VendorRule kVendorRules[] = {
    {"CLI/", "apps/", true, "only the command line knows CLI11"},
    {"hwloc", "src/base/topology.cc", true, "topology.cc is the only file that knows hwloc"},
    {"simdjson", "src/", true, "slow to compile; it must not reach other folders"},
    {"boost/", "src/serve/http/", true, "only the HTTP server knows Boost; slow to compile"},
    {"mpi.h", "src/fabric/", true, "only the MPI fabric knows MPI, which a build may lack"},
    {"nlohmann/", "", true, "slow to compile; it must not reach other folders"},
    {"iostream", "apps/", true, "libraries do not print"},
};

/// Tests may use everything.
bool IsTest(const fs::path& path) {
  if (path.stem().string().ends_with("_test")) return true;
  return std::any_of(path.begin(), path.end(),
                     [](const fs::path& part) { return part == "testing" || part == "tests"; });
}

/// The path below the repository that a quoted include means.
std::optional<fs::path> Resolve(const fs::path& repository, const fs::path& from,
                                const std::string& name) {
  for (const fs::path& folder : {fs::path("src"), fs::path("include"), from.parent_path()}) {
    const fs::path candidate = (folder / name).lexically_normal();
    if (fs::is_regular_file(repository / candidate)) return candidate;
  }
  return std::nullopt;
}

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The rules that a header breaks, itself or through what it includes, if another folder includes
/// it. `seen`: headers already looked at.
void CollectSpread(const fs::path& repository, const fs::path& header, std::set<fs::path>* seen,
                   std::set<const VendorRule*>* broken) {
  if (!seen->insert(header).second) return;
  for (const Include& include : ReadIncludes(ReadAll(repository / header))) {
    for (const VendorRule& rule : kVendorRules) {
      if (rule.stays_in_folder && include.name.starts_with(rule.prefix)) broken->insert(&rule);
    }
    if (!include.quoted) continue;
    if (const auto target = Resolve(repository, header, include.name)) {
      CollectSpread(repository, *target, seen, broken);
    }
  }
}

}  // namespace

std::vector<Include> ReadIncludes(std::string_view text) {
  std::vector<Include> includes;
  int line_number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    const auto skip_blanks = [&] {
      line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    };
    skip_blanks();
    if (!line.starts_with('#')) continue;
    line.remove_prefix(1);
    skip_blanks();
    if (!line.starts_with("include")) continue;
    line.remove_prefix(std::string_view("include").size());
    skip_blanks();
    if (line.empty() || (line[0] != '"' && line[0] != '<')) continue;
    const bool quoted = line[0] == '"';
    const std::size_t close = line.find(quoted ? '"' : '>', 1);
    if (close == std::string_view::npos) continue;
    includes.push_back({line_number, std::string(line.substr(1, close - 1)), quoted});
  }
  return includes;
}

std::map<std::string, std::set<std::string>> AllowedFolders() {
  std::map<std::string, std::set<std::string>> allowed;
  for (const auto& entry : Table()) AddReachable(entry.first, &allowed[entry.first]);
  return allowed;
}

bool TableHasCycle() {
  const auto allowed = AllowedFolders();
  return std::any_of(allowed.begin(), allowed.end(),
                     [](const auto& entry) { return entry.second.contains(entry.first); });
}

std::string FolderOf(const fs::path& path) {
  std::string text = path.generic_string();
  if (text.starts_with("src/")) text = text.substr(4);
  std::string best;
  for (const auto& entry : Table()) {
    if (text.starts_with(entry.first + "/") && entry.first.size() > best.size()) {
      best = entry.first;
    }
  }
  return best;
}

std::vector<std::string> IncludeViolations(const fs::path& repository, const fs::path& path,
                                           std::string_view text) {
  std::vector<std::string> violations;
  if (IsTest(path)) return violations;
  const std::string where = path.generic_string();
  const std::string folder = FolderOf(path);
  if (folder.empty()) {
    violations.push_back(where + ": its folder is not in the dependency table");
    return violations;
  }
  const std::set<std::string> allowed = AllowedFolders()[folder];
  for (const Include& include : ReadIncludes(text)) {
    const auto complain = [&](const std::string& message) {
      violations.push_back(fmt::format("{}:{}: {}", where, include.line, message));
    };
    for (const VendorRule& rule : kVendorRules) {
      if (include.name.starts_with(rule.prefix) && !where.starts_with(rule.only_below)) {
        complain(fmt::format("<{}>: {}", include.name, rule.reason));
      }
    }
    if (!include.quoted) continue;
    const std::optional<fs::path> target = Resolve(repository, path, include.name);
    if (!target) {
      complain(
          fmt::format("\"{}\" is not in src/, include/ or beside the file; headers of other "
                      "projects go in angle brackets",
                      include.name));
      continue;
    }
    const std::string used = FolderOf(*target);
    if (used != folder && !allowed.contains(used)) {
      complain(fmt::format("\"{}\": {} may not use {}; it may use {}", include.name, folder,
                           used.empty() ? target->generic_string() : used,
                           fmt::join(allowed, ", ")));
    }
    if (used != folder) {
      std::set<fs::path> seen;
      std::set<const VendorRule*> broken;
      CollectSpread(repository, *target, &seen, &broken);
      for (const VendorRule* rule : broken) {
        complain(
            fmt::format("\"{}\" brings in <{}...>: {}", include.name, rule->prefix, rule->reason));
      }
    }
    if (IsTest(*target)) {
      complain(fmt::format("\"{}\" is for tests only", include.name));
    }
  }
  return violations;
}

}  // namespace megalith::structure
