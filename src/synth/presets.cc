#include "synth/presets.h"

#include "synth/config_edit.h"

namespace megalith::synth {
namespace {

/// The published Kimi K3 configuration without its vision part. The presets differ from it in
/// numbers only.
constexpr std::string_view kKimiK3 = R"json({
  "architectures": ["KimiK3ForConditionalGeneration"],
  "model_type": "kimi_k3",
  "dtype": "bfloat16",
  "bos_token_id": 163584, "eos_token_id": 163586, "pad_token_id": 163839,
  "tie_word_embeddings": false,
  "text_config": {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "dtype": "bfloat16",
    "vocab_size": 163840,
    "hidden_size": 7168,
    "num_hidden_layers": 93,
    "intermediate_size": 33792,
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "rms_norm_eps": 1e-05,
    "initializer_range": 0.02,
    "max_position_embeddings": 1048576,
    "tie_word_embeddings": false,
    "use_cache": true,
    "bos_token_id": 163584, "eos_token_id": 163586, "pad_token_id": 163839,
    "num_attention_heads": 96,
    "num_key_value_heads": 96,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "mla_use_nope": true,
    "mla_use_output_gate": true,
    "linear_attn_config": {
      "full_attn_layers": [],
      "kda_layers": [],
      "num_heads": 96,
      "head_dim": 128,
      "short_conv_kernel_size": 4,
      "gate_lower_bound": -5.0,
      "use_full_rank_gate": true
    },
    "attn_res_block_size": 12,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_experts": 896,
    "num_experts_per_token": 16,
    "num_shared_experts": 2,
    "moe_intermediate_size": 3072,
    "routed_expert_hidden_size": 3584,
    "latent_moe_use_norm": true,
    "moe_router_activation_func": "sigmoid",
    "moe_renormalize": true,
    "routed_scaling_factor": 1.0,
    "use_grouped_topk": true,
    "num_expert_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 0,
    "quantization_config": {
      "quant_method": "compressed-tensors",
      "format": "mxfp4-pack-quantized",
      "quantization_status": "compressed",
      "kv_cache_scheme": null,
      "global_compression_ratio": null,
      "config_groups": {
        "group_0": {
          "format": "mxfp4-pack-quantized",
          "targets": ["Linear"],
          "input_activations": null,
          "output_activations": null,
          "weights": {
            "num_bits": 4,
            "type": "float",
            "strategy": "group",
            "group_size": 32,
            "symmetric": true,
            "dynamic": false,
            "scale_dtype": "torch.uint8",
            "zp_dtype": null,
            "observer": "minmax",
            "observer_kwargs": {},
            "actorder": null,
            "block_structure": null
          }
        }
      },
      "ignore": [
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        "re:.*lm_head.*"
      ]
    }
  }
})json";

struct PresetEdits {
  Preset preset;
  ConfigEdits edits;
};

ConfigEdits K3Slice() {
  ConfigEdits edits;
  edits.layer_kinds = "KKKMK";
  edits.vocab_size = 16384;
  edits.dense_width = 8448;
  edits.num_experts = 64;
  edits.attn_res_block_size = 2;
  return edits;
}

ConfigEdits K3Mini() {
  ConfigEdits edits;
  edits.num_layers = 24;
  edits.hidden_size = 1024;
  edits.num_heads = 12;
  edits.q_lora_rank = 384;
  edits.kv_lora_rank = 256;
  edits.dense_width = 4608;
  edits.num_experts = 64;
  edits.expert_width = 512;
  edits.latent_size = 512;
  edits.attn_res_block_size = 6;
  return edits;
}

ConfigEdits K3Tiny() {
  ConfigEdits edits;
  edits.num_layers = 9;
  edits.hidden_size = 128;
  edits.vocab_size = 1024;
  edits.num_heads = 4;
  edits.head_dim = 32;
  edits.qk_rope_head_dim = 16;
  edits.q_lora_rank = 64;
  edits.kv_lora_rank = 32;
  edits.dense_width = 256;
  edits.num_experts = 16;
  edits.num_experts_per_token = 4;
  edits.num_shared_experts = 1;
  edits.expert_width = 64;
  edits.latent_size = 64;
  edits.attn_res_block_size = 3;
  edits.max_position_embeddings = 4096;
  return edits;
}

const std::vector<PresetEdits>& Table() {
  static const std::vector<PresetEdits> table = {
      {{"k3", "Kimi K3 itself: 93 layers, 1.56 TB"},
       [] {
         ConfigEdits edits;
         edits.num_layers = 93;
         return edits;
       }()},
      {{"k3-slice", "five layers of K3 at full width, 64 experts: 10.8 GB"}, K3Slice()},
      {{"k3-mini", "24 layers of hidden size 1024, K3's vocabulary: 1.9 GB"}, K3Mini()},
      {{"k3-tiny", "9 layers of hidden size 128, for tests: 4 MB"}, K3Tiny()},
  };
  return table;
}

}  // namespace

const std::vector<Preset>& Presets() {
  static const std::vector<Preset> presets = [] {
    std::vector<Preset> list;
    for (const PresetEdits& entry : Table()) list.push_back(entry.preset);
    return list;
  }();
  return presets;
}

Result<std::string> PresetConfig(std::string_view name) {
  std::string known;
  for (const PresetEdits& entry : Table()) {
    if (entry.preset.name == name) {
      return EditConfig(kKimiK3, fmt::format("preset {}", name), entry.edits);
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.preset.name);
  }
  return Fail(ErrorCode::kUsage, "there is no preset '{}'; the presets are {}", name, known);
}

}  // namespace megalith::synth
