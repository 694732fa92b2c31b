#pragma once

// Compares the tensors of a ShardSet with those a Model needs. Private to this folder; the result
// is public through checkpoint.h.

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/drafter.h"
#include "model/model.h"
#include "model/tensors.h"
#include "weights/checkpoint.h"
#include "weights/shard_set.h"

namespace megalith::weights {

/// How this file's names relate to the names without prefix.
struct NamePrefix {
  std::string_view body;  ///< before `layers.`: "language_model.model." or "model."
  std::string_view head;  ///< before `lm_head.`: "language_model." or ""
};

/// kBadTensor when names of both forms, or of neither, are present.
Result<NamePrefix> DetectPrefix(const ShardSet& shards, std::string_view directory);

/// `name` (without prefix, with its ending) as the file spells it, into `out`.
void FullName(const NamePrefix& prefix, std::string_view name, std::string* out);

/// What the set puts before the names of a drafter's files.
inline constexpr NamePrefix kDrafterPrefix{"draft.", "draft."};
/// Folders of a checkpoint's set.
inline constexpr std::size_t kModelFolder = 0;
inline constexpr std::size_t kDrafterFolder = 1;

/// Checks every tensor of the first folder. kBadTensor with counts and the first of each kind.
Result<Census> TakeCensus(const ShardSet& shards, const NamePrefix& prefix,
                          const model::Model& model, const model::TensorRules& rules,
                          std::string_view directory);

/// The same of the second folder. A drafter's matrices are BF16. Messages spell names as the files.
Result<Census> TakeDrafterCensus(const ShardSet& shards, const model::Drafter& drafter,
                                 const model::TensorRules& rules, std::string_view directory);

}  // namespace megalith::weights
