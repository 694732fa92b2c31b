#pragma once

// A drafter as data: a small transformer that reads some of the target's residual vectors and
// proposes a block of tokens at once (DSpark). Read from a config.json of its own by dspark.h.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::model {

struct DrafterLayer {
  /// Context positions that a block sees, counted back from its anchor; 0: all.
  std::int64_t sliding_window = 0;
  /// A slot sees the block's slots up to itself only; else all of them.
  bool causal_in_block = false;
};

/// How the tokens before a slot change its logits. All add w2 times a vector of markov_rank numbers
/// to them; e is the row of w1 of the token before, h the slot's hidden row.
enum class MarkovHead : std::uint8_t {
  kVanilla,  ///< the vector is e
  kGated,    ///< sigmoid(gate_proj [h; e] + bias) * e
  kRnn,      ///< tanh(o) of (g, c, o) = joint_proj [s; e; h] + bias; the state s, zero at the start
             ///< of a block, becomes sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c)
};

/// As in configs: "vanilla", "gated", "rnn".
constexpr std::string_view MarkovHeadName(MarkovHead head) {
  switch (head) {
    case MarkovHead::kVanilla:
      return "vanilla";
    case MarkovHead::kGated:
      return "gated";
    case MarkovHead::kRnn:
      return "rnn";
  }
  return "?";
}

struct Drafter {
  std::string format;            ///< "speculators" or "deepspec"
  std::int64_t hidden_size = 0;  ///< the target's
  std::int64_t vocab_size = 0;   ///< the target's
  std::int64_t intermediate_size = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;  ///< divides num_attention_heads
  std::int64_t head_dim = 0;             ///< even
  float rms_norm_eps = 0.0f;
  double rope_theta = 0.0;
  /// What it has been made for; 0: not said. Rotary positions go on behind it, where drafts may be
  /// accepted less often.
  std::int64_t max_position_embeddings = 0;
  /// Target layers whose incoming residual (the raw prefix) is read, ascending and distinct, in the
  /// order of the columns of `fc`. Formats that count a layer's output are already shifted by one.
  std::vector<std::int64_t> aux_layers;
  std::int64_t block_size = 0;  ///< slots of a block, the anchor's included
  std::int64_t mask_token_id = 0;
  std::int64_t markov_rank = 0;  ///< 0: no Markov head
  MarkovHead markov_head = MarkovHead::kVanilla;
  bool confidence_head = false;
  /// The confidence head reads the Markov embedding of the previous token, too.
  bool confidence_with_markov = false;
  /// Slot k proposes the token behind its own position; else its own, and the anchor's slot is
  /// unused.
  bool sample_from_anchor = false;
  bool tie_word_embeddings = false;  ///< lm_head is embed_tokens
  std::vector<DrafterLayer> layers;

  /// Tokens that one block can propose, at least 1.
  std::int64_t MaxDrafts() const { return sample_from_anchor ? block_size : block_size - 1; }

  /// Positions of a sequence whose keys and values are kept: so many that up to `max_drafts` that
  /// are taken back never overwrite one that is still seen, at most `max_positions`.
  std::int64_t ContextPositions(std::int64_t max_positions, std::int64_t max_drafts) const {
    std::int64_t positions = 1;
    for (const DrafterLayer& layer : layers) {
      positions = std::max(
          positions, layer.sliding_window == 0 ? max_positions : layer.sliding_window + max_drafts);
    }
    return std::min(positions, max_positions);
  }
};

}  // namespace megalith::model
