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
// That is a matter of who is less certain: every quantity carries a variance, a record that was not
// predicted corrects each in proportion to its share of the variance (a Kalman filter that neglects
// covariances), and variance grows with the records since a quantity was last seen.
//
// A step can be slow by accident, but not fast. A record far above the prediction changes nothing
// but the variances, so that only a repetition convinces; one far below is believed at once.

#include <cstdint>
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

  std::int32_t max_drafts() const { return static_cast<std::int32_t>(rows_.size()) - 1; }

  /// Cost of 1 + `num_drafts` rows. A kind never seen is interpolated between its neighbours, with
  /// half of the rise from the cheaper one: it has to look attractive to be tried.
  double Rows(std::int32_t num_drafts) const;
  /// Cost of requesting `num_requested` drafts. Never seen: the next larger request seen, with half
  /// of its cost in proportion to the number.
  double Drafting(std::int32_t num_requested) const;

  /// Whether steps of 1 + num_drafts rows have been recorded often enough to be compared with.
  bool KnowsRows(std::int32_t num_drafts) const;

  /// Learns from one step: `seconds` > 0 and finite, else it is ignored; counts in [0, max_drafts].
  void Record(std::int32_t num_drafts, std::int32_t num_requested, double seconds, Level* level);

 private:
  struct Estimate {
    double value = 0.0;
    double variance = 0.0;  ///< of value, at `last_record`
    std::int64_t last_record = 0;
    std::int32_t num_records = 0;
  };
  /// Brings an estimate's variance up to date; a first record starts from the guess.
  void Refresh(Estimate* estimate, double guess, double deviation) const;

  std::vector<Estimate> rows_;      // [max_drafts + 1]
  std::vector<Estimate> drafting_;  // [max_drafts + 1], the first unused
  std::int64_t num_records_ = 0;
  double noise_variance_;  // of log(seconds) around the prediction
};

}  // namespace megalith::engine
