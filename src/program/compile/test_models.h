#pragma once

// Configs that program tests compile.

#include <gtest/gtest.h>

#include <string>

#include "model/config.h"
#include "program/compile/compile.h"
#include "program/verifier.h"

namespace megalith::program {

inline model::Model LoadModel(const std::string& path) {
  auto config = model::ReadConfig(path);
  if (!config) {
    ADD_FAILURE() << config.error().message;
    return {};
  }
  return config->model;
}

inline model::Model Nano() { return LoadModel(MEGALITH_SOURCE_DIR "/models/k3-nano"); }
inline model::Model RealK3() { return LoadModel(MEGALITH_TEST_DATA "/kimi-k3-config.json"); }

inline CompileOptions Workers(std::int32_t workers, std::int32_t rows = 1) {
  CompileOptions options;
  options.num_workers = workers;
  options.max_rows = rows;
  options.max_logit_rows = rows;
  return options;
}

/// Compiles, failing the test if that is refused.
inline Program MustCompile(const model::Model& model, const CompileOptions& options) {
  auto program = Compile(model, options);
  if (!program) {
    ADD_FAILURE() << program.error().message;
    return {};
  }
  return std::move(*program);
}

}  // namespace megalith::program
