#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::structure {

/// One #include of a source file.
struct Include {
  int line;          ///< from 1
  std::string name;  ///< between the quotes or brackets
  bool quoted;       ///< "..." rather than <...>
};
std::vector<Include> ReadIncludes(std::string_view text);

/// What each folder may include from the others: the entries of the dependency table and, since
/// lower layers may always be used, everything those may include in turn.
std::map<std::string, std::set<std::string>> AllowedFolders();

/// Whether following the table from a folder ever leads back to it.
bool TableHasCycle();

/// The folder of the table that a path relative to the repository belongs to, e.g.
/// "program/compile" for "src/program/compile/fetch.h". Empty: none.
std::string FolderOf(const std::filesystem::path& path);

/// Everything wrong with the includes of one file, as "path:line: message". `path` is relative to
/// `repository`, which is used to look up what a quoted name means.
std::vector<std::string> IncludeViolations(const std::filesystem::path& repository,
                                           const std::filesystem::path& path,
                                           std::string_view text);

}  // namespace megalith::structure
