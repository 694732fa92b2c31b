#include "engine/draft_controller.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace megalith::engine {
namespace {

/// Blocks that the choice of the request looks back at.
constexpr std::size_t kBlocks = 32;
/// Rounds that request drafts in a probe.
constexpr std::int32_t kProbeRounds = 2;
/// What a probe assumes of every draft at least, so that it verifies enough of them to find out.
constexpr double kHopefulChance = 0.8;
/// A request of another size must be better by this.
constexpr double kRequestMargin = 1.01;
/// Plain steps are measured so many times sooner as long as it is not known what drafting costs as
/// it is done now, and so many times later where the speed-up is clear, and where it is safe and
/// the costs well known.
constexpr std::int32_t kUnknownHaste = 4;
constexpr std::int32_t kClearPatience = 4;
constexpr double kClearSpeedup = 1.5;
constexpr std::int32_t kKnownPatience = 8;
constexpr double kSafeSpeedup = 1.1;
/// Where drafting has gained so much over all sequences, in plain steps, a sequence need not save
/// for a probe: it waits for so many plain steps, twice as many after each that found nothing.
constexpr double kClearGain = 10.0;
constexpr std::int32_t kFirstWait = 8;
constexpr std::int32_t kLongestWait = 128;
/// The first of them may still verify what was requested.
constexpr std::int32_t kPlainRounds = static_cast<std::int32_t>(StepCosts::kPlainSteps) + 1;
constexpr std::int32_t kFirstPlainInterval = 16;
constexpr std::int32_t kLongestPlainInterval = 128;
/// Rounds with drafts of a sequence that others learn from: few, or those that gain would outnumber
/// those that gave up early.
constexpr std::int64_t kSharedRounds = 4;
/// Gains that later tries may lose again, in plain steps.
constexpr double kMostStepsGained = 100.0;

constexpr std::string_view kDoNotPay = "drafts do not pay";

/// Finds where to cut a block, one draft after the other.
struct Cut {
  double survival = 1.0;        ///< of all drafts so far
  double accepted = 0.0;        ///< expected, of all drafts so far
  double gain = 0.0;            ///< of the best cut over verifying none, in tokens
  std::int32_t num_drafts = 0;  ///< of the best cut, likewise the next two
  double tokens = 1.0;
  double row_cost = 1.0;

  /// Draft number `number`, from 1, at the price `rate` for the time of a plain step.
  void Extend(std::int32_t number, double chance, double cost, double rate) {
    survival *= chance;
    accepted += survival;
    const double gain_here = accepted - rate * (cost - 1.0);
    if (gain_here <= gain) return;
    gain = gain_here;
    num_drafts = number;
    tokens = 1.0 + accepted;
    row_cost = cost;
  }
};

}  // namespace

DraftController::DraftController(const DraftControllerOptions& options, DraftExperience& experience)
    : options_(options),
      experience_(experience),
      costs_(experience.costs),
      acceptance_(experience.acceptance),
      blocks_(kBlocks),
      request_(options.max_drafts),
      wait_(kFirstWait),
      plain_interval_(kFirstPlainInterval) {
  MEGALITH_CHECK(options.max_drafts >= 0 && options.max_drafts <= costs_.max_drafts());
  const auto max_drafts = static_cast<std::size_t>(options.max_drafts);
  statistics_.position_proposed.resize(max_drafts);
  statistics_.position_accepted.resize(max_drafts);
  statistics_.rounds_by_drafts.resize(max_drafts + 1);
  acceptance_.Doubt();
  ForgetBlocks();
}

DraftPlan DraftController::Plan(std::int32_t available, std::span<const float> confidence) {
  available = std::clamp(available, 0, options_.max_drafts);
  KeepProposal(available, confidence);
  if (options_.max_drafts == 0) return Planned(0, 0, "no drafts allowed");
  if (options_.fixed_drafts) {
    const std::int32_t fixed = std::clamp(*options_.fixed_drafts, 0, options_.max_drafts);
    return Planned(std::min(fixed, available), fixed, "fixed number");
  }
  // Most rounds of a sequence that does not draft: they are to cost nothing here.
  if (mode_ == Mode::kOff && options_.request_costs && available == 0 && !MayProbe()) {
    return Planned(0, 0, kDoNotPay);
  }
  const Policy best = BestPolicy(0.0);
  rate_ = std::max(best.rate, 1.0);
  statistics_.expected_speedup = best.rate;
  if (mode_ == Mode::kNew) Begin(best);
  return options_.request_costs ? PlanPaid(available, best) : PlanFree(available);
}

/// A sequence of which nothing is known yet.
void DraftController::Begin(const Policy& best) {
  mode_ = Mode::kOff;
  const bool gains = experience_.acceptance.num_judged() > 0.0 && best.rate > 1.0 + options_.margin;
  if (gains && experience_.steps_lost <= 0.0) SwitchOn();
}

DraftPlan DraftController::PlanPaid(std::int32_t available, const Policy& best) {
  if (MayProbe()) StartProbe();
  if (mode_ == Mode::kProbing) {
    // A round that asked for drafts and got none counts too, or a probe might never end.
    const bool answered = available > 0 || statistics_.last_plan.request > 0;
    if (probe_rounds_left_ > 0 && answered) --probe_rounds_left_;
    const std::int32_t verify = std::min(std::max(BestCut(kHopefulChance), 1), available);
    if (probe_rounds_left_ > 0) {
      return Planned(verify, BestPolicy(kHopefulChance).request, "trying drafts");
    }
    const bool gains = best.rate > 1.0 + options_.margin;
    if (gains && costs_.Knows(verify, best.request)) {
      SwitchOn();
    } else if (available > 0) {
      return Planned(verify, 0, "last drafts of a try");
    } else if (plain_rounds_left_ > 0) {
      --plain_rounds_left_;
      return Planned(0, 0, "measuring plain steps");
    } else if (gains) {
      SwitchOn();
    } else {
      SwitchOff();
    }
  } else if (mode_ == Mode::kOn && best.rate <= 1.0) {
    SwitchOff();
  }
  const std::int32_t verify = BestCut(0.0);
  if (mode_ == Mode::kOff) return Planned(verify, 0, kDoNotPay);
  if (TakesPlainRound(verify, best.request)) return Planned(verify, 0, "measuring plain steps");
  request_ = best.request;
  return Planned(verify, request_, "drafts pay");
}

DraftPlan DraftController::PlanFree(std::int32_t available) {
  const std::int32_t request = options_.max_drafts;
  if (available == 0) return Planned(0, request, "no drafts proposed");
  if (MayProbe()) StartProbe();
  if (mode_ == Mode::kProbing && probe_rounds_left_ > 0) {
    --probe_rounds_left_;
    return Planned(BestCut(kHopefulChance), request, "trying drafts");
  }
  const std::int32_t verify = BestCut(0.0);
  if (verify > 0 && mode_ != Mode::kOn) SwitchOn();
  if (verify == 0 && mode_ != Mode::kOff) SwitchOff();
  if (mode_ == Mode::kOff) return Planned(0, request, kDoNotPay);
  if (TakesPlainRound(verify, 0)) return Planned(0, request, "measuring plain steps");
  return Planned(verify, request, "drafts pay");
}

DraftPlan DraftController::Planned(std::int32_t verify, std::int32_t request,
                                   std::string_view reason) {
  statistics_.last_plan = {.verify = verify, .request = request};
  statistics_.last_reason = reason;
  return statistics_.last_plan;
}

void DraftController::Record(const RoundRecord& round) {
  const std::int32_t num_drafts = std::clamp(round.num_drafts, 0, options_.max_drafts);
  const std::int32_t num_accepted = std::clamp(round.num_accepted, 0, num_drafts);
  const std::int32_t requested = std::clamp(round.next_drafts, 0, options_.max_drafts);

  ++statistics_.rounds;
  statistics_.drafted += num_drafts;
  statistics_.accepted += num_accepted;
  ++statistics_.rounds_by_drafts[static_cast<std::size_t>(num_drafts)];
  for (std::size_t k = 0; k < static_cast<std::size_t>(num_drafts); ++k) {
    ++statistics_.position_proposed[k];
    if (k < static_cast<std::size_t>(num_accepted)) ++statistics_.position_accepted[k];
  }

  acceptance_.Record(proposal_, num_drafts, num_accepted);
  const std::int64_t drafted_rounds = statistics_.rounds - statistics_.rounds_by_drafts[0];
  if (num_drafts > 0 && drafted_rounds <= kSharedRounds && !options_.fixed_drafts) {
    experience_.acceptance.Record(proposal_, num_drafts, num_accepted);
  }
  const std::int32_t paid = options_.request_costs ? requested : 0;
  costs_.Record(num_drafts, paid, round.seconds, &waiting_);

  const bool plain = num_drafts == 0 && paid == 0;
  rounds_since_plain_ = plain ? 0 : rounds_since_plain_ + 1;
  if (!plain) {
    // By the estimates, not by the clock: one slow step must not put off the next probe.
    Lose(costs_.Rows(num_drafts) + costs_.Drafting(paid) - (1 + num_accepted));
  } else if (mode_ == Mode::kOff) {
    Lose(-options_.probe_share);
    ++steps_waited_;
  }
}

void DraftController::KeepProposal(std::int32_t available, std::span<const float> confidence) {
  proposal_.assign(static_cast<std::size_t>(available), std::numeric_limits<float>::quiet_NaN());
  const std::size_t num_given = std::min(proposal_.size(), confidence.size());
  std::copy_n(confidence.begin(), num_given, proposal_.begin());
  // A drafter that was not asked proposed nothing; one that was asked had nothing to propose.
  if (available == 0 && statistics_.last_plan.request == 0) return;
  blocks_[num_blocks_ % kBlocks] = proposal_;
  ++num_blocks_;
}

void DraftController::ForgetBlocks() {
  num_blocks_ = 0;
  blocks_[0].assign(1, std::numeric_limits<float>::quiet_NaN());
}

void DraftController::FillChances(std::span<const float> confidence, double least_chance,
                                  std::span<double> chances) const {
  acceptance_.Chances(confidence, chances);
  for (double& chance : chances) chance = std::max(chance, least_chance);
}

DraftController::Policy DraftController::BestPolicy(double least_chance) const {
  const auto max_drafts = static_cast<std::size_t>(options_.max_drafts);
  std::vector<double> tokens(max_drafts, 0.0);  // [r - 1], summed over the blocks
  std::vector<double> cost(max_drafts, 0.0);
  std::vector<double> chances(max_drafts);
  // Before the first block: one of which nothing is known.
  const std::size_t num_blocks = std::clamp<std::size_t>(num_blocks_, 1, kBlocks);
  for (std::size_t i = 0; i < num_blocks; ++i) {
    const std::vector<float>& block = blocks_[i];
    FillChances(block, least_chance, chances);
    // A drafter that is paid for could have proposed more had it been asked to.
    const bool extends = options_.request_costs && !block.empty();
    Cut cut;
    for (std::size_t k = 0; k < max_drafts; ++k) {
      if (k < block.size() || extends) {
        cut.Extend(static_cast<std::int32_t>(k) + 1, chances[k],
                   costs_.Rows(static_cast<std::int32_t>(k) + 1), rate_);
      }
      tokens[k] += cut.tokens;
      cost[k] += cut.row_cost;
    }
  }
  const auto rate_of = [&](std::int32_t request) {
    const auto k = static_cast<std::size_t>(request) - 1;
    const double drafting = options_.request_costs ? costs_.Drafting(request) : 0.0;
    return tokens[k] / (cost[k] + static_cast<double>(num_blocks) * drafting);
  };
  Policy best{.request = request_, .rate = rate_of(request_)};
  double to_beat = best.rate * kRequestMargin;
  for (std::int32_t request = 1; request <= options_.max_drafts; ++request) {
    if (const double rate = rate_of(request); rate > to_beat) {
      best = {.request = request, .rate = rate};
      to_beat = rate;
    }
  }
  return best;
}

std::int32_t DraftController::BestCut(double least_chance) const {
  std::vector<double> chances(proposal_.size());
  FillChances(proposal_, least_chance, chances);
  Cut cut;
  for (std::size_t k = 0; k < proposal_.size(); ++k) {
    cut.Extend(static_cast<std::int32_t>(k) + 1, chances[k],
               costs_.Rows(static_cast<std::int32_t>(k) + 1), rate_);
  }
  return cut.num_drafts;
}

bool DraftController::MayProbe() const {
  if (mode_ != Mode::kOff || options_.probe_share <= 0.0) return false;
  // What others have gained is there to be spent.
  if (experience_.steps_lost < -kClearGain && steps_waited_ >= wait_) return true;
  return steps_lost_ <= 0.0 && experience_.steps_lost <= 0.0;
}

void DraftController::Lose(double steps) {
  steps_lost_ += steps;
  if (options_.fixed_drafts) return;
  experience_.steps_lost = std::max(experience_.steps_lost + steps, -kMostStepsGained);
}

void DraftController::StartProbe() {
  mode_ = Mode::kProbing;
  // Drafts that cost nothing come without being asked for.
  probe_rounds_left_ = kProbeRounds + (options_.request_costs ? 1 : 0);
  plain_rounds_left_ = options_.request_costs ? kPlainRounds - 1 : 0;
  steps_lost_ = 0.0;
  steps_waited_ = 0;
  acceptance_.Doubt();
  ForgetBlocks();
  ++statistics_.probes;
}

void DraftController::SwitchOn() {
  mode_ = Mode::kOn;
  wait_ = kFirstWait;
  plain_rounds_left_ = 0;
  ++statistics_.switches_on;
}

void DraftController::SwitchOff() {
  if (mode_ == Mode::kOn) ++statistics_.switches_off;
  if (mode_ == Mode::kProbing) wait_ = std::min(2 * wait_, kLongestWait);
  steps_lost_ = std::max(steps_lost_, 0.0);
  mode_ = Mode::kOff;
  plain_rounds_left_ = 0;
}

/// Whether to measure instead of verifying `verify` drafts and requesting `request`.
bool DraftController::TakesPlainRound(std::int32_t verify, std::int32_t request) {
  std::int32_t interval = plain_interval_;
  if (!costs_.Knows(verify, request)) {
    interval /= kUnknownHaste;
  } else if (rate_ > kClearSpeedup) {
    interval *= kClearPatience;
  }
  if (costs_.KnowsWell(verify, request) && rate_ > kSafeSpeedup) interval *= kKnownPatience;
  if (rounds_since_plain_ >= interval) {
    plain_rounds_left_ = kPlainRounds;
    plain_interval_ = std::min(2 * plain_interval_, kLongestPlainInterval);
    rounds_since_plain_ = 0;
  }
  if (plain_rounds_left_ == 0) return false;
  --plain_rounds_left_;
  return true;
}

}  // namespace megalith::engine
