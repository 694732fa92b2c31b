#pragma once

// The buffer that kRoutePlan writes and the expert instructions read: for every active expert the
// rows that chose it. Layout: program::PlanColumns. Pair p is also row p of every kPairs buffer.

#include <cstdint>

#include "base/result.h"

namespace megalith::exec {

/// A view of a plan for up to `max_pairs` pairs.
class RoutePlan {
 public:
  RoutePlan(std::int32_t* data, std::int64_t num_experts, std::int64_t max_pairs)
      : experts_(data),
        first_pair_(experts_ + num_experts),
        rows_(first_pair_ + num_experts + 1),
        weights_(reinterpret_cast<float*>(rows_ + max_pairs)),
        num_experts_(num_experts) {}
  /// For `columns` elements, as Program buffers declare it.
  static RoutePlan FromColumns(std::int32_t* data, std::int64_t num_experts, std::int64_t columns) {
    return RoutePlan(data, num_experts, (columns - 2 * num_experts - 1) / 2);
  }

  // `active` counts the experts that some row chose, ascending by id.
  std::int32_t Expert(std::int64_t active) const { return experts_[active]; }
  std::int32_t FirstPair(std::int64_t active) const { return first_pair_[active]; }
  std::int32_t NumPairs(std::int64_t active) const {
    return first_pair_[active + 1] - first_pair_[active];
  }
  /// Rows and routing weights of the expert's pairs, rows ascending.
  const std::int32_t* Rows(std::int64_t active) const { return rows_ + first_pair_[active]; }
  const float* Weights(std::int64_t active) const { return weights_ + first_pair_[active]; }
  float WeightOfPair(std::int64_t pair) const { return weights_[pair]; }

  /// The first of `num_active` active experts that is `expert` or comes after it.
  std::int64_t FirstActive(std::int64_t expert, std::int64_t num_active) const;
  /// The pair of a row and an expert that it chose.
  std::int64_t PairOf(std::int64_t expert, std::int64_t row, std::int64_t num_active) const;

  /// Writes the plan from ids [rows][top_k] (row stride id_stride) and their weights; returns the
  /// number of active experts, or -1 if an id is not in [0, num_experts).
  std::int64_t Build(const std::int32_t* ids, std::int64_t id_stride, const float* weights,
                     std::int64_t weight_stride, std::int64_t rows, std::int64_t top_k);

 private:
  std::int32_t* experts_;     // [num_experts]
  std::int32_t* first_pair_;  // [num_experts + 1]
  std::int32_t* rows_;        // [max_pairs]
  float* weights_;            // [max_pairs]
  std::int64_t num_experts_;
};

}  // namespace megalith::exec
