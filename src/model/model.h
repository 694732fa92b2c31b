#pragma once

// A model as data: embedding, a list of layers (token mixer, feed-forward, residual rule), final
// norm, head. Read from config.json by a family's reader (kimi_k3.h). Nothing here knows kernels or
// Programs.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace megalith::model {

/// Kimi Delta Attention sizes. Key and value dimension per head are both head_dim.
struct KdaConfig {
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t short_conv_kernel_size = 0;
  /// Lower bound of the log decay, in [-5, 0); empty: softplus form (Kimi-Linear).
  std::optional<float> gate_lower_bound;
  bool use_full_rank_gate = true;
};

/// Multi-head latent attention without positions.
struct MlaConfig {
  std::int64_t num_attention_heads = 0;
  std::optional<std::int64_t> q_lora_rank;  ///< empty: one q_proj
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;
  std::int64_t qk_rope_head_dim = 0;
  std::int64_t v_head_dim = 0;
  bool use_output_gate = true;
};

enum class RouterActivation { kSigmoid, kSoftmax };

struct MoeConfig {
  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_token = 0;
  std::int64_t num_shared_experts = 0;  ///< 0: no shared path
  std::int64_t moe_intermediate_size = 0;
  std::optional<std::int64_t> routed_expert_hidden_size;  ///< empty: experts work at hidden_size
  bool latent_moe_use_norm = false;
  RouterActivation router_activation = RouterActivation::kSigmoid;
  bool renormalize = true;
  float routed_scaling_factor = 1.0f;
  std::int64_t num_expert_group = 1;
  std::int64_t topk_group = 1;
};

enum class HiddenAct { kSitu, kSilu };

struct ActivationConfig {
  HiddenAct kind = HiddenAct::kSitu;
  float situ_beta = 1.0f;
  std::optional<float> situ_linear_beta;  ///< empty: up branch uncapped
};

enum class Mixer { kKda, kMla };
enum class FeedForward { kDense, kMoe };
/// kAttnRes: block attention residuals; kPlain: ordinary pre-norm residual.
enum class ResidualRule { kPlain, kAttnRes };

struct Layer {
  Mixer mixer = Mixer::kKda;
  FeedForward feed_forward = FeedForward::kDense;
  ResidualRule residual = ResidualRule::kAttnRes;
  /// kAttnRes: this layer pushes its incoming residual as a finished block and restarts it.
  bool pushes_block = false;
};

struct Model {
  std::string family;  ///< "kimi_k3"
  std::int64_t hidden_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t intermediate_size = 0;  ///< dense feed-forward width
  std::int64_t max_position_embeddings = 0;
  float rms_norm_eps = 0.0f;
  /// eps of q_a_layernorm and kv_a_layernorm. The released code builds both without an eps, so 1e-6
  /// is the default; other engines use rms_norm_eps (megalith --lora-norm-eps rms).
  float lora_norm_eps = 1e-6f;
  std::int64_t attn_res_block_size = 0;  ///< 0: plain residual
  bool tie_word_embeddings = false;
  /// quantization_config declares MXFP4 routed experts. Which tensors really are MXFP4 is decided
  /// by the tensors of the checkpoint; this serves those who have a config only.
  bool declares_mxfp4_experts = false;
  std::int64_t bos_token_id = -1;
  std::vector<std::int64_t> eos_token_ids;  ///< generation stops on any of these
  std::int64_t pad_token_id = -1;
  ActivationConfig activation;
  KdaConfig kda;
  MlaConfig mla;
  MoeConfig moe;
  std::vector<Layer> layers;

  std::int64_t CountLayers(Mixer mixer) const;
  std::int64_t CountLayers(FeedForward feed_forward) const;
  /// Expert input and output width: routed_expert_hidden_size, or hidden_size without a latent.
  std::int64_t ExpertWidth() const { return moe.routed_expert_hidden_size.value_or(hidden_size); }
  /// Most AttnRes blocks that exist at once.
  std::int64_t MaxBlocks() const;
};

}  // namespace megalith::model
