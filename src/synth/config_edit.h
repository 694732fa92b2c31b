#pragma once

// A config.json with some of its numbers replaced.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace megalith::synth {

/// What is empty stays as it is.
struct ConfigEdits {
  std::optional<std::int64_t> hidden_size;
  /// Layer kinds then follow K3: every fourth layer and the last are MLA, the others KDA.
  std::optional<std::int64_t> num_layers;
  /// One letter a layer, K (KDA) or M (MLA); also sets the number of layers.
  std::optional<std::string> layer_kinds;
  std::optional<std::int64_t> vocab_size;  ///< moves the special ids to the end, as K3 has them
  std::optional<std::int64_t> num_heads;   ///< of both mixers
  std::optional<std::int64_t> head_dim;    ///< KDA heads, MLA keys (without the extra part), values
  std::optional<std::int64_t> qk_rope_head_dim;
  std::optional<std::int64_t> q_lora_rank;
  std::optional<std::int64_t> kv_lora_rank;
  std::optional<std::int64_t> dense_width;
  std::optional<std::int64_t> num_experts;
  std::optional<std::int64_t> num_experts_per_token;
  std::optional<std::int64_t> num_shared_experts;
  std::optional<std::int64_t> expert_width;
  std::optional<std::int64_t> latent_size;
  std::optional<std::int64_t> num_dense_layers;
  std::optional<std::int64_t> attn_res_block_size;
  std::optional<std::int64_t> max_position_embeddings;
  /// "key=value" with a JSON value; the key, `linear_attn_config.head_dim` if nested, is looked for
  /// in text_config. Applied last.
  std::vector<std::string> assignments;
};

/// One number that can be replaced.
struct EditableNumber {
  std::string_view option;  ///< of the command line, without dashes
  std::optional<std::int64_t> ConfigEdits::*member;
  std::string_view keys;  ///< of config.json, for help and messages
  std::string_view description;
};
std::span<const EditableNumber> EditableNumbers();

/// `config_json`, nested or bare, with the edits, as text that model::ParseConfig accepts. Errors
/// of ParseConfig naming `source`; kUsage for an edit that cannot be: a number below 1, layer kinds
/// other than K and M, a key that no reader knows.
Result<std::string> EditConfig(std::string_view config_json, std::string_view source,
                               const ConfigEdits& edits);

}  // namespace megalith::synth
