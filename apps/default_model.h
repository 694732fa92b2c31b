#pragma once

#include <string>

#include "base/result.h"

namespace megalith::apps {

/// What the embedded model continues if nobody says otherwise: it was trained on this kind of text.
inline constexpr char kSamplePrompt[] = "In the beginning God created";

/// The checkpoint folder to use: `argument` if not empty, else the environment variable
/// MEGALITH_MODEL, else the embedded k3-nano, looked for relative to this program (in a build
/// folder and as installed) and where the sources were at build time. kNotFound lists what was
/// tried.
Result<std::string> ResolveModel(const std::string& argument);

/// The same, for commands that need only a config: `argument` may also be a config.json.
Result<std::string> ResolveConfig(const std::string& argument);

}  // namespace megalith::apps
