#pragma once

// What the kinds of steps cost on this machine, in plain steps: one row a sequence, no drafts.
//
// A step in which every sequence verifies v drafts and requests r new ones takes
//
//     rows[v] + drafting[r],      rows[0] = 1, drafting[0] = 0
//
// times as long as a plain step of the same sequences at the same moment; if only some of them do,
// what exceeds the plain step is taken to be in proportion to their share. Moments matter: a
// context grows, and a machine that does other things as well may halve its speed within a second.
// So the last few steps before a row of plain ones are compared with the median of three of those,
// the first that do not suffer from the change any more, and no other times are used: no level has
// to be followed over time, and a machine that becomes slower as a whole changes nothing. Whoever
// wants costs to be known has to make plain steps now and then.
//
// The costs belong to machine, model and number of sequences, and are shared by the sequences. Each
// is the median of the last times it was seen: steps are slow by accident, some of them, and hardly
// ever fast. A step that verifies and drafts tells about the summand that has been seen less often,
// given the other; steps that only do one of them come before and after each try. More rows or
// drafts never cost less than fewer.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace megalith::engine {

/// Used by one thread at a time.
class StepCosts {
 public:
  /// That are needed in a row: the first two after others are slower, the median of the next three
  /// is the measure.
  static constexpr std::size_t kPlainSteps = 5;

  /// What the sequences of a step did: those that verify so many drafts each, on average, those
  /// that request so many, and the shares of such sequences.
  struct Kind {
    std::int32_t num_drafts = 0;
    std::int32_t num_requested = 0;
    double verifying = 1.0;
    double requesting = 1.0;
    bool plain() const { return num_drafts == 0 && num_requested == 0; }
    bool sum() const { return num_drafts > 0 && num_requested > 0; }
  };

  /// The last steps of the same sequences that wait for plain ones to be compared with.
  struct Waiting {
    struct Step {
      Kind kind;
      double seconds;
    };
    std::vector<Step> steps;
    std::vector<double> plain_seconds;  ///< of the plain steps since
  };

  /// For steps that verify and request up to `max_drafts` >= 0.
  explicit StepCosts(std::int32_t max_drafts);

  std::int32_t max_drafts() const { return max_drafts_; }

  /// Until something is seen: what `other` has learnt, for as many drafts.
  void GuessLike(const StepCosts& other);

  /// Cost of 1 + `num_drafts` rows. A kind never seen is interpolated between its neighbours, with
  /// half of the rise from the cheaper one: it has to look attractive to be tried.
  double Rows(std::int32_t num_drafts) const;
  /// Cost of requesting `num_requested` drafts. Never seen: the next larger request seen, with half
  /// of its cost in proportion to the number.
  double Drafting(std::int32_t num_requested) const;

  /// Whether such steps have been compared with plain ones more than once, and many times.
  bool Knows(std::int32_t num_drafts, std::int32_t num_requested) const;
  bool KnowsWell(std::int32_t num_drafts, std::int32_t num_requested) const;

  /// Learns from one step: `seconds` > 0 and finite, else it is ignored, as one of too few of the
  /// sequences is; counts in [0, max_drafts].
  void Record(const Kind& kind, double seconds, Waiting* waiting);

 private:
  class Cost {
   public:
    void Add(double cost);
    bool known() const { return !times_.empty(); }
    std::size_t num_times() const { return times_.size(); }
    double value() const { return value_; }

   private:
    std::vector<double> times_;  // the last ones, the oldest first
    double value_ = 0.0;         // their median, the lower of two
  };

  static const Cost& At(const std::vector<Cost>& costs, std::int32_t index) {
    return costs[static_cast<std::size_t>(index)];
  }
  /// The nearest numbers that were seen, the first at most `number`, the second above it;
  /// 0 and max_drafts + 1 if there is none.
  struct Neighbours {
    std::int32_t below;
    std::int32_t above;
  };
  Neighbours FindNeighbours(const std::vector<Cost>& costs, std::int32_t number) const;
  /// Of a number that was seen, given the next larger one that was.
  double Seen(const std::vector<Cost>& costs, std::int32_t number, std::int32_t above) const;
  /// Of the summand seen less often.
  std::size_t NumTimes(std::int32_t num_drafts, std::int32_t num_requested) const;
  void ForgetGuesses();
  /// From a step that took `excess` plain steps more than one.
  void Learn(const Kind& kind, double excess);

  std::int32_t max_drafts_;
  bool guessed_ = false;        // all below
  std::vector<Cost> rows_;      // [max_drafts + 1]
  std::vector<Cost> drafting_;  // [max_drafts + 1], the first unused
};

}  // namespace megalith::engine
