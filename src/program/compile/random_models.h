#pragma once

// Models nobody has thought of, for tests.

#include <cstdint>

#include "model/drafter.h"
#include "model/model.h"

namespace megalith::program {

/// SplitMix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  /// Uniform in [low, high].
  std::int64_t Between(std::int64_t low, std::int64_t high) {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t value = state_;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    value ^= value >> 31;
    return low + static_cast<std::int64_t>(value % static_cast<std::uint64_t>(high - low + 1));
  }
  bool Coin() { return Between(0, 1) == 1; }

 private:
  std::uint64_t state_;
};

/// Any legal sizes.
inline model::Model RandomModel(Random& random) {
  model::Model model;
  model.family = "random";
  model.hidden_size = 32 * random.Between(1, 8);
  model.vocab_size = random.Between(1, 700);
  model.intermediate_size = random.Between(1, 300);
  model.max_position_embeddings = 4096;
  model.rms_norm_eps = 1e-5f;
  model.attn_res_block_size = random.Coin() ? random.Between(1, 5) : 0;
  model.activation.kind = random.Coin() ? model::HiddenAct::kSitu : model::HiddenAct::kSilu;
  model.kda.num_heads = random.Between(1, 7);
  model.kda.head_dim = random.Between(1, 70);
  model.kda.short_conv_kernel_size = random.Between(2, 8);
  if (random.Coin()) model.kda.gate_lower_bound = -5.0f;
  model.kda.use_full_rank_gate = random.Coin();
  model.mla.num_attention_heads = random.Between(1, 7);
  if (random.Coin()) model.mla.q_lora_rank = random.Between(1, 100);
  model.mla.kv_lora_rank = random.Between(1, 100);
  model.mla.qk_nope_head_dim = random.Between(1, 70);
  model.mla.qk_rope_head_dim = random.Between(1, 40);
  model.mla.v_head_dim = random.Between(1, 70);
  model.mla.use_output_gate = random.Coin();
  model.moe.num_experts = random.Between(1, 40);
  model.moe.num_experts_per_token = random.Between(1, model.moe.num_experts);
  model.moe.num_shared_experts = random.Between(0, 2);
  model.moe.moe_intermediate_size = 32 * random.Between(1, 4);
  model.moe.routed_expert_hidden_size = 32 * random.Between(1, 4);
  model.moe.latent_moe_use_norm = random.Coin();
  for (std::int64_t layer = 0; layer < random.Between(1, 9); ++layer) {
    model::Layer spec;
    spec.mixer = random.Coin() ? model::Mixer::kKda : model::Mixer::kMla;
    spec.feed_forward = random.Coin() ? model::FeedForward::kDense : model::FeedForward::kMoe;
    const bool blocks = model.attn_res_block_size > 0;
    spec.residual = blocks ? model::ResidualRule::kAttnRes : model::ResidualRule::kPlain;
    spec.pushes_block = blocks && layer % model.attn_res_block_size == 0;
    model.layers.push_back(spec);
  }
  return model;
}

/// Any legal drafter for `target`, with every kind of Markov head.
inline model::Drafter RandomDrafter(Random& random, const model::Model& target) {
  model::Drafter drafter;
  drafter.format = "random";
  drafter.hidden_size = target.hidden_size;
  drafter.vocab_size = target.vocab_size;
  drafter.intermediate_size = random.Between(1, 200);
  drafter.num_key_value_heads = random.Between(1, 4);
  drafter.num_attention_heads = drafter.num_key_value_heads * random.Between(1, 3);
  drafter.head_dim = 2 * random.Between(1, 32);
  drafter.rms_norm_eps = 1e-5f;
  drafter.rope_theta = 10000.0;
  const auto num_layers = static_cast<std::int64_t>(target.layers.size());
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    if (layer + 1 == num_layers || random.Coin()) drafter.aux_layers.push_back(layer);
  }
  drafter.sample_from_anchor = random.Coin();
  drafter.block_size = random.Between(2, 9);
  drafter.mask_token_id = random.Between(0, drafter.vocab_size - 1);
  drafter.markov_rank = random.Between(0, 3) == 0 ? 0 : random.Between(1, 70);
  drafter.markov_head = static_cast<model::MarkovHead>(random.Between(0, 2));
  drafter.confidence_head = random.Coin();
  drafter.confidence_with_markov =
      drafter.confidence_head && drafter.markov_rank > 0 && random.Coin();
  drafter.tie_word_embeddings = random.Coin();
  const std::int64_t num_draft_layers = random.Between(1, 3);
  for (std::int64_t layer = 0; layer < num_draft_layers; ++layer) {
    drafter.layers.push_back({random.Coin() ? random.Between(1, 40) : 0, random.Coin()});
  }
  return drafter;
}

}  // namespace megalith::program
