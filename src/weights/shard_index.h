#pragma once

// model.safetensors.index.json: {"metadata": {...}, "weight_map": {tensor: shard file}}.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace megalith::weights {

struct ShardIndex {
  std::vector<std::string> shard_names;  ///< sorted; checked file names without a directory
  /// Tensor name and index into shard_names, in file order. Names live in `owner`.
  std::vector<std::pair<std::string_view, std::uint32_t>> weight_map;
  std::optional<std::uint64_t> total_size;  ///< metadata.total_size
  std::shared_ptr<const void> owner;
};

/// kBadFile: not such a document; a tensor listed twice; a shard name that is not a plain file name
/// ending in `.safetensors`.
/// Takes the text by value to parse it in place: a full index is 58 MB.
Result<ShardIndex> ParseShardIndex(std::string json, std::string_view source);

/// The shards of `index` that are not in `directory`, as an error that names every one of them,
/// says which numbers of the sequence are gaps and how to fetch only those files.
Status CheckShardsExist(const std::string& directory, const ShardIndex& index);

}  // namespace megalith::weights
