#pragma once

#include <cstdint>

#include "program/program.h"

namespace megalith::bench {

/// What the steps of one Program read and compute, as its instructions say; of a job of ranks all
/// of them together, taken to be alike.
struct StepCost {
  double dense_bytes = 0.0;   ///< packed weights and vectors, without experts and head
  double head_bytes = 0.0;    ///< packed, read by steps that want logits
  double row_bytes = 0.0;     ///< embedding row of one token
  double expert_bytes = 0.0;  ///< packed, of one active expert of one layer
  std::int64_t num_moe_layers = 0;
  double state_bytes = 0.0;  ///< KDA state and history of one row's sequence, read and written
  double cache_bytes = 0.0;  ///< MLA cache of one position, over all layers, as stored
  // Multiplications and additions of the matrix products; attention and recurrence not counted.
  double row_flops = 0.0;    ///< of one row, with top_k experts a layer, without the head
  double logit_flops = 0.0;  ///< of one row of logits

  /// Of a step with logits; active_experts is summed over the layers.
  double WeightBytes(double rows, double active_experts) const {
    return dense_bytes + head_bytes + rows * row_bytes + active_experts * expert_bytes;
  }
  /// Of rows of different sequences that are `positions` long.
  double StateBytes(double rows, double positions) const {
    return rows * (state_bytes + positions * cache_bytes);
  }
};

/// `top_k`: experts of one row in one layer.
StepCost CostOf(const program::Program& program, std::int64_t top_k);

}  // namespace megalith::bench
