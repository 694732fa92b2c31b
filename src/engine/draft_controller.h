#pragma once

// How many drafts to verify, whose, and how many to request, so that a sequence gets the most
// tokens per second. Speed only: which drafts are accepted is decided elsewhere, and so is the
// text.
//
// There are two sources of drafts. The text proposes what followed when it last read like now, or
// nothing: in every step, at no cost. The drafter proposes in steps that request it, which then
// take longer. With the chances c[k] of draft_acceptance.h and the costs of step_costs.h, a step
// that verifies v drafts and requests r new ones
//
//     yields  E(v) = 1 + c[0] + c[0] c[1] + ... + c[0] ... c[v-1]  tokens
//     at      rows[v] + drafting[r].
//
// Verify: time is worth `rate` tokens per plain step, the rate at which the sequence advances, so a
// block is cut at the v that maximises E(v) - rate * (rows[v] - 1), and the block is verified that
// promises more. What was requested before is paid for.
//
// Request: the r for which the drafter's last blocks, each cut as above at no more than r or left
// for the text's of the same step, would have given the highest sum of E over sum of costs. The
// same sums for the text's blocks alone are what drafting has to beat: it begins above 1 + margin
// of them and ends below. A step that verifies a block of the text which promises more than
// drafting requests nothing, since the next block of the text is likely to be like it.
//
// Whatever was proposed is compared with the tokens that come, verified or not. So there is nothing
// to try about drafts from the text. Without requests nothing is learnt about the drafter. So it is
// tried in probes: a few rounds, and the plain steps that tell what those cost. A probe has to wait
// until what drafting has lost is no more than `probe_share` of the steps since: dear probes are
// rare, cheap ones frequent, and the total loss is known beforehand. That holds for the sequence
// and for all sequences together, so where drafting does not pay, not every sequence finds out for
// itself. A sequence begins with what the first rounds of others have brought, and drafts at once
// if that gains. If drafting has gained over all sequences, probes come at growing intervals
// without being saved for: a text may begin badly and go on well. Plain steps at growing intervals
// tell what steps with drafts cost now.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/draft_experience.h"
#include "engine/draft_source.h"
#include "engine/recent_rate.h"

namespace megalith::engine {

struct DraftControllerOptions {
  std::int32_t max_drafts = 7;    ///< verified at most, >= 0; 0: never draft
  std::int32_t max_requests = 7;  ///< of the drafter at once, >= 0; 0: there is none
  /// Always this many, cut to what is possible, instead of what pays.
  std::optional<std::int32_t> fixed_drafts = std::nullopt;
  double margin = 0.03;       ///< gain from which drafting is worth beginning
  double probe_share = 0.01;  ///< of the time that probes may lose; 0: no probes
};

/// What to do in a step.
struct DraftPlan {
  std::int32_t verify = 0;   ///< the first so many drafts
  std::int32_t request = 0;  ///< new ones of the drafter, to be available in the next step
  bool from_text = false;    ///< the verified ones are the text's
  bool operator==(const DraftPlan&) const = default;
};

/// What a step did.
struct RoundRecord {
  std::int32_t num_drafts = 0;           ///< verified
  std::int32_t next_drafts = 0;          ///< requested
  std::span<const std::int32_t> tokens;  ///< chosen: the accepted drafts and one more
};

struct DraftStatistics {
  std::int64_t rounds = 0;
  std::int64_t drafted = 0;                     ///< drafts verified
  std::int64_t accepted = 0;                    ///< of them
  std::int64_t drafted_from_text = 0;           ///< of the verified ones
  std::int64_t accepted_from_text = 0;          ///< of the accepted ones
  std::vector<std::int64_t> position_proposed;  ///< [max_drafts] rounds that verified draft k
  std::vector<std::int64_t> position_accepted;  ///< [max_drafts] of them, accepted
  std::vector<std::int64_t> rounds_by_drafts;   ///< [max_drafts + 1] rounds that verified k drafts
  // Of the drafter.
  std::int64_t switches_on = 0;
  std::int64_t switches_off = 0;
  std::int64_t probes = 0;
  double expected_speedup = 1.0;  ///< over plain steps, as last estimated
  DraftPlan last_plan;
  std::string_view last_reason = "";  ///< of the plan, for reports
};

/// For one sequence. Deterministic: no clock, no random numbers. A round is Plan, step, Record,
/// within a step of the experience; the step may do less than planned, near the end of the context
/// for example. Used by one thread at a time, like the experience.
class DraftController {
 public:
  /// `experience` is shared by the sequences of an engine and must outlive the controller; its
  /// max_drafts is at least those of the options.
  DraftController(const DraftControllerOptions& options, DraftExperience& experience);

  /// Before a step, with what the drafter and the text propose for it.
  DraftPlan Plan(const DraftBlock& drafter, const DraftBlock& text);
  /// After it. Counts outside what is possible are cut.
  void Record(const RoundRecord& round);

  const DraftStatistics& statistics() const { return statistics_; }

 private:
  enum class Mode { kNew, kOff, kProbing, kOn };
  /// Of the drafter, with rates in tokens per time of a plain step.
  struct Policy {
    std::int32_t request;
    double rate;
    double rate_without;  ///< of the text's drafts alone, in the same steps
  };

  DraftPlan PlanFixed();
  std::optional<DraftPlan> PlanProbe(const Policy& best);
  DraftPlan PlanVerification(const DraftCut& by_text, std::int32_t request);
  DraftPlan Planned(const DraftPlan& plan, std::string_view reason);

  bool has_drafter() const { return options_.max_requests > 0; }
  const StepCosts& costs() const { return experience_.costs(); }
  bool Gains(const Policy& policy) const {
    return policy.rate > policy.rate_without * (1.0 + options_.margin);
  }
  void KeepBlocks();
  void ForgetBlocks();
  /// Chances of the drafter are taken to be at least `least_chance`.
  Policy BestPolicy(double least_chance) const;

  void Count(std::int32_t num_drafts, std::int32_t num_accepted);
  void KeepAccounts(std::int32_t num_drafts, std::int32_t num_accepted, std::int32_t num_requested);
  void Lose(double steps);
  void Begin(const Policy& best);
  bool MayProbe() const;
  void StartProbe();
  void SwitchOn();
  void SwitchOff();

  DraftControllerOptions options_;
  DraftExperience& experience_;
  DraftSource drafter_;
  DraftSource text_;
  DraftStatistics statistics_;

  /// Confidences of the drafter's block and of the text's for the same step: a ring of the last
  /// ones that the drafter was asked for.
  struct BlockPair {
    std::vector<float> drafter;
    std::vector<float> text;
  };
  std::vector<BlockPair> blocks_;
  std::size_t num_blocks_ = 0;
  std::int32_t request_;  ///< of the last round that drafted

  RecentRate recent_rate_;
  double rate_ = 1.0;  ///< of it, at least 1

  Mode mode_ = Mode::kNew;
  std::int32_t probe_rounds_left_ = 0;
  /// To drafting since the last probe began, in plain steps; while off, every step makes up for
  /// probe_share of its time.
  double steps_lost_ = 0.0;
  std::int32_t steps_waited_ = 0;  ///< since the last probe began, without requests
  std::int32_t wait_;              ///< of these before the next where others have gained
};

}  // namespace megalith::engine
