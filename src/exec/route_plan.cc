#include "exec/route_plan.h"

#include <algorithm>

namespace megalith::exec {

// A counting sort by expert. first_pair_ holds counts per expert id, then the end of each expert's
// list while rows are placed from the back, and last the compact starts of the active ones.
std::int64_t RoutePlan::Build(const std::int32_t* ids, std::int64_t id_stride, const float* weights,
                              std::int64_t weight_stride, std::int64_t rows, std::int64_t top_k) {
  std::fill_n(first_pair_, num_experts_ + 1, 0);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < top_k; ++i) {
      const std::int32_t expert = ids[row * id_stride + i];
      if (expert < 0 || expert >= num_experts_) return -1;
      ++first_pair_[expert];
    }
  }
  for (std::int64_t expert = 1; expert <= num_experts_; ++expert) {
    first_pair_[expert] += first_pair_[expert - 1];
  }
  for (std::int64_t row = rows - 1; row >= 0; --row) {
    for (std::int64_t i = top_k - 1; i >= 0; --i) {
      const std::int32_t pair = --first_pair_[ids[row * id_stride + i]];
      rows_[pair] = static_cast<std::int32_t>(row);
      weights_[pair] = weights[row * weight_stride + i];
    }
  }
  std::int64_t num_active = 0;
  for (std::int64_t expert = 0; expert < num_experts_; ++expert) {
    if (first_pair_[expert] == first_pair_[expert + 1]) continue;
    experts_[num_active] = static_cast<std::int32_t>(expert);
    first_pair_[num_active] = first_pair_[expert];
    ++num_active;
  }
  first_pair_[num_active] = static_cast<std::int32_t>(rows * top_k);
  return num_active;
}

std::int64_t RoutePlan::FirstActive(std::int64_t expert, std::int64_t num_active) const {
  return std::lower_bound(experts_, experts_ + num_active, expert) - experts_;
}

std::int64_t RoutePlan::PairOf(std::int64_t expert, std::int64_t row,
                               std::int64_t num_active) const {
  const std::int64_t active = FirstActive(expert, num_active);
  const std::int32_t* rows = Rows(active);
  return FirstPair(active) + (std::lower_bound(rows, rows + NumPairs(active), row) - rows);
}

}  // namespace megalith::exec
