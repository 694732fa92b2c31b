#include "engine/step_costs.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace megalith::engine {
namespace {

// Variances are of logarithms, so a deviation of 0.05 is 5 %.
constexpr double kFirstGuessDeviation = 0.5;
constexpr double kNoiseDeviation = 0.05;
constexpr double kLeastNoiseDeviation = 0.01;
constexpr double kNoiseMemory = 64;  // records
/// Change from one record to the next: levels move, relative costs hardly do.
constexpr double kLevelDrift = 0.02;
constexpr double kCostDrift = 0.002;
/// Records further from the prediction than this are accidents, or news.
constexpr double kPlausibleDeviations = 3.0;
/// What an implausibly slow record multiplies the variances with: some in a row convince.
constexpr double kDoubt = 4.0;
/// Prior guesses: what a row adds to a step, and what drafting does.
constexpr double kRowGuess = 0.03;
constexpr double kDraftingGuess = 0.2;
constexpr std::int32_t kEnoughRecords = 2;

double Square(double x) { return x * x; }

}  // namespace

StepCosts::StepCosts(std::int32_t max_drafts) : noise_variance_(Square(kNoiseDeviation)) {
  MEGALITH_CHECK(max_drafts >= 0);
  rows_.resize(static_cast<std::size_t>(max_drafts) + 1);
  drafting_.resize(rows_.size());
}

double StepCosts::Rows(std::int32_t num_drafts) const {
  const auto wanted = static_cast<std::size_t>(num_drafts);
  if (rows_[wanted].num_records > 0) {
    // More rows cost no less: an accident in a kind that is rarely seen does not bar it for good.
    double cost = rows_[wanted].value;
    for (std::size_t more = wanted + 1; more < rows_.size(); ++more) {
      if (rows_[more].num_records > 0) cost = std::min(cost, rows_[more].value);
    }
    return cost;
  }
  std::size_t below = wanted;
  while (below > 0 && rows_[below].num_records == 0) --below;
  std::size_t above = wanted;
  while (above < rows_.size() && rows_[above].num_records == 0) ++above;

  // Nothing seen below: one row, which costs 1 by definition until it is measured.
  const double low = rows_[below].num_records > 0 ? Rows(static_cast<std::int32_t>(below)) : 1.0;
  const auto distance = static_cast<double>(wanted - below);
  if (above == rows_.size()) return low * (1.0 + kRowGuess * distance);
  const double rise = std::max(Rows(static_cast<std::int32_t>(above)) - low, 0.0);
  return low + 0.5 * rise * distance / static_cast<double>(above - below);
}

double StepCosts::Drafting(std::int32_t num_requested) const {
  if (num_requested == 0) return 0.0;
  const auto wanted = static_cast<std::size_t>(num_requested);
  std::size_t above = wanted;
  while (above < drafting_.size() && drafting_[above].num_records == 0) ++above;
  if (above < drafting_.size()) {
    const double share = static_cast<double>(wanted) / static_cast<double>(above);
    return drafting_[above].value * (0.5 + 0.5 * share);
  }
  std::size_t below = wanted;
  while (below > 0 && drafting_[below].num_records == 0) --below;
  return below > 0 ? drafting_[below].value : kDraftingGuess * Rows(0);
}

bool StepCosts::KnowsRows(std::int32_t num_drafts) const {
  return rows_[static_cast<std::size_t>(num_drafts)].num_records >= kEnoughRecords;
}

void StepCosts::Refresh(Estimate* estimate, double guess, double deviation) const {
  if (estimate->num_records == 0) {
    *estimate = {.value = guess, .variance = Square(deviation)};
  } else {
    const auto unseen = static_cast<double>(num_records_ - estimate->last_record);
    estimate->variance += Square(kCostDrift * estimate->value) * unseen;
  }
  estimate->last_record = num_records_;
  ++estimate->num_records;
}

void StepCosts::Record(std::int32_t num_drafts, std::int32_t num_requested, double seconds,
                       Level* level) {
  MEGALITH_CHECK(num_drafts >= 0 && num_drafts <= max_drafts());
  MEGALITH_CHECK(num_requested >= 0 && num_requested <= max_drafts());
  if (!std::isfinite(seconds) || seconds <= 0.0) return;
  ++num_records_;
  Estimate& rows = rows_[static_cast<std::size_t>(num_drafts)];
  // The guess of what drafting costs is as uncertain as the whole step.
  const double deviation = kFirstGuessDeviation * Rows(num_drafts);
  Refresh(&rows, Rows(num_drafts), deviation);
  Estimate none;
  Estimate& drafting =
      num_requested > 0 ? drafting_[static_cast<std::size_t>(num_requested)] : none;
  if (num_requested > 0) Refresh(&drafting, Drafting(num_requested), deviation);

  const double cost = rows.value + drafting.value;
  const double log_cost = std::log(seconds) - std::log(cost);
  if (level->variance < 0.0) {
    *level = {.log_seconds = log_cost, .variance = Square(2 * kNoiseDeviation)};
    return;
  }
  level->variance += Square(kLevelDrift);

  const double error = log_cost - level->log_seconds;
  const auto variance = [&] {
    return level->variance + (rows.variance + drafting.variance) / Square(cost);
  };
  const double plausible = Square(error / kPlausibleDeviations);
  if (plausible > noise_variance_ + variance()) {
    // Too slow: an accident until it is repeated. Too fast: as uncertain as it takes.
    const double doubt = error > 0.0 ? kDoubt : (plausible - noise_variance_) / variance();
    level->variance *= doubt;
    rows.variance *= doubt;
    drafting.variance *= doubt;
    if (error > 0.0) return;
  }

  const double total = noise_variance_ + variance();
  const auto correct = [&](Estimate* estimate) {
    const double gain = estimate->variance / Square(cost) / total;
    // In a first record of its kind, error may be large: the exact inverse of the logarithm.
    const double corrected = estimate->value + cost * std::expm1(error * gain);
    estimate->value = std::max(corrected, 0.1 * estimate->value);
    estimate->variance *= 1.0 - gain;
  };
  level->log_seconds += error * level->variance / total;
  level->variance *= 1.0 - level->variance / total;
  correct(&rows);
  if (num_requested > 0) correct(&drafting);
  // error * (what is left of it) is the noise alone, on average.
  const double left = error * error * noise_variance_ / total;
  noise_variance_ = std::max(noise_variance_ + (left - noise_variance_) / kNoiseMemory,
                             Square(kLeastNoiseDeviation));
}

}  // namespace megalith::engine
