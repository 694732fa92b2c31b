#pragma once

// config.json of a drafter -> Drafter. Two formats of DSpark drafters are read:
//
// * "speculators": architectures DSparkDraftModel, speculators_model_type dspark, the layers in
//   transformer_layer_config, aux_hidden_state_layer_ids. Sliding-window layers are causal within a
//   block unless sliding_window_non_causal says otherwise. Without sample_from_anchor it is false.
// * "deepspec": architectures Qwen3DSparkModel, flat, target_layer_ids (outputs of layers, -1 the
//   embedding: Drafter::aux_layers are one more). Layers see the whole context and the whole block,
//   and every slot proposes: sample_from_anchor is true.

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/drafter.h"
#include "model/model.h"

namespace megalith::model {

struct DrafterConfig {
  Drafter drafter;
  /// Keys that no reader knows, one line each. They do not change the drafter.
  std::vector<std::string> warnings;
};

/// Reads a drafter for `target`. `source` is named in errors. kBadConfig: malformed JSON, a
/// missing, duplicate, ill-typed or contradictory key, sizes or layers that the target does not
/// have; kUnsupported: a drafter of another kind, named with what is supported (other algorithms
/// and attentions, unknown Markov heads, scaled rotary positions, a vocabulary of its own).
Result<DrafterConfig> ParseDrafterConfig(std::string_view json, const Model& target,
                                         std::string_view source = "config.json");

/// Reads `path`, a config.json or the directory that holds one. Also kNotFound, kIo.
Result<DrafterConfig> ReadDrafterConfig(const std::string& path, const Model& target);

}  // namespace megalith::model
