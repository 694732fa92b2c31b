#include "megalith_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace megalith {
namespace {

namespace fs = std::filesystem;

std::string TakeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  fs::remove(path);
  return text;
}

}  // namespace

Outcome Megalith(const std::string& arguments, const std::string& before,
                 const std::string& redirections) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const fs::path stem = fs::path(testing::TempDir()) / ("cli_" + std::to_string(::getpid()) +
                                                        test->test_suite_name() + test->name());
  const std::string out = stem.string() + ".out";
  const std::string err = stem.string() + ".err";
  const std::string command = "env -u MEGALITH_FORCE_ISA -u MEGALITH_MODEL " + before + " '" +
                              MEGALITH_PROGRAM + "' " + arguments + " </dev/null >'" + out +
                              "' 2>'" + err + "' " + redirections;
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, TakeFile(out), TakeFile(err)};
}

}  // namespace megalith
