#pragma once

// Where every tensor of a checkpoint goes: shards with their headers, and the index.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "synth/fill.h"

namespace megalith::synth {

struct PlannedTensor {
  std::uint64_t begin = 0;  ///< in the shard's data, behind the header
  std::uint64_t end = 0;
  TensorFill fill;
};

struct PlannedShard {
  std::string file_name;
  std::string header;  ///< length and JSON, padded: the file's first bytes
  std::uint64_t data_bytes = 0;
  std::vector<PlannedTensor> tensors;  ///< in file order, without gaps
};

struct CheckpointPlan {
  std::string config_json;
  std::string index_json;  ///< empty: one shard, model.safetensors, that needs no index
  std::vector<PlannedShard> shards;
  std::uint64_t num_tensors = 0;
  std::uint64_t num_parameters = 0;
  std::uint64_t tensor_bytes = 0;
  std::uint64_t file_bytes = 0;  ///< of the shards, with headers
};

struct PlanOptions {
  std::uint64_t seed = 0;
  /// 0: as Kimi K3 is published, one shard a layer and one for the rest. Else shards are filled in
  /// order with whole tensors up to this size; a larger tensor is a shard of its own.
  std::uint64_t shard_bytes = 0;
};

/// Plans a checkpoint for a config.json. Errors: those of model::ParseConfig.
Result<CheckpointPlan> PlanCheckpoint(std::string_view config_json, const PlanOptions& options);

/// Plans a drafter for `target`: one file unless shard_bytes cuts it. Errors: those of
/// model::ParseDrafterConfig.
Result<CheckpointPlan> PlanDrafter(std::string_view config_json, const model::Model& target,
                                   const PlanOptions& options);

}  // namespace megalith::synth
