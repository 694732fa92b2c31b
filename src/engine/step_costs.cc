#include "engine/step_costs.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace megalith::engine {
namespace {

/// Plain steps that still suffer from what ran before: with k3-nano in the cache they take 2.1 and
/// 1.5 times as long.
constexpr std::size_t kSettlingSteps = 2;
/// Steps before the plain ones that are measured.
constexpr std::size_t kComparedSteps = 8;
/// Times of a kind that are remembered: enough of them to outvote a few accidents, few enough for a
/// change to be noticed.
constexpr std::size_t kMemory = 21;
/// Sequences of a step: of fewer the excess is lost in the noise.
constexpr double kLeastShare = 0.2;
constexpr std::size_t kFewTimes = 2;
constexpr std::size_t kManyTimes = 10;
/// Prior guesses: what a row adds to a step, and what drafting does.
constexpr double kRowGuess = 0.03;
constexpr double kDraftingGuess = 0.2;

}  // namespace

StepCosts::StepCosts(std::int32_t max_drafts) : max_drafts_(max_drafts) {
  MEGALITH_CHECK(max_drafts >= 0);
  rows_.resize(static_cast<std::size_t>(max_drafts) + 1);
  drafting_.resize(static_cast<std::size_t>(max_drafts) + 1);
  rows_.front().Add(1.0);  // by definition
}

void StepCosts::GuessLike(const StepCosts& other) {
  MEGALITH_CHECK(other.max_drafts_ == max_drafts_);
  const auto known = [](const Cost& cost) { return cost.known(); };
  if (std::any_of(rows_.begin() + 1, rows_.end(), known)) return;
  if (std::any_of(drafting_.begin(), drafting_.end(), known)) return;
  for (std::size_t i = 1; i < rows_.size(); ++i) {
    if (other.rows_[i].known()) rows_[i].Add(other.rows_[i].value());
    if (other.drafting_[i].known()) drafting_[i].Add(other.drafting_[i].value());
  }
  guessed_ = true;
}

void StepCosts::ForgetGuesses() {
  for (std::size_t i = 1; i < rows_.size(); ++i) rows_[i] = drafting_[i] = Cost();
  guessed_ = false;
}

void StepCosts::Cost::Add(double cost) {
  if (times_.size() == kMemory) times_.erase(times_.begin());
  times_.push_back(cost);
  std::vector<double> sorted = times_;
  std::sort(sorted.begin(), sorted.end());
  value_ = sorted[(sorted.size() - 1) / 2];
}

StepCosts::Neighbours StepCosts::FindNeighbours(const std::vector<Cost>& costs,
                                                std::int32_t number) const {
  Neighbours found{.below = number, .above = number + 1};
  while (found.below > 0 && !At(costs, found.below).known()) --found.below;
  while (found.above <= max_drafts_ && !At(costs, found.above).known()) ++found.above;
  return found;
}

double StepCosts::Seen(const std::vector<Cost>& costs, std::int32_t number,
                       std::int32_t above) const {
  const Cost& cost = At(costs, number);
  // More never costs less; but only what is known better can correct it.
  if (above > max_drafts_ || At(costs, above).num_times() <= cost.num_times()) return cost.value();
  return std::min(cost.value(), At(costs, above).value());
}

double StepCosts::Rows(std::int32_t num_drafts) const {
  const auto [below, above] = FindNeighbours(rows_, num_drafts);
  const double low = At(rows_, below).value();
  const double distance = num_drafts - below;
  double cost = low * (1.0 + kRowGuess * distance);
  if (distance == 0) {
    cost = Seen(rows_, num_drafts, above);
  } else if (above <= max_drafts_) {
    const double rise = std::max(At(rows_, above).value() - low, 0.0);
    cost = low + 0.5 * rise * distance / (above - below);
  }
  return std::max(cost, 1.0);
}

double StepCosts::Drafting(std::int32_t num_requested) const {
  if (num_requested == 0) return 0.0;
  const auto [below, above] = FindNeighbours(drafting_, num_requested);
  double cost = kDraftingGuess;
  if (below == num_requested) {
    cost = Seen(drafting_, num_requested, above);
  } else if (above <= max_drafts_) {
    cost = At(drafting_, above).value() * (0.5 + 0.5 * num_requested / above);
  } else if (below > 0) {
    cost = At(drafting_, below).value();
  }
  return std::max(cost, 0.0);
}

std::size_t StepCosts::NumTimes(std::int32_t num_drafts, std::int32_t num_requested) const {
  return std::min(num_drafts > 0 ? At(rows_, num_drafts).num_times() : kMemory,
                  num_requested > 0 ? At(drafting_, num_requested).num_times() : kMemory);
}

bool StepCosts::Knows(std::int32_t num_drafts, std::int32_t num_requested) const {
  return NumTimes(num_drafts, num_requested) >= kFewTimes;
}

bool StepCosts::KnowsWell(std::int32_t num_drafts, std::int32_t num_requested) const {
  return NumTimes(num_drafts, num_requested) >= kManyTimes;
}

void StepCosts::Record(const Kind& kind, double seconds, Waiting* waiting) {
  MEGALITH_CHECK(kind.num_drafts >= 0 && kind.num_drafts <= max_drafts_);
  MEGALITH_CHECK(kind.num_requested >= 0 && kind.num_requested <= max_drafts_);
  if (!std::isfinite(seconds) || seconds <= 0.0) return;

  std::vector<Waiting::Step>& steps = waiting->steps;
  std::vector<double>& plain = waiting->plain_seconds;
  if (!kind.plain()) {
    plain.clear();
    if (kind.num_drafts > 0 && kind.verifying < kLeastShare) return;
    if (kind.num_requested > 0 && kind.requesting < kLeastShare) return;
    if (steps.size() == kComparedSteps) steps.erase(steps.begin());
    steps.push_back({kind, seconds});
    return;
  }
  if (steps.empty()) return;
  plain.push_back(seconds);
  if (plain.size() < kPlainSteps) return;
  std::sort(plain.begin() + kSettlingSteps, plain.end());
  const double plain_step = plain[(kSettlingSteps + kPlainSteps) / 2];
  // Sums need to be divided: what is known of the summands comes first.
  for (bool sums : {false, true}) {
    for (const Waiting::Step& step : steps) {
      if (step.kind.sum() == sums) Learn(step.kind, step.seconds / plain_step - 1.0);
    }
  }
  steps.clear();
  plain.clear();
}

void StepCosts::Learn(const Kind& kind, double excess) {
  if (guessed_) ForgetGuesses();
  Cost& rows = rows_[static_cast<std::size_t>(kind.num_drafts)];
  Cost& drafting = drafting_[static_cast<std::size_t>(kind.num_requested)];
  const double rows_excess = Rows(kind.num_drafts) - 1.0;
  const double drafting_excess = Drafting(kind.num_requested);
  // What the others leave of it, for each of the sequences.
  const double of_rows = (excess - kind.requesting * drafting_excess) / kind.verifying;
  const double of_drafting = (excess - kind.verifying * rows_excess) / kind.requesting;
  if (kind.num_requested == 0) {
    rows.Add(1.0 + of_rows);
  } else if (kind.num_drafts == 0) {
    drafting.Add(of_drafting);
  } else if (rows.known() && rows.num_times() > drafting.num_times()) {
    drafting.Add(of_drafting);
  } else if (drafting.known()) {
    rows.Add(1.0 + of_rows);
  } else {
    rows.Add(1.0 + 0.5 * (rows_excess + of_rows));
    drafting.Add(0.5 * (drafting_excess + of_drafting));
  }
}

}  // namespace megalith::engine
