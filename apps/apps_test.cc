#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "default_model.h"
#include "exit_code.h"
#include "interrupt.h"

namespace megalith::apps {
namespace {

namespace fs = std::filesystem;

class ResolveModelTest : public testing::Test {
 protected:
  void SetUp() override {
    // Of this process: the cases run beside each other.
    folder_ = (fs::path(testing::TempDir()) / fmt::format("megalith_resolve_model_{}", ::getpid()))
                  .string();
    fs::create_directories(folder_);
    unsetenv("MEGALITH_MODEL");
  }
  void TearDown() override {
    unsetenv("MEGALITH_MODEL");
    fs::remove_all(folder_);
  }
  std::string folder_;
};

TEST_F(ResolveModelTest, WithoutArgumentOrVariableIsTheEmbeddedModel) {
  const auto model = ResolveModel("");
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(fs::canonical(*model), fs::canonical(MEGALITH_SOURCE_DIR "/models/k3-nano"));
}

TEST_F(ResolveModelTest, VariableReplacesTheEmbeddedModelAndArgumentTheVariable) {
  std::ofstream(fs::path(folder_) / "config.json") << "{}";
  setenv("MEGALITH_MODEL", folder_.c_str(), 1);
  EXPECT_EQ(ResolveModel("").value(), folder_);
  const std::string other = MEGALITH_SOURCE_DIR "/models/k3-nano";
  EXPECT_EQ(ResolveModel(other).value(), other);
  setenv("MEGALITH_MODEL", "", 1);
  EXPECT_NE(ResolveModel("").value(), folder_);
}

TEST_F(ResolveModelTest, WhatIsNotACheckpointIsNamedNotReplaced) {
  for (const std::string& path : {folder_, folder_ + "/absent"}) {
    const auto by_argument = ResolveModel(path);
    ASSERT_FALSE(by_argument);
    EXPECT_EQ(by_argument.error().code, ErrorCode::kNotFound);
    EXPECT_NE(by_argument.error().message.find(path), std::string::npos);
    setenv("MEGALITH_MODEL", path.c_str(), 1);
    const auto by_variable = ResolveModel("");
    ASSERT_FALSE(by_variable) << *by_variable;
    EXPECT_EQ(by_variable.error().code, ErrorCode::kNotFound);
    EXPECT_NE(by_variable.error().message.find("MEGALITH_MODEL"), std::string::npos);
  }
}

TEST(ExitCodeOf, EveryErrorFails) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    EXPECT_NE(ExitCodeOf(static_cast<ErrorCode>(code)), ExitCode::kFine) << code;
  }
  EXPECT_EQ(ExitCodeOf(ErrorCode::kUsage), ExitCode::kUsage);
  EXPECT_EQ(ExitCodeOf(ErrorCode::kBadTensor), ExitCode::kBadInput);
  EXPECT_EQ(ExitCodeOf(ErrorCode::kOutOfMemory), ExitCode::kRunFailed);
}

TEST(CatchInterrupts, FirstSignalSetsTheFlagSecondEndsTheProcess) {
  EXPECT_EXIT(
      {
        const CancelFlag* flag = CatchInterrupts();
        if (flag->IsCancelled()) std::_Exit(10);
        std::raise(SIGINT);
        if (!flag->IsCancelled()) std::_Exit(11);
        std::raise(SIGINT);
        std::_Exit(12);
      },
      testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace megalith::apps
