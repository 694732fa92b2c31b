#pragma once

// The tensors that a Model needs, as data: spec section 3 with its symbols resolved. A rule stands
// for one tensor of the model, or for one per layer of its kind, or for one per expert of each of
// those layers, so that half a million tensors are about a hundred rules.
//
// Names here have no prefix: `layers.3.self_attn.q_proj`, `embed_tokens.weight`, `lm_head`. The
// prefix of a file (`language_model.model.` or `model.`) belongs to the checkpoint.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "model/model.h"

namespace megalith::model {

/// What a tensor belongs to, for byte accounting (spec section 8). kNorms holds the layer norms,
/// the attention-residual vectors and the final norm. Of a drafter, kEmbedding holds both tables
/// that are read by the row (embed_tokens and the Markov head's first matrix) and kHead all that
/// makes logits and confidences.
enum class Part : std::uint8_t {
  kEmbedding,
  kKda,
  kMla,
  kDenseFfn,
  kRouter,
  kLatent,
  kSharedExperts,
  kExperts,
  kNorms,
  kHead,
  // Only drafters have these.
  kAttention,
  kFusion,  ///< the projection of the target's vectors
};
inline constexpr int kNumModelParts = 10;  ///< those before kAttention
inline constexpr int kNumParts = 12;
std::string_view PartName(Part part);

enum class TensorKind : std::uint8_t {
  /// [rows, columns]. Stored as NAME.weight (BF16) or as NAME.weight_packed [rows, columns / 2] and
  /// NAME.weight_scale [rows, columns / 32] (both U8, MXFP4): the file decides, by which exists.
  kMatrix,
  kPlain,     ///< exactly this name, shape and dtype
  kConvTaps,  ///< [channels, 1, width] or [channels, width]
  kPerHead,   ///< rank 1, at least shape[0] entries stored; only the first shape[0] mean anything
};

struct TensorRule {
  /// With `{layer}` and `{expert}` where they vary. kMatrix: without `.weight`.
  std::string name;
  TensorKind kind = TensorKind::kPlain;
  DType dtype = DType::kBf16;  ///< kMatrix: of the unquantized form
  std::vector<std::int64_t> shape;
  Part part = Part::kNorms;
  std::int64_t num_experts = 0;  ///< 0: not one per expert
  /// kPerHead: entries a writer of this family stores (the K3 files pad to head_dim).
  std::int64_t stored_length = 0;
};

struct TensorRules {
  std::vector<TensorRule> model_rules;               ///< once per model
  std::vector<std::vector<TensorRule>> layer_kinds;  ///< rules of each distinct kind of layer
  std::vector<std::uint32_t> kind_of_layer;          ///< [layers], index into layer_kinds
};

/// The rules of `model`. Without tie_word_embeddings `lm_head` is among them.
TensorRules MakeTensorRules(const Model& model);

/// The rules of every tensor that some model of the family has in some layer, whatever `model`
/// itself needs: layers of each kind, with and without each optional part. Shapes mean nothing.
/// Names may occur more than once.
std::vector<TensorRule> FamilyTensorRules(const Model& model);

/// Tensors, elements and bytes in the file. Saturates instead of wrapping.
struct StoredSize {
  std::uint64_t num_tensors = 0;
  std::uint64_t num_parameters = 0;
  std::uint64_t num_bytes = 0;
};

/// One tensor of this rule as files hold it: `mxfp4` (kMatrix only) as codes and scales, two
/// tensors of rows x columns parameters.
StoredSize SizeOf(const TensorRule& rule, bool mxfp4);

/// All tensors by part, [kNumParts]; routed experts as MXFP4 or BF16, all other matrices as BF16.
std::array<StoredSize, kNumParts> CountTensors(const TensorRules& rules, bool mxfp4_experts);

/// Sum over the parts.
StoredSize Total(const std::array<StoredSize, kNumParts>& parts);

/// `rule.name` with the placeholders replaced, into `out` (reused, no allocation after the first).
void ExpandTensorName(const TensorRule& rule, std::int64_t layer, std::int64_t expert,
                      std::string* out);

/// Calls visit(const TensorRule&, layer, expert, name) for every tensor, in layer order; layer and
/// expert are -1 where they do not apply. `name` is valid during the call.
template <typename Visit>
void ForEachTensor(const TensorRules& rules, Visit&& visit) {
  std::string name;
  const auto expand = [&](const TensorRule& rule, std::int64_t layer) {
    const std::int64_t count = rule.num_experts == 0 ? 1 : rule.num_experts;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t expert = rule.num_experts == 0 ? -1 : i;
      ExpandTensorName(rule, layer, expert, &name);
      visit(rule, layer, expert, std::string_view(name));
    }
  };
  for (const TensorRule& rule : rules.model_rules) expand(rule, -1);
  for (std::size_t layer = 0; layer < rules.kind_of_layer.size(); ++layer) {
    for (const TensorRule& rule : rules.layer_kinds[rules.kind_of_layer[layer]]) {
      expand(rule, static_cast<std::int64_t>(layer));
    }
  }
}

}  // namespace megalith::model
