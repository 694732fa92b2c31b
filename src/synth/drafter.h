#pragma once

// A drafter for a model, as a config.json in the speculators format.

#include <span>
#include <string>

#include "base/result.h"
#include "model/model.h"

namespace megalith::synth {

/// A DSpark drafter in the proportions of the published one, which this is for Kimi K3 itself:
/// smaller targets get fewer layers, narrower heads and a Markov head of lower rank. It reads up to
/// five of the target's layers. `assignments` are "key=value" with JSON values, looked for at the
/// top and else in transformer_layer_config; layer_types follow num_hidden_layers.
/// kUsage: an assignment that cannot be, also when the reader refuses what comes out.
Result<std::string> MakeDrafterConfig(const model::Model& target,
                                      std::span<const std::string> assignments = {});

}  // namespace megalith::synth
