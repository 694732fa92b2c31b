// Which folder may include which: arrows go one way.
#include "include_rules.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tools/temp_dir.h"

namespace megalith::structure {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The sources below src, apps and include, relative to the repository.
std::vector<fs::path> Sources() {
  const fs::path repository = MEGALITH_SOURCE_DIR;
  std::vector<fs::path> sources;
  for (const char* top : {"src", "apps", "include"}) {
    if (!fs::exists(repository / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(repository / top)) {
      const std::string extension = entry.path().extension().string();
      for (const char* wanted : {".h", ".cc", ".inc", ".cu", ".cuh"}) {
        if (extension == wanted) sources.push_back(entry.path().lexically_relative(repository));
      }
    }
  }
  return sources;
}

std::vector<std::string> Check(const std::string& path, const std::string& text) {
  return IncludeViolations(MEGALITH_SOURCE_DIR, path, text);
}

TEST(Includes, EveryFileFollowsTheDependencyTable) {
  const std::vector<fs::path> sources = Sources();
  ASSERT_GT(sources.size(), 50U) << "the sources were not found";
  for (const fs::path& path : sources) {
    for (const std::string& violation : IncludeViolations(
             MEGALITH_SOURCE_DIR, path, ReadAll(fs::path(MEGALITH_SOURCE_DIR) / path))) {
      ADD_FAILURE() << violation;
    }
  }
}

TEST(Includes, EveryHeaderIsGuarded) {
  for (const fs::path& path : Sources()) {
    // Headers named -inl are compiled once for each instruction set.
    if (path.extension() != ".h" || path.stem().string().ends_with("-inl")) continue;
    const std::string text = ReadAll(fs::path(MEGALITH_SOURCE_DIR) / path);
    EXPECT_NE(text.find("#pragma once\n"), std::string::npos) << path;
  }
}

TEST(DependencyTable, HasNoCycle) { EXPECT_FALSE(TableHasCycle()); }

TEST(DependencyTable, LongestFolderNameCounts) {
  EXPECT_EQ(FolderOf("src/program/compile/fetch.h"), "program/compile");
  EXPECT_EQ(FolderOf("src/program/compiler.h"), "program");
  EXPECT_EQ(FolderOf("src/exec/cpu/executor.cc"), "exec");
  EXPECT_EQ(FolderOf("apps/main.cc"), "apps");
  EXPECT_EQ(FolderOf("src/new/file.cc"), "");
}

TEST(IncludeViolations, UpwardAndSidewaysIncludesAreFound) {
  EXPECT_EQ(Check("src/base/x.cc", "\n#include \"program/program.h\"\n").size(), 1U);
  EXPECT_NE(Check("src/base/x.cc", "\n#include \"program/program.h\"\n")[0].find(
                "src/base/x.cc:2: \"program/program.h\": base may not use program"),
            std::string::npos);
  EXPECT_EQ(Check("src/kernels/x.h", "#include \"model/model.h\"").size(), 1U);
  EXPECT_EQ(Check("src/program/x.h", "#include \"program/compile/compile.h\"").size(), 1U);
  EXPECT_EQ(Check("src/model/x.h", "  #  include \"kernels/layout.h\" // why").size(), 1U);
  EXPECT_EQ(Check("src/new/x.h", "").size(), 1U);
}

TEST(IncludeViolations, LowerLayersOwnFolderAndTestsAreFine) {
  EXPECT_TRUE(Check("src/base/x.cc", "#include \"base/result.h\"\n#include <vector>\n").empty());
  EXPECT_TRUE(Check("src/program/compile/x.cc", "#include \"model/model.h\"\n").empty());
  EXPECT_TRUE(Check("src/weights/x.cc", "#include \"base/align.h\"\n").empty());
  EXPECT_TRUE(Check("apps/x.cc", "#include \"program/program.h\"\n").empty());
  EXPECT_TRUE(Check("src/base/x_test.cc", "#include \"program/program.h\"\n").empty());
  EXPECT_TRUE(Check("src/base/x.cc", "// #include \"program/program.h\"\n").empty());
}

TEST(IncludeViolations, VendorHeadersOutOfPlaceAreFound) {
  EXPECT_EQ(Check("src/text/x.cc", "#include <CLI/CLI.hpp>").size(), 1U);
  EXPECT_EQ(Check("src/exec/x.cc", "#include <hwloc.h>").size(), 1U);
  EXPECT_TRUE(Check("src/base/topology.cc", "#include <hwloc.h>").empty());
  EXPECT_EQ(Check("apps/x.cc", "#include <simdjson.h>").size(), 1U);
  EXPECT_TRUE(Check("src/model/x.cc", "#include <simdjson.h>").empty());
  EXPECT_EQ(Check("src/engine/x.cc", "#include <iostream>").size(), 1U);
  EXPECT_EQ(Check("src/base/x.cc", "#include \"no_such_header.h\"").size(), 1U);
}

TEST(IncludeViolations, SlowHeaderReachingAnotherFolderIsFound) {
  const tools::TempDir temp;
  const fs::path repository = temp.path();
  fs::create_directories(repository / "src/model");
  std::ofstream(repository / "src/model/outer.h") << "#include \"model/inner.h\"\n";
  std::ofstream(repository / "src/model/inner.h") << "#include <simdjson.h>\n";
  const std::string text = "#include \"model/outer.h\"\n";
  EXPECT_EQ(IncludeViolations(repository, "src/weights/x.cc", text).size(), 1U);
  EXPECT_TRUE(IncludeViolations(repository, "src/model/x.cc", text).empty());
}

}  // namespace
}  // namespace megalith::structure
