#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace megalith::apps {

/// Loads with the common options applied and a progress bar.
Result<std::unique_ptr<engine::Engine>> LoadEngine(const std::string& directory, const Cli& cli,
                                                   engine::EngineOptions options);

/// "1,2,3" -> {1, 2, 3}; spaces are allowed. kUsage naming the piece that is no token id.
Result<std::vector<std::int32_t>> ParseIds(const std::string& text);

/// {1, 2, 3} -> "1,2,3".
std::string FormatIds(const std::vector<std::int32_t>& ids);

/// The whole file, or standard input for "-".
Result<std::string> ReadText(const std::string& path);

}  // namespace megalith::apps
