#pragma once

// The tensors that a drafter needs, as data: spec (DSpark) section 2.2 with its symbols resolved.
// Names are as in the file, without any prefix: `fc`, `layers.0.self_attn.q_proj`, `norm.weight`,
// `markov_head.markov_w2`. All are BF16.

#include <vector>

#include "model/drafter.h"
#include "model/tensors.h"

namespace megalith::model {

/// The rules of `drafter`. Without tie_word_embeddings `lm_head` is among them.
TensorRules MakeDrafterTensorRules(const Drafter& drafter);

/// The rules of every tensor that some drafter has, whether it can be read or not: optional heads,
/// every Markov head, biases, vocabulary maps. Shapes mean nothing.
std::vector<TensorRule> DrafterFamilyTensorRules();

}  // namespace megalith::model
