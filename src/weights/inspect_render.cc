// The two renderings of an InspectReport.

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "weights/inspect.h"

namespace megalith::weights {
namespace {

using nlohmann::ordered_json;

std::string_view MixerName(model::Mixer mixer) {
  return mixer == model::Mixer::kKda ? "KDA" : "MLA";
}

std::string_view FeedForwardName(model::FeedForward feed_forward) {
  return feed_forward == model::FeedForward::kDense ? "dense" : "MoE";
}

/// Decimal units, as checkpoint and bandwidth numbers are quoted.
std::string BytesText(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} kB", value / 1e3);
  if (bytes < 10'000'000'000) return fmt::format("{:.2f} MB", value / 1e6);
  return fmt::format("{:.3f} GB", value / 1e9);
}

std::string CountText(std::uint64_t count) {
  const auto value = static_cast<double>(count);
  if (count < 1'000'000) return fmt::format("{}", count);
  if (count < 1'000'000'000) return fmt::format("{:.3f} M", value / 1e6);
  return fmt::format("{:.3f} G", value / 1e9);
}

/// "0, 2-4, 7"
std::string RangeText(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += fmt::to_string(numbers[i]);
    if (last > i) text += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return text;
}

void AppendLine(std::string* out, std::string_view label, const std::string& value) {
  *out += fmt::format("{:<22}{}\n", label, value);
}

void AppendArchitecture(const InspectReport& report, std::string* out) {
  const model::Model& m = report.model;
  AppendLine(out, "family", m.family);
  AppendLine(out, "layers", fmt::to_string(m.layers.size()));
  for (const LayerGroup& group : report.layer_groups) {
    AppendLine(out, "",
               fmt::format("{} {} + {}: {}", group.layers.size(), MixerName(group.mixer),
                           FeedForwardName(group.feed_forward), RangeText(group.layers)));
  }
  AppendLine(out, "width",
             fmt::format("hidden {}, dense {}, vocabulary {}, positions {}", m.hidden_size,
                         m.intermediate_size, m.vocab_size, m.max_position_embeddings));
  AppendLine(out, "KDA",
             fmt::format("{} heads x {}, taps {}, {}", m.kda.num_heads, m.kda.head_dim,
                         m.kda.short_conv_kernel_size,
                         m.kda.gate_lower_bound
                             ? fmt::format("log decay above {}", *m.kda.gate_lower_bound)
                             : "softplus decay"));
  AppendLine(out, "MLA",
             fmt::format("{} heads, q rank {}, kv rank {}, key {} + {}, value {}{}",
                         m.mla.num_attention_heads,
                         m.mla.q_lora_rank ? fmt::to_string(*m.mla.q_lora_rank) : "none",
                         m.mla.kv_lora_rank, m.mla.qk_nope_head_dim, m.mla.qk_rope_head_dim,
                         m.mla.v_head_dim, m.mla.use_output_gate ? ", gated" : ""));
  AppendLine(out, "MoE",
             fmt::format(
                 "{} experts of {} top-{}, {} shared, latent {}", m.moe.num_experts,
                 m.moe.moe_intermediate_size, m.moe.num_experts_per_token, m.moe.num_shared_experts,
                 m.moe.routed_expert_hidden_size ? fmt::to_string(*m.moe.routed_expert_hidden_size)
                                                 : "none"));
  AppendLine(out, "residual",
             m.attn_res_block_size > 0
                 ? fmt::format("attention residuals, blocks of {} layers", m.attn_res_block_size)
                 : "plain");
  AppendLine(out, "head", m.tie_word_embeddings ? "tied to the embedding" : "own");
}

void AppendParts(const InspectReport& report, std::string* out) {
  *out += fmt::format("\n{:<16}{:>10}{:>14}{:>16}{:>16}\n", "part", "tensors", "parameters",
                      "stored", "read per token");
  for (const PartReport& part : report.parts) {
    *out += fmt::format("{:<16}{:>10}{:>14}{:>16}{:>16}\n", model::PartName(part.part),
                        part.stored.num_tensors, CountText(part.stored.num_parameters),
                        BytesText(part.stored.num_bytes), BytesText(part.bytes_per_token));
  }
  const model::StoredSize total = report.stored();
  *out += fmt::format("{:<16}{:>10}{:>14}{:>16}{:>16}\n", "total", total.num_tensors,
                      CountText(total.num_parameters), BytesText(total.num_bytes),
                      BytesText(report.bytes_per_token()));
  *out += fmt::format("{:<16}{:>10}{:>14}{:>16}{:>16}\n", "active", "",
                      CountText(report.parameters_per_token()), "", "");
}

void AppendFiles(const FilesReport& files, std::uint64_t num_expected, std::string* out) {
  *out += '\n';
  AppendLine(out, "files",
             fmt::format("{} shards, {}", files.num_shards, BytesText(files.num_file_bytes)));
  AppendLine(out, "tensors",
             fmt::format("{} present, {} expected, {} skipped ({}), {} unknown", files.num_present,
                         num_expected, files.num_skipped, BytesText(files.skipped_bytes),
                         files.num_unknown));
  AppendLine(out, "matrices",
             fmt::format("{} MXFP4, {} BF16", files.num_mxfp4_matrices, files.num_bf16_matrices));
}

void AppendState(const InspectReport& report, std::string* out) {
  const StateReport& state = report.state;
  const model::Model& m = report.model;
  *out += '\n';
  AppendLine(out, "state per sequence",
             fmt::format("{} recurrent + {} convolution ({} KDA layers)",
                         BytesText(state.kda_recurrent_bytes), BytesText(state.kda_conv_bytes),
                         m.CountLayers(model::Mixer::kKda)));
  AppendLine(out, "state per token",
             fmt::format("{} latents ({} MLA layers)", BytesText(state.mla_bytes_per_token),
                         m.CountLayers(model::Mixer::kMla)));
  AppendLine(out, "memory plan",
             fmt::format("{} sequences of {} tokens: weights {} + KDA {} + MLA {} = {}",
                         report.plan.num_sequences, report.plan.context_tokens,
                         BytesText(report.plan.weight_bytes), BytesText(report.plan.kda_bytes),
                         BytesText(report.plan.mla_bytes), BytesText(report.plan.total_bytes)));
}

std::string LayerText(const model::DrafterLayer& layer) {
  return fmt::format(
      "{}, {} in the block",
      layer.sliding_window > 0 ? fmt::format("window {}", layer.sliding_window) : "whole context",
      layer.causal_in_block ? "causal" : "both ways");
}

std::string MarkovText(const model::Drafter& drafter) {
  if (drafter.markov_rank == 0) return "no Markov";
  return fmt::format("{} Markov of rank {}", model::MarkovHeadName(drafter.markov_head),
                     drafter.markov_rank);
}

void AppendDrafter(const DrafterReport& report, std::string* out) {
  const model::Drafter& d = report.drafter;
  *out += '\n';
  AppendLine(out, "drafter", fmt::format("{} ({})", report.source, d.format));
  AppendLine(out, "  layers", fmt::to_string(d.layers.size()));
  std::vector<std::string> seen;
  for (const model::DrafterLayer& layer : d.layers) {
    const std::string text = LayerText(layer);
    if (std::find(seen.begin(), seen.end(), text) != seen.end()) continue;
    seen.push_back(text);
    std::vector<std::int64_t> alike;
    for (std::size_t i = 0; i < d.layers.size(); ++i) {
      if (LayerText(d.layers[i]) == text) alike.push_back(static_cast<std::int64_t>(i));
    }
    AppendLine(out, "", fmt::format("{} {}: {}", alike.size(), text, RangeText(alike)));
  }
  AppendLine(out, "  width",
             fmt::format("{} query and {} key heads x {}, dense {}", d.num_attention_heads,
                         d.num_key_value_heads, d.head_dim, d.intermediate_size));
  AppendLine(out, "  reads", fmt::format("what enters layers {}", fmt::join(d.aux_layers, ", ")));
  if (d.max_position_embeddings > 0) {
    AppendLine(out, "  made for", fmt::format("{} positions", d.max_position_embeddings));
  }
  AppendLine(out, "  block",
             fmt::format("{} slots, {} drafts, mask token {}", d.block_size, d.MaxDrafts(),
                         d.mask_token_id));
  AppendLine(out, "  heads",
             fmt::format("{}, {}, {}", d.tie_word_embeddings ? "tied to the embedding" : "own",
                         MarkovText(d),
                         !d.confidence_head         ? "no confidence"
                         : d.confidence_with_markov ? "confidence with Markov"
                                                    : "confidence"));
  AppendLine(out, "  weights",
             fmt::format("{} tensors, {} parameters, {} ({} read per block)",
                         report.stored.num_tensors, CountText(report.stored.num_parameters),
                         BytesText(report.stored.num_bytes), BytesText(report.bytes_per_block)));
  AppendLine(out, "  files",
             report.num_shards > 0
                 ? fmt::format("{} shards, {}", report.num_shards, BytesText(report.num_file_bytes))
                 : "none read");
  AppendLine(out, "  state per token", BytesText(report.context_bytes_per_token));
}

void AppendDraftPlan(const DraftPlan& plan, std::string* out) {
  AppendLine(out, "drafting plan",
             fmt::format("{} drafts a step: weights {} + KDA {} + context {}, with the model {}",
                         plan.num_drafts, BytesText(plan.weight_bytes), BytesText(plan.kda_bytes),
                         BytesText(plan.context_bytes), BytesText(plan.total_bytes)));
}

ordered_json SizeJson(const model::StoredSize& size) {
  return {{"tensors", size.num_tensors},
          {"parameters", size.num_parameters},
          {"stored_bytes", size.num_bytes}};
}

template <typename T>
ordered_json OrNull(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json ArchitectureJson(const InspectReport& report) {
  const model::Model& m = report.model;
  ordered_json groups = ordered_json::array();
  for (const LayerGroup& group : report.layer_groups) {
    groups.push_back({{"mixer", MixerName(group.mixer)},
                      {"feed_forward", FeedForwardName(group.feed_forward)},
                      {"layers", group.layers}});
  }
  return {
      {"family", m.family},
      {"num_hidden_layers", m.layers.size()},
      {"layer_groups", groups},
      {"hidden_size", m.hidden_size},
      {"intermediate_size", m.intermediate_size},
      {"vocab_size", m.vocab_size},
      {"max_position_embeddings", m.max_position_embeddings},
      {"attn_res_block_size", m.attn_res_block_size},
      {"tie_word_embeddings", m.tie_word_embeddings},
      {"kda",
       {{"num_heads", m.kda.num_heads},
        {"head_dim", m.kda.head_dim},
        {"short_conv_kernel_size", m.kda.short_conv_kernel_size},
        {"gate_lower_bound", OrNull(m.kda.gate_lower_bound)},
        {"use_full_rank_gate", m.kda.use_full_rank_gate}}},
      {"mla",
       {{"num_attention_heads", m.mla.num_attention_heads},
        {"q_lora_rank", OrNull(m.mla.q_lora_rank)},
        {"kv_lora_rank", m.mla.kv_lora_rank},
        {"qk_nope_head_dim", m.mla.qk_nope_head_dim},
        {"qk_rope_head_dim", m.mla.qk_rope_head_dim},
        {"v_head_dim", m.mla.v_head_dim},
        {"use_output_gate", m.mla.use_output_gate}}},
      {"moe",
       {{"num_experts", m.moe.num_experts},
        {"num_experts_per_token", m.moe.num_experts_per_token},
        {"num_shared_experts", m.moe.num_shared_experts},
        {"moe_intermediate_size", m.moe.moe_intermediate_size},
        {"routed_expert_hidden_size", OrNull(m.moe.routed_expert_hidden_size)}}},
  };
}

ordered_json MarkovHeadJson(const model::Drafter& drafter) {
  if (drafter.markov_rank == 0) return nullptr;
  return model::MarkovHeadName(drafter.markov_head);
}

ordered_json DrafterJson(const DrafterReport& report) {
  const model::Drafter& d = report.drafter;
  ordered_json layers = ordered_json::array();
  for (const model::DrafterLayer& layer : d.layers) {
    layers.push_back(
        {{"sliding_window", layer.sliding_window}, {"causal_in_block", layer.causal_in_block}});
  }
  ordered_json json = {{"path", report.source},
                       {"format", d.format},
                       {"layers", layers},
                       {"hidden_size", d.hidden_size},
                       {"vocab_size", d.vocab_size},
                       {"intermediate_size", d.intermediate_size},
                       {"num_attention_heads", d.num_attention_heads},
                       {"num_key_value_heads", d.num_key_value_heads},
                       {"head_dim", d.head_dim},
                       {"rope_theta", d.rope_theta},
                       {"max_position_embeddings", d.max_position_embeddings > 0
                                                       ? ordered_json(d.max_position_embeddings)
                                                       : ordered_json(nullptr)},
                       {"aux_layers", d.aux_layers},
                       {"block_size", d.block_size},
                       {"max_drafts", d.MaxDrafts()},
                       {"sample_from_anchor", d.sample_from_anchor},
                       {"mask_token_id", d.mask_token_id},
                       {"markov_rank", d.markov_rank},
                       {"markov_head_type", MarkovHeadJson(d)},
                       {"confidence_head", d.confidence_head},
                       {"confidence_with_markov", d.confidence_with_markov},
                       {"tie_word_embeddings", d.tie_word_embeddings}};
  json.update(SizeJson(report.stored));
  json["bytes_per_block"] = report.bytes_per_block;
  json["context_bytes_per_token"] = report.context_bytes_per_token;
  json["shards"] = report.num_shards;
  json["file_bytes"] = report.num_file_bytes;
  return json;
}

}  // namespace

std::string ToText(const InspectReport& report) {
  std::string out;
  AppendLine(&out, "model", report.source);
  AppendArchitecture(report, &out);
  AppendParts(report, &out);
  if (report.files) {
    AppendFiles(*report.files, report.num_expected, &out);
  } else {
    out += '\n';
    AppendLine(&out, "tensors", fmt::format("{} expected (no shards read)", report.num_expected));
  }
  AppendState(report, &out);
  if (report.drafter) AppendDrafter(*report.drafter, &out);
  if (report.draft_plan) AppendDraftPlan(*report.draft_plan, &out);
  for (const std::string& warning : report.warnings) AppendLine(&out, "warning", warning);
  return out;
}

std::string ToJson(const InspectReport& report) {
  ordered_json parts = ordered_json::array();
  for (const PartReport& part : report.parts) {
    ordered_json entry = {{"part", model::PartName(part.part)}};
    entry.update(SizeJson(part.stored));
    entry["parameters_per_token"] = part.parameters_per_token;
    entry["bytes_per_token"] = part.bytes_per_token;
    parts.push_back(std::move(entry));
  }
  ordered_json total = SizeJson(report.stored());
  total["parameters_per_token"] = report.parameters_per_token();
  total["bytes_per_token"] = report.bytes_per_token();
  total["dense_bytes_per_token"] = report.dense_bytes_per_token();
  ordered_json root = {
      {"model", report.source}, {"architecture", ArchitectureJson(report)}, {"parts", parts},
      {"total", total},         {"tensors_expected", report.num_expected},
  };
  if (report.files) {
    const FilesReport& files = *report.files;
    root["files"] = {{"shards", files.num_shards},
                     {"file_bytes", files.num_file_bytes},
                     {"prefix", files.prefix},
                     {"tensors_present", files.num_present},
                     {"tensors_skipped", files.num_skipped},
                     {"skipped_bytes", files.skipped_bytes},
                     {"tensors_unknown", files.num_unknown},
                     {"mxfp4_matrices", files.num_mxfp4_matrices},
                     {"bf16_matrices", files.num_bf16_matrices}};
  }
  root["state"] = {{"kda_recurrent_bytes_per_sequence", report.state.kda_recurrent_bytes},
                   {"kda_conv_bytes_per_sequence", report.state.kda_conv_bytes},
                   {"mla_bytes_per_token", report.state.mla_bytes_per_token},
                   {"residual_block_bytes_per_row", report.state.residual_block_bytes}};
  root["memory_plan"] = {
      {"context_tokens", report.plan.context_tokens}, {"sequences", report.plan.num_sequences},
      {"weight_bytes", report.plan.weight_bytes},     {"kda_bytes", report.plan.kda_bytes},
      {"mla_bytes", report.plan.mla_bytes},           {"total_bytes", report.plan.total_bytes}};
  if (report.drafter) root["drafter"] = DrafterJson(*report.drafter);
  if (report.draft_plan) {
    const DraftPlan& plan = *report.draft_plan;
    root["drafting_plan"] = {{"drafts", plan.num_drafts},
                             {"weight_bytes", plan.weight_bytes},
                             {"kda_bytes", plan.kda_bytes},
                             {"context_bytes", plan.context_bytes},
                             {"total_bytes", plan.total_bytes}};
  }
  root["warnings"] = report.warnings;
  // A path need not be valid UTF-8; nothing else here comes from outside unchecked.
  return root.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace megalith::weights
