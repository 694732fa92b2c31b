#pragma once

// Header-only checkpoints for tests: every tensor that a config needs is declared in real shard
// files of the right size, but the data is a hole, so a 1.5 TB model takes as much disk as its
// headers. Not for computing: every weight reads as zero, also the MXFP4 scales, which loading
// refuses.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "model/model.h"

namespace megalith::tools {

struct FakeTensor {
  std::string name;  ///< with the file's prefix
  DType dtype = DType::kBf16;
  std::vector<std::int64_t> shape;
  std::uint32_t shard = 0;  ///< zero-based
};

struct FakeLayout {
  bool nested_names =
      true;  ///< language_model.model. / language_model.lm_head, else model. / lm_head
  bool mxfp4_experts = true;  ///< packed codes and scales, else BF16
  bool conv_rank_2 = false;   ///< [channels, width] instead of [channels, 1, width]
};

/// The tensors of the model in file order, laid out over shards as the released checkpoint does:
/// layer l in shard l, then one shard with embedding, final norms and head.
std::vector<FakeTensor> ListFakeTensors(const model::Model& model, const FakeLayout& layout);

/// The vision tower and projector that `config_json`'s vision_config describes, in two shards from
/// `first_shard`. Empty when the config has no complete vision_config.
std::vector<FakeTensor> ListFakeVisionTensors(std::string_view config_json,
                                              std::uint32_t first_shard);

/// Writes config.json, the shards and model.safetensors.index.json into `directory` (created).
Status WriteFakeCheckpoint(const std::string& directory, std::string_view config_json,
                           const std::vector<FakeTensor>& tensors);

/// Both lists in the default layout.
Status MakeFakeCheckpoint(const std::string& directory, std::string_view config_json);

}  // namespace megalith::tools
