#pragma once

// config.json -> Model. Every number of the architecture must be in the file: a missing or
// ill-typed key is an error that names it, never a default.

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/model.h"

namespace megalith::model {

struct Config {
  Model model;
  /// Keys that no reader knows, one line each. They do not change the model.
  std::vector<std::string> warnings;
};

/// Chooses the family by `model_type` and `architectures` and reads the text model, nested in
/// `text_config` or bare. `source` is named in errors. kBadConfig: malformed JSON, a missing,
/// duplicate, ill-typed or contradictory key; kUnsupported: another family or quantization.
Result<Config> ParseConfig(std::string_view json, std::string_view source = "config.json");

/// Reads `path`, a config.json or the directory that holds one.
Result<Config> ReadConfig(const std::string& path);

}  // namespace megalith::model
