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

void StepCosts::Record(std::int32_t num_drafts, std::int32_t num_requested, double seconds,
                       Waiting* waiting) {
  MEGALITH_CHECK(num_drafts >= 0 && num_drafts <= max_drafts_);
  MEGALITH_CHECK(num_requested >= 0 && num_requested <= max_drafts_);
  if (!std::isfinite(seconds) || seconds <= 0.0) return;

  std::vector<Waiting::Step>& steps = waiting->steps;
  std::vector<double>& plain = waiting->plain_seconds;
  if (num_drafts > 0 || num_requested > 0) {
    plain.clear();
    if (steps.size() == kComparedSteps) steps.erase(steps.begin());
    steps.push_back({num_drafts, num_requested, seconds});
    return;
  }
  if (steps.empty()) return;
  plain.push_back(seconds);
  if (plain.size() < kPlainSteps) return;
  std::sort(plain.begin() + kSettlingSteps, plain.end());
  const double plain_step = plain[(kSettlingSteps + kPlainSteps) / 2];
  // Sums need to be divided: what is known of the summands comes first.
  const auto is_sum = [](const Waiting::Step& step) {
    return step.num_drafts > 0 && step.num_requested > 0;
  };
  for (bool sums : {false, true}) {
    for (const Waiting::Step& step : steps) {
      if (is_sum(step) != sums) continue;
      Learn(step.num_drafts, step.num_requested, step.seconds / plain_step);
    }
  }
  steps.clear();
  plain.clear();
}

void StepCosts::Learn(std::int32_t num_drafts, std::int32_t num_requested, double cost) {
  Cost& rows = rows_[static_cast<std::size_t>(num_drafts)];
  Cost& drafting = drafting_[static_cast<std::size_t>(num_requested)];
  const double rows_cost = Rows(num_drafts);
  const double drafting_cost = Drafting(num_requested);
  if (num_requested == 0) {
    rows.Add(cost);
  } else if (num_drafts == 0) {
    drafting.Add(cost - 1.0);
  } else if (rows.known() && rows.num_times() > drafting.num_times()) {
    drafting.Add(cost - rows_cost);
  } else if (drafting.known()) {
    rows.Add(cost - drafting_cost);
  } else {
    const double error = cost - (rows_cost + drafting_cost);
    rows.Add(rows_cost + 0.5 * error);
    drafting.Add(drafting_cost + 0.5 * error);
  }
}

}  // namespace megalith::engine
