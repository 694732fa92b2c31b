#pragma once

// How many drafts to verify and how many to request, so that a sequence gets the most tokens per
// second. Speed only: which drafts are accepted is decided elsewhere, and so is the text.
//
// With the chances c[k] of draft_acceptance.h and the costs of step_costs.h, a round that verifies
// v drafts and requests r new ones
//
//     yields  E(v) = 1 + c[0] + c[0] c[1] + ... + c[0] ... c[v-1]  tokens
//     at      rows[v] + drafting[r].
//
// Verify: time is worth `rate` tokens per plain step, the rate at which the sequence advances, so
// the block is cut at the v that maximises E(v) - rate * rows[v] / rows[0]. What was requested
// before is paid for.
//
// Request: the r for which the recent blocks, each cut as above at no more than r, would have given
// the highest sum of E over sum of costs. Never drafting gives rate 1; drafting begins above
// 1 + margin and ends below 1.
//
// Without drafts nothing is learnt about them. So they are tried in probes: a few rounds, and the
// plain steps that tell what those cost. A probe has to wait until what drafting has lost is no
// more than `probe_share` of the steps since: dear probes are rare, cheap ones frequent, and the
// total loss is known beforehand. That holds for the sequence and for all sequences together, so
// where drafting does not pay, not every sequence finds out for itself. A sequence begins with what
// the first rounds of others have brought, and drafts at once if that gains. If drafting has gained
// over all sequences, probes come at growing intervals without being saved for: a text may begin
// badly and go on well. Plain steps at growing intervals tell what drafting costs now.
//
// Proposals that cost nothing (request_costs = false: n-grams) are requested in every round. If
// they come with confidences (NgramDrafter::Confidence), a long match is verified whatever became
// of short ones.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/draft_acceptance.h"
#include "engine/draft_experience.h"
#include "engine/step_costs.h"

namespace megalith::engine {

struct DraftControllerOptions {
  std::int32_t max_drafts = 7;  ///< >= 0; 0: never draft
  /// Always this many, cut to max_drafts, instead of what pays.
  std::optional<std::int32_t> fixed_drafts = std::nullopt;
  bool request_costs = true;  ///< a step that drafts takes longer
  double margin = 0.03;       ///< gain from which drafting is worth beginning
  double probe_share = 0.01;  ///< of the time that probes may lose; 0: no probes
};

/// What to do in a step.
struct DraftPlan {
  std::int32_t verify = 0;   ///< the first so many of the available drafts
  std::int32_t request = 0;  ///< new drafts, to be available in the next step
  bool operator==(const DraftPlan&) const = default;
};

/// What a step did.
struct RoundRecord {
  std::int32_t num_drafts = 0;    ///< verified
  std::int32_t num_accepted = 0;  ///< of them; the step yields one token more
  std::int32_t next_drafts = 0;   ///< requested
  double seconds = 0.0;           ///< of the step; left out unless finite and positive
};

struct DraftStatistics {
  std::int64_t rounds = 0;
  std::int64_t drafted = 0;                     ///< drafts verified
  std::int64_t accepted = 0;                    ///< of them
  std::vector<std::int64_t> position_proposed;  ///< [max_drafts] rounds that verified draft k
  std::vector<std::int64_t> position_accepted;  ///< [max_drafts] of them, accepted
  std::vector<std::int64_t> rounds_by_drafts;   ///< [max_drafts + 1] rounds that verified k drafts
  std::int64_t switches_on = 0;
  std::int64_t switches_off = 0;
  std::int64_t probes = 0;
  double expected_speedup = 1.0;  ///< of drafting over plain steps, as last estimated
  DraftPlan last_plan;
  std::string_view last_reason = "";  ///< of the plan, for reports
};

/// For one sequence. Deterministic: no clock, no random numbers. A round is Plan, step, Record; the
/// step may do less than planned, near the end of the context for example. Used by one thread at a
/// time, like the costs.
class DraftController {
 public:
  /// `experience` is shared by the sequences of an engine and must outlive the controller; its
  /// max_drafts is at least that of the options.
  DraftController(const DraftControllerOptions& options, DraftExperience& experience);

  /// Before a step: `available` drafts were proposed, with a confidence logit each; fewer logits
  /// than drafts, none or NaN are allowed.
  DraftPlan Plan(std::int32_t available, std::span<const float> confidence);
  /// After it. Counts outside what is possible are cut.
  void Record(const RoundRecord& round);

  const DraftStatistics& statistics() const { return statistics_; }

 private:
  enum class Mode { kNew, kOff, kProbing, kOn };
  struct Policy {
    std::int32_t request;
    double rate;  ///< tokens per time of a plain step
  };

  DraftPlan PlanPaid(std::int32_t available, const Policy& best);
  DraftPlan PlanFree(std::int32_t available);
  DraftPlan Planned(std::int32_t verify, std::int32_t request, std::string_view reason);

  void KeepProposal(std::int32_t available, std::span<const float> confidence);
  void ForgetBlocks();
  /// Chances are taken to be at least `least_chance`.
  Policy BestPolicy(double least_chance) const;
  std::int32_t BestCut(double least_chance) const;
  void FillChances(std::span<const float> confidence, double least_chance,
                   std::span<double> chances) const;

  void Begin(const Policy& best);
  bool MayProbe() const;
  void Lose(double steps);
  void StartProbe();
  void SwitchOn();
  void SwitchOff();
  bool TakesPlainRound(std::int32_t verify, std::int32_t request);

  DraftControllerOptions options_;
  DraftExperience& experience_;
  StepCosts& costs_;  ///< of the experience
  StepCosts::Waiting waiting_;
  DraftAcceptance acceptance_;
  DraftStatistics statistics_;

  /// Confidences of the current proposal and a ring of the last ones: one per draft, NaN where
  /// there is none.
  std::vector<float> proposal_;
  std::vector<std::vector<float>> blocks_;
  std::size_t num_blocks_ = 0;
  std::int32_t request_;  ///< of the last round that drafted
  double rate_ = 1.0;     ///< tokens per plain step that the sequence makes, at least 1

  Mode mode_ = Mode::kNew;
  std::int32_t probe_rounds_left_ = 0;
  /// To drafting since the last probe began, in plain steps; while off, every step makes up for
  /// probe_share of one.
  double steps_lost_ = 0.0;
  std::int32_t steps_waited_ = 0;  ///< plain ones since the last probe began
  std::int32_t wait_;              ///< of these before the next where others have gained

  std::int32_t plain_rounds_left_ = 0;  ///< of those that measure
  std::int32_t plain_interval_;
  std::int32_t rounds_since_plain_ = 0;
};

}  // namespace megalith::engine
