#pragma once

// Configurations to make random checkpoints of: numbers of the family in other sizes.

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace megalith::synth {

struct Preset {
  std::string_view name;
  std::string_view description;  ///< one line, with the size on disk
};

const std::vector<Preset>& Presets();

/// config.json of a preset, as model::ParseConfig reads it. kUsage lists the names if there is no
/// such preset.
Result<std::string> PresetConfig(std::string_view name);

}  // namespace megalith::synth
