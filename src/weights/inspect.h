#pragma once

// What a model is and what it costs, from config.json and shard headers: architecture, parameters,
// bytes by part stored and read per token, state, memory for a context length.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/drafter.h"
#include "model/model.h"
#include "model/tensors.h"
#include "weights/checkpoint.h"

namespace megalith::weights {

struct PartReport {
  model::Part part = model::Part::kNorms;
  model::StoredSize stored;
  /// Parameters and bytes that one token of one sequence needs: all of a dense part, the chosen
  /// experts of every MoE layer, one row of the embedding.
  std::uint64_t parameters_per_token = 0;
  std::uint64_t bytes_per_token = 0;
};

/// Layers that are alike, in order of first appearance.
struct LayerGroup {
  model::Mixer mixer = model::Mixer::kKda;
  model::FeedForward feed_forward = model::FeedForward::kDense;
  std::vector<std::int64_t> layers;  ///< zero-based
};

/// Bytes of sequence state as the engine's caches hold it (spec section 7).
struct StateReport {
  std::uint64_t kda_recurrent_bytes = 0;   ///< per sequence: fp32 [heads][D][D], KDA layers
  std::uint64_t kda_conv_bytes = 0;        ///< per sequence: bf16 inputs of the short convolutions
  std::uint64_t mla_bytes_per_token = 0;   ///< bf16 latents and shared key part, MLA layers
  std::uint64_t residual_block_bytes = 0;  ///< per row, only during a step
};

struct MemoryPlan {
  std::int64_t context_tokens = 0;
  std::int64_t num_sequences = 0;
  std::uint64_t weight_bytes = 0;  ///< as stored, without skipped tensors
  std::uint64_t kda_bytes = 0;     ///< all sequences
  std::uint64_t mla_bytes = 0;     ///< all sequences at context_tokens
  std::uint64_t total_bytes = 0;
};

/// Only with shards.
struct FilesReport {
  std::size_t num_shards = 0;
  std::uint64_t num_file_bytes = 0;
  std::uint64_t num_present = 0;  ///< all tensors in the shards
  std::uint64_t num_skipped = 0;
  std::uint64_t skipped_bytes = 0;
  std::uint64_t num_unknown = 0;
  std::uint64_t num_mxfp4_matrices = 0;
  std::uint64_t num_bf16_matrices = 0;
  std::string prefix;
};

/// What drafting adds to the memory plan: the state of a sequence is kept once more for every draft
/// of a step, and a drafter has a context of its own.
struct DraftPlan {
  std::int64_t num_drafts = 0;      ///< at most in a step
  std::uint64_t weight_bytes = 0;   ///< of the drafter; 0: there is none
  std::uint64_t kda_bytes = 0;      ///< all sequences
  std::uint64_t context_bytes = 0;  ///< all sequences, of the drafter
  std::uint64_t total_bytes = 0;    ///< of plan and memory plan
};

struct DrafterReport {
  std::string source;  ///< directory or config file
  model::Drafter drafter;
  model::StoredSize stored;
  /// Weights that proposing one block reads: all but the tables that are read by the row.
  std::uint64_t bytes_per_block = 0;
  /// bf16 keys and values of one context position, all layers.
  std::uint64_t context_bytes_per_token = 0;
  std::size_t num_shards = 0;  ///< 0: from the config alone
  std::uint64_t num_file_bytes = 0;
};

struct InspectReport {
  std::string source;  ///< directory or config file
  model::Model model;
  std::vector<LayerGroup> layer_groups;
  std::uint64_t num_expected = 0;  ///< tensors
  std::array<PartReport, model::kNumModelParts> parts = {};
  StateReport state;
  MemoryPlan plan;
  std::optional<FilesReport> files;      ///< empty: from the config alone
  std::optional<DrafterReport> drafter;  ///< not part of any number above
  std::optional<DraftPlan> draft_plan;   ///< empty: nothing drafts
  std::vector<std::string> warnings;

  model::StoredSize stored() const;  ///< sum over the parts
  std::uint64_t parameters_per_token() const;
  std::uint64_t bytes_per_token() const;
  /// What every token reads whatever it is: per token without routed experts and embedding row.
  std::uint64_t dense_bytes_per_token() const;
};

struct InspectOptions {
  /// Tokens of the memory plan; empty: max_position_embeddings.
  std::optional<std::int64_t> context_tokens;
  std::int64_t num_sequences = 1;
  std::int64_t max_drafts = 7;  ///< of a step, in the plan; 0: nothing drafts
  /// A drafter's directory or config.json. Empty: none, or with `drafter_beside` the folder
  /// `dspark` of the model's directory if it is there and can be read, a warning if it cannot.
  std::string drafter;
  bool drafter_beside = true;
  /// The text proposes, too: as many drafts as a step may verify, not only the drafter's block. By
  /// itself only without `drafter_beside`.
  bool drafts_from_text = true;
};

/// A directory with shards, a directory with only a config.json, or a config.json; the same for the
/// drafter. From a config alone, routed experts are MXFP4 if its quantization_config says so.
/// Errors as Checkpoint::Open (a directory that holds any .safetensors or index file is opened
/// fully); kOutOfRange: options that are negative, a plan for no tokens or sequences, a context
/// above max_position_embeddings, a plan whose bytes do not fit 64 bits.
Result<InspectReport> Inspect(const std::string& path, const InspectOptions& options);

/// A page for a terminal.
std::string ToText(const InspectReport& report);
/// One JSON object, indented.
std::string ToJson(const InspectReport& report);

}  // namespace megalith::weights
