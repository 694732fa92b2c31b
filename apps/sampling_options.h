#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "kernels/sampling.h"

namespace megalith::apps {

/// Adds --temperature, --top-p, --top-k, --min-p and --seed with the values in `options` as
/// defaults.
void AddSamplingOptions(CLI::App& command, kernels::SamplingOptions& options);

}  // namespace megalith::apps
