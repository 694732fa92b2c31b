#pragma once

// What the kinds of steps cost on this machine, relative to each other.
//
// A step that verifies v drafts and requests r new ones takes
//
//     seconds = level * (rows[v] + drafting[r]) * noise,      drafting[0] = 0
//
// where `level` belongs to the sequence and the moment (a long context, a busy machine) and the
// other two belong to machine and model and are shared by all sequences. Only their ratios matter
// to decisions, so a machine that becomes slower as a whole must move the level and nothing else.
// That is a matter of who is less certain: a Kalman filter on the logarithm of the step's time. A
// record that was not predicted corrects each cost in proportion to its covariance with this step,
// and the level in proportion to its variance; both grow with every record. (The covariances of
// level and costs are neglected.)
//
// A step can be slow by accident, but not fast. A record far above the prediction changes nothing
// but the variances, so that only a repetition convinces; one far below is believed at once. The
// variance of a cost that is known from many records stays as it is: on a busy machine every
// sequence has surprises, and the plain step, seen most often, would sink beside all others.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace megalith::engine {

/// Used by one thread at a time.
class StepCosts {
 public:
  /// How long steps of one sequence take at present, in log(seconds) of a step of cost 1.
  struct Level {
    double log_seconds = 0.0;
    double variance = -1.0;  ///< < 0: nothing was recorded yet
  };

  /// For steps that verify and request up to `max_drafts` >= 0.
  explicit StepCosts(std::int32_t max_drafts);

  std::int32_t max_drafts() const { return max_drafts_; }

  /// Cost of 1 + `num_drafts` rows. A kind never seen is interpolated between its neighbours, with
  /// half of the rise from the cheaper one: it has to look attractive to be tried.
  double Rows(std::int32_t num_drafts) const;
  /// Cost of requesting `num_requested` drafts. Never seen: the next larger request seen, with half
  /// of its cost in proportion to the number.
  double Drafting(std::int32_t num_requested) const;

  /// Whether steps of 1 + num_drafts rows have been recorded often enough to be compared with.
  bool KnowsRows(std::int32_t num_drafts) const;

  /// What drafts that are paid for, or those that cost nothing, have lost so far, over all
  /// sequences, in plain steps; below 0: gained.
  double StepsLost(bool request_costs) const { return steps_lost_[request_costs ? 1 : 0]; }
  /// More has been lost. Gains of long ago do not count for ever.
  void AddStepsLost(bool request_costs, double steps);

  /// Learns from one step: `seconds` > 0 and finite, else it is ignored; counts in [0, max_drafts].
  void Record(std::int32_t num_drafts, std::int32_t num_requested, double seconds, Level* level);

 private:
  struct Cost {
    double value = 0.0;
    std::int64_t num_records = 0;
    std::int64_t num_believed = 0;  ///< of them, not taken for accidents
  };
  const Cost& RowsEntry(std::int32_t num_drafts) const {
    return costs_[static_cast<std::size_t>(num_drafts)];
  }
  const Cost& DraftingEntry(std::int32_t num_requested) const {
    return costs_[static_cast<std::size_t>(max_drafts_ + num_requested)];
  }
  double& Covariance(std::size_t i, std::size_t j) { return covariance_[i * costs_.size() + j]; }

  /// Counts a record of a cost; the first starts from `guess`.
  void Begin(std::size_t index, double guess, double deviation);
  /// Covariance of every cost with the logarithm of the sum of the given ones.
  std::vector<double> CovarianceWithSum(std::span<const std::size_t> summands, double sum);

  std::int32_t max_drafts_;
  std::vector<Cost> costs_;         // rows[0 .. max_drafts], drafting[1 .. max_drafts]
  std::vector<double> covariance_;  // [costs, costs] of the values
  double noise_variance_;           // of log(seconds) around the prediction
  std::array<double, 2> steps_lost_{};
};

}  // namespace megalith::engine
