#pragma once

// What the sequences of an engine have learnt about drafts, for all of them and for later ones:
// what steps cost, how often first drafts were right, and what drafting has lost or gained.
//
// Costs are those of steps of as many sequences: rows that are nearly free for one sequence may
// cost as much as the first for many. A sequence decides as if all others did the same. When it is
// time to measure, all of them make plain steps.

#include <cstdint>
#include <vector>

#include "engine/draft_acceptance.h"
#include "engine/recent_rate.h"
#include "engine/step_costs.h"

namespace megalith::engine {

/// Used by one thread at a time. For each step: BeginStep, the plans, Count for each sequence,
/// EndStep.
class DraftExperience {
 public:
  explicit DraftExperience(std::int32_t max_drafts);
  DraftExperience(const DraftExperience&) = delete;
  DraftExperience& operator=(const DraftExperience&) = delete;

  std::int32_t max_drafts() const { return costs().max_drafts(); }

  /// A step that goes on with `num_sequences` answers is to be planned; 0: prompts only.
  void BeginStep(std::int32_t num_sequences);
  /// Of steps of so many.
  const StepCosts& costs() const { return batch_->costs; }
  /// Whether no drafts are to be requested in this step, nor verified but those that were.
  bool measures() const { return batch_->plain_steps_left > 0; }
  /// Steps like the last ones are to be measured soon.
  void MeasureSoon();
  /// What a sequence did in the step.
  void Count(std::int32_t num_drafts, std::int32_t num_accepted, std::int32_t num_requested);
  /// `seconds`: of the step if it ran nothing but these sequences, else 0.
  void EndStep(double seconds);

  DraftAcceptance drafter;  ///< of its drafts, in the first blocks of sequences
  DraftAcceptance text;     ///< of drafts from the text, likewise
  double steps_lost = 0.0;  ///< to the drafter, in plain steps; below 0: gained

 private:
  /// Of steps of about as many sequences.
  struct Batch {
    explicit Batch(std::int32_t max_drafts);
    StepCosts costs;
    StepCosts::Waiting waiting;
    bool begun = false;
    std::int32_t plain_steps_left = 0;  ///< of those that measure
    std::int32_t plain_interval;
    std::int32_t steps_since_plain = 0;  ///< that have not been compared
    RecentRate speedup;                  ///< tokens a sequence
  };
  /// Of the step.
  struct Counts {
    std::int32_t sequences = 0;
    std::int32_t verifying = 0;
    std::int32_t requesting = 0;
    std::int32_t drafts = 0;
    std::int32_t accepted = 0;
    std::int32_t requested = 0;
  };

  StepCosts::Kind KindOfStep() const;
  bool IsTimeToMeasure(const StepCosts::Kind& kind) const;

  std::vector<Batch> batches_;  ///< for up to 1, 2, 4, 8, ... sequences
  Batch* batch_;
  std::int32_t num_sequences_ = 0;
  Counts counts_;
};

}  // namespace megalith::engine
