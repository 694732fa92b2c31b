#pragma once

// A model directory: config.json plus shards, with every tensor the model needs present in the
// right shape and dtype, and on demand a drafter's directory beside it. Opening reads headers only.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/drafter.h"
#include "model/model.h"
#include "model/tensors.h"
#include "weights/shard_set.h"

namespace megalith::weights {

enum class MatrixFormat : std::uint8_t { kBf16, kMxfp4 };

/// A weight matrix [rows, columns] = [outputs, inputs] as stored.
struct MatrixView {
  MatrixFormat format = MatrixFormat::kBf16;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  TensorView weight;  ///< kBf16: [rows, columns] BF16; kMxfp4: codes [rows, columns / 2] U8
  TensorView scale;   ///< kMxfp4: [rows, columns / 32] U8; else empty
};

/// Result of comparing the files' tensors with the model's.
struct Census {
  std::uint64_t num_expected = 0;  ///< tensors the model needs, all present
  /// The same by part, as stored. An MXFP4 matrix counts as two tensors, its elements once.
  std::array<model::StoredSize, model::kNumParts> parts = {};
  std::uint64_t num_mxfp4_matrices = 0;
  std::uint64_t num_bf16_matrices = 0;
  std::uint64_t num_skipped = 0;  ///< under a known prefix that a text model does not use
  std::uint64_t skipped_bytes = 0;
  std::uint64_t num_unknown = 0;  ///< under no known name
  /// Unknown tensors and config keys, one line each, capped. The model's census has the drafter's,
  /// too, with its directory.
  std::vector<std::string> warnings;
};

/// Const after Open: every member may be called from any number of threads at once.
class Checkpoint {
 public:
  /// Errors of model::ReadConfig and ShardSet::Open; kBadTensor: tensors absent, of another shape
  /// or dtype, stored both as `.weight` and packed, or under mixed prefixes, or tensors of the
  /// family that this config does not use: config and tensors contradict each other. The message
  /// gives counts and the first tensors, each with its shard.
  /// With a `drafter_directory` also a drafter for this model, checked as strictly, with errors
  /// that name its directory; also those of model::ReadDrafterConfig. Its tensors get `draft.` put
  /// before their names; packing, reading and releasing know no difference.
  static Result<Checkpoint> Open(const std::string& directory,
                                 const std::string& drafter_directory = {});

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::string& directory() const;
  const model::Model& model() const;
  const model::TensorRules& rules() const;
  const ShardSet& shards() const;
  const Census& census() const;
  /// The drafter, its rules (names without `draft.`) and census; null, empty without one.
  const model::Drafter* drafter() const;
  const model::TensorRules& drafter_rules() const;
  const Census& drafter_census() const;
  const std::string& drafter_directory() const;
  /// What precedes `layers.` in the model's files: "language_model.model." or "model.".
  std::string_view prefix() const;

  /// A tensor by its name without prefix: `layers.3.self_attn.A_log`, `norm.weight`,
  /// `lm_head.weight`. With tied embeddings `lm_head.weight` is `embed_tokens.weight`. The
  /// drafter's are `draft.fc.weight`, `draft.layers.0.self_attn.q_norm.weight`,
  /// `draft.lm_head.weight`. kBadTensor when the file has none.
  Result<TensorView> Find(std::string_view name) const;

  /// A matrix by its name without prefix and without `.weight`:
  /// `layers.3.block_sparse_moe.experts.7.w1`, `lm_head`, `embed_tokens`, `draft.fc`.
  Result<MatrixView> FindMatrix(std::string_view name) const;

  /// See ShardSet.
  Status ReadTensor(const TensorView& view, std::span<std::byte> destination) const {
    return shards().Read(view, destination);
  }
  Result<std::span<const std::byte>> MapTensor(const TensorView& view) const {
    return shards().Map(view);
  }

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// E8M0 scales: 1..254 mean 2^(s - 127). 0 and 255 (NaN) are in no released checkpoint and are
/// refused. The position of the first such byte, or nothing. To be called on the bytes that are
/// packed, so that no extra pass over the file is made.
std::optional<std::size_t> FindBadMxfp4Scale(std::span<const std::byte> scales);

}  // namespace megalith::weights
