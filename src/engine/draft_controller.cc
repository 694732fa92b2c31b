#include "engine/draft_controller.h"

#include <algorithm>
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
/// Where drafting has gained so much over all sequences, in plain steps, a sequence need not save
/// for a probe: it waits for so many steps, twice as many after each that found nothing.
constexpr double kClearGain = 10.0;
constexpr std::int32_t kFirstWait = 8;
constexpr std::int32_t kLongestWait = 128;
/// Gains that later tries may lose again, in plain steps.
constexpr double kMostStepsGained = 100.0;

constexpr std::string_view kDoNotPay = "drafts do not pay";
constexpr std::string_view kNoneProposed = "no drafts proposed";
constexpr std::string_view kMeasuring = "measuring plain steps";

}  // namespace

DraftController::DraftController(const DraftControllerOptions& options, DraftExperience& experience)
    : options_(options),
      experience_(experience),
      drafter_(std::min(options.max_drafts, options.max_requests), experience.drafter),
      text_(options.max_drafts, experience.text),
      blocks_(kBlocks),
      request_(std::min(options.max_drafts, options.max_requests)),
      wait_(kFirstWait) {
  MEGALITH_CHECK(options.max_drafts >= 0 && options.max_drafts <= experience.max_drafts());
  MEGALITH_CHECK(options.max_requests >= 0);
  options_.max_requests = request_;
  if (!has_drafter()) mode_ = Mode::kOff;
  const auto max_drafts = static_cast<std::size_t>(options.max_drafts);
  statistics_.position_proposed.resize(max_drafts);
  statistics_.position_accepted.resize(max_drafts);
  statistics_.rounds_by_drafts.resize(max_drafts + 1);
  ForgetBlocks();
}

DraftPlan DraftController::Plan(const DraftBlock& drafter, const DraftBlock& text) {
  drafter_.Propose(drafter);
  text_.Propose(text);
  KeepBlocks();
  if (options_.max_drafts == 0) return Planned({}, "no drafts allowed");
  if (options_.fixed_drafts) return PlanFixed();
  const DraftCut by_text = text_.BestCut(costs(), rate_);
  const bool may_probe = by_text.num_drafts() == 0 && MayProbe();
  // Most rounds of a sequence without requests: they are to cost nothing here.
  if (mode_ == Mode::kOff && drafter_.num_drafts() == 0 && !may_probe) {
    if (!has_drafter()) statistics_.expected_speedup = rate_;
    return PlanVerification(by_text, 0);
  }
  const Policy best = BestPolicy(0.0);
  statistics_.expected_speedup = best.rate;
  if (mode_ == Mode::kNew) Begin(best);
  if (may_probe) StartProbe();
  if (mode_ == Mode::kProbing) {
    if (const std::optional<DraftPlan> probe = PlanProbe(best)) return *probe;
  } else if (mode_ == Mode::kOn && best.rate <= best.rate_without) {
    SwitchOff();
  }
  if (mode_ == Mode::kOff) return PlanVerification(by_text, 0);
  request_ = best.request;
  // A block of the text that promises more than drafting is likely to be followed by another.
  const bool text_suffices = by_text.tokens() > best.rate * by_text.cost();
  return PlanVerification(by_text, text_suffices ? 0 : best.request);
}

/// The block of which more is expected.
DraftPlan DraftController::PlanFixed() {
  const std::int32_t fixed = std::clamp(*options_.fixed_drafts, 0, options_.max_drafts);
  const bool from_text =
      text_.BestCut(costs(), 0.0).tokens() > drafter_.BestCut(costs(), 0.0).tokens();
  const std::int32_t available = from_text ? text_.num_drafts() : drafter_.num_drafts();
  const DraftPlan plan{.verify = std::min(fixed, available),
                       .request = std::min(fixed, options_.max_requests),
                       .from_text = from_text};
  return Planned(plan, plan.verify > 0 || plan.request > 0 ? "fixed number" : kNoneProposed);
}

/// Nothing if the probe is over.
std::optional<DraftPlan> DraftController::PlanProbe(const Policy& best) {
  const std::int32_t available = drafter_.num_drafts();
  // A round that asked for drafts and got none counts too, or a probe might never end.
  const bool answered = available > 0 || statistics_.last_plan.request > 0;
  if (probe_rounds_left_ > 0 && answered) --probe_rounds_left_;
  const std::int32_t hopeful = drafter_.BestCut(costs(), rate_, kHopefulChance).num_drafts();
  const std::int32_t verify = std::min(std::max(hopeful, 1), available);
  if (probe_rounds_left_ > 0) {
    const std::int32_t request = BestPolicy(kHopefulChance).request;
    return Planned({.verify = verify, .request = request}, "trying drafts");
  }
  if (Gains(best) && costs().Knows(verify, best.request)) {
    SwitchOn();
    return std::nullopt;
  }
  if (available > 0) {
    if (!costs().Knows(verify, best.request)) experience_.MeasureSoon();
    return Planned({.verify = verify}, "last drafts of a try");
  }
  if (experience_.measures()) return Planned({}, kMeasuring);
  if (Gains(best)) {
    SwitchOn();
  } else {
    SwitchOff();
  }
  return std::nullopt;
}

/// Verifies the better block, unless it is time to measure.
DraftPlan DraftController::PlanVerification(const DraftCut& by_text, std::int32_t request) {
  const DraftCut by_drafter = drafter_.BestCut(costs(), rate_);
  const bool from_text = by_text.gain() > by_drafter.gain();
  const std::int32_t verify = from_text ? by_text.num_drafts() : by_drafter.num_drafts();
  const DraftPlan plan{.verify = verify, .request = request, .from_text = from_text};
  if (verify == 0 && request == 0) {
    const bool proposed = has_drafter() || text_.num_drafts() > 0;
    return Planned(plan, proposed ? kDoNotPay : kNoneProposed);
  }
  if (experience_.measures()) return Planned({.verify = by_drafter.num_drafts()}, kMeasuring);
  return Planned(plan, "drafts pay");
}

DraftPlan DraftController::Planned(const DraftPlan& plan, std::string_view reason) {
  statistics_.last_plan = plan;
  statistics_.last_reason = reason;
  return plan;
}

void DraftController::Record(const RoundRecord& round) {
  const std::int32_t num_drafts = std::clamp(round.num_drafts, 0, options_.max_drafts);
  const auto num_chosen = static_cast<std::int32_t>(
      std::min(round.tokens.size(), static_cast<std::size_t>(num_drafts) + 1));
  const std::int32_t num_accepted = std::max(num_chosen - 1, 0);
  const std::int32_t num_requested = std::clamp(round.next_drafts, 0, options_.max_requests);
  Count(num_drafts, num_accepted);
  experience_.Count(num_drafts, num_accepted, num_requested);
  KeepAccounts(num_drafts, num_accepted, num_requested);

  const bool shared = !options_.fixed_drafts;
  drafter_.Judge(round.tokens, shared);
  text_.Judge(round.tokens, shared);
}

void DraftController::Count(std::int32_t num_drafts, std::int32_t num_accepted) {
  ++statistics_.rounds;
  statistics_.drafted += num_drafts;
  statistics_.accepted += num_accepted;
  if (statistics_.last_plan.from_text) {
    statistics_.drafted_from_text += num_drafts;
    statistics_.accepted_from_text += num_accepted;
  }
  ++statistics_.rounds_by_drafts[static_cast<std::size_t>(num_drafts)];
  for (std::size_t k = 0; k < static_cast<std::size_t>(num_drafts); ++k) {
    ++statistics_.position_proposed[k];
    if (k < static_cast<std::size_t>(num_accepted)) ++statistics_.position_accepted[k];
  }
}

/// By the estimates, not by the clock: one slow step must not put off the next probe.
void DraftController::KeepAccounts(std::int32_t num_drafts, std::int32_t num_accepted,
                                   std::int32_t num_requested) {
  const double rows = costs().Rows(num_drafts);
  const double drafting = costs().Drafting(num_requested);
  recent_rate_.Add(1.0 + num_accepted, rows + drafting);
  rate_ = std::max(recent_rate_.value(), 1.0);

  const bool verified = num_drafts > 0 && !statistics_.last_plan.from_text;
  if (verified) {
    const double text_gain = text_.BestCut(costs(), 1.0).gain();  // lost, too
    Lose(rows - (1.0 + num_accepted) + text_gain);
  }
  if (num_requested > 0) Lose(drafting);
  if (!verified && num_requested == 0 && mode_ == Mode::kOff) {
    Lose(-options_.probe_share * rows);
    ++steps_waited_;
  }
}

void DraftController::KeepBlocks() {
  // A drafter that was not asked proposed nothing; one that was asked had nothing to propose.
  if (drafter_.num_drafts() == 0 && statistics_.last_plan.request == 0) return;
  blocks_[num_blocks_ % kBlocks] = {drafter_.confidence(), text_.confidence()};
  ++num_blocks_;
}

/// One draft of which nothing is known is left.
void DraftController::ForgetBlocks() {
  num_blocks_ = 0;
  blocks_[0] = {{std::numeric_limits<float>::quiet_NaN()}, {}};
}

DraftController::Policy DraftController::BestPolicy(double least_chance) const {
  const auto max_requests = static_cast<std::size_t>(options_.max_requests);
  std::vector<double> tokens(max_requests, 0.0);  // [r - 1], summed over the blocks
  std::vector<double> cost(max_requests, 0.0);
  double tokens_without = 0.0;
  double cost_without = 0.0;
  std::vector<double> chances(max_requests);
  const std::size_t num_blocks = std::clamp<std::size_t>(num_blocks_, 1, kBlocks);
  for (std::size_t i = 0; i < num_blocks; ++i) {
    const BlockPair& block = blocks_[i];
    const DraftCut by_text = text_.BestCut(block.text, costs(), rate_);
    tokens_without += by_text.tokens();
    cost_without += by_text.cost();
    drafter_.FillChances(block.drafter, least_chance, chances);
    DraftCut by_drafter(rate_);
    for (std::size_t k = 0; k < max_requests; ++k) {
      // The drafter could have proposed more had it been asked to.
      if (!block.drafter.empty()) {
        by_drafter.Extend(chances[k], costs().Rows(static_cast<std::int32_t>(k) + 1));
      }
      const DraftCut& better = by_text.gain() > by_drafter.gain() ? by_text : by_drafter;
      tokens[k] += better.tokens();
      cost[k] += better.cost();
    }
  }
  const auto rate_of = [&](std::int32_t request) {
    const auto k = static_cast<std::size_t>(request) - 1;
    return tokens[k] / (cost[k] + static_cast<double>(num_blocks) * costs().Drafting(request));
  };
  Policy best{.request = request_,
              .rate = rate_of(request_),
              .rate_without = tokens_without / cost_without};
  double to_beat = best.rate * kRequestMargin;
  for (std::int32_t request = 1; request <= options_.max_requests; ++request) {
    if (const double rate = rate_of(request); rate > to_beat) {
      best.request = request;
      best.rate = rate;
      to_beat = rate;
    }
  }
  return best;
}

/// A sequence of which nothing is known yet.
void DraftController::Begin(const Policy& best) {
  mode_ = Mode::kOff;
  const bool known = experience_.drafter.num_judged() > 0.0;
  if (known && Gains(best) && experience_.steps_lost <= 0.0) SwitchOn();
}

bool DraftController::MayProbe() const {
  if (!has_drafter() || mode_ != Mode::kOff || options_.probe_share <= 0.0) return false;
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
  probe_rounds_left_ = kProbeRounds + 1;  // the first is answered in the next round
  steps_lost_ = 0.0;
  steps_waited_ = 0;
  drafter_.Doubt();
  ForgetBlocks();
  ++statistics_.probes;
}

void DraftController::SwitchOn() {
  mode_ = Mode::kOn;
  wait_ = kFirstWait;
  ++statistics_.switches_on;
}

void DraftController::SwitchOff() {
  if (mode_ == Mode::kOn) ++statistics_.switches_off;
  if (mode_ == Mode::kProbing) wait_ = std::min(2 * wait_, kLongestWait);
  steps_lost_ = std::max(steps_lost_, 0.0);
  mode_ = Mode::kOff;
}

}  // namespace megalith::engine
