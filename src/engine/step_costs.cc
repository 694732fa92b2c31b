#include "engine/step_costs.h"

#include <algorithm>
#include <array>
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
constexpr std::int32_t kEnoughRecords = 3;
/// A kind seen so often has its cost: surprises are then a matter of the level alone.
constexpr std::int64_t kSettledRecords = 16;
/// Gains that later tries may lose again, in plain steps.
constexpr double kMostStepsGained = 100.0;

double Square(double x) { return x * x; }

}  // namespace

StepCosts::StepCosts(std::int32_t max_drafts)
    : max_drafts_(max_drafts), noise_variance_(Square(kNoiseDeviation)) {
  MEGALITH_CHECK(max_drafts >= 0);
  costs_.resize(2 * static_cast<std::size_t>(max_drafts) + 1);
  covariance_.resize(costs_.size() * costs_.size());
}

double StepCosts::Rows(std::int32_t num_drafts) const {
  if (RowsEntry(num_drafts).num_records > 0) return RowsEntry(num_drafts).value;
  std::int32_t below = num_drafts;
  while (below > 0 && RowsEntry(below).num_records == 0) --below;
  std::int32_t above = num_drafts;
  while (above <= max_drafts_ && RowsEntry(above).num_records == 0) ++above;

  // Nothing seen below: one row, which costs 1 by definition until it is measured.
  const double low = RowsEntry(below).num_records > 0 ? RowsEntry(below).value : 1.0;
  const double distance = num_drafts - below;
  if (above > max_drafts_) return low * (1.0 + kRowGuess * distance);
  const double rise = std::max(RowsEntry(above).value - low, 0.0);
  return low + 0.5 * rise * distance / (above - below);
}

double StepCosts::Drafting(std::int32_t num_requested) const {
  if (num_requested == 0) return 0.0;
  for (std::int32_t above = num_requested; above <= max_drafts_; ++above) {
    if (DraftingEntry(above).num_records == 0) continue;
    return DraftingEntry(above).value * (0.5 + 0.5 * num_requested / above);
  }
  for (std::int32_t below = num_requested; below > 0; --below) {
    if (DraftingEntry(below).num_records > 0) return DraftingEntry(below).value;
  }
  return kDraftingGuess * Rows(0);
}

bool StepCosts::KnowsRows(std::int32_t num_drafts) const {
  return RowsEntry(num_drafts).num_believed >= kEnoughRecords;
}

void StepCosts::Begin(std::size_t index, double guess, double deviation) {
  if (costs_[index].num_records == 0) {
    costs_[index].value = guess;
    Covariance(index, index) = Square(deviation);
  }
  ++costs_[index].num_records;
}

std::vector<double> StepCosts::CovarianceWithSum(std::span<const std::size_t> summands,
                                                 double sum) {
  std::vector<double> covariance(costs_.size(), 0.0);
  for (std::size_t i = 0; i < costs_.size(); ++i) {
    for (std::size_t summand : summands) covariance[i] += Covariance(i, summand) / sum;
  }
  return covariance;
}

void StepCosts::AddStepsLost(bool request_costs, double steps) {
  double& lost = steps_lost_[request_costs ? 1 : 0];
  lost = std::max(lost + steps, -kMostStepsGained);
}

void StepCosts::Record(std::int32_t num_drafts, std::int32_t num_requested, double seconds,
                       Level* level) {
  MEGALITH_CHECK(num_drafts >= 0 && num_drafts <= max_drafts_);
  MEGALITH_CHECK(num_requested >= 0 && num_requested <= max_drafts_);
  if (!std::isfinite(seconds) || seconds <= 0.0) return;

  // The step's cost is the sum of one or two.
  const std::array<std::size_t, 2> both = {static_cast<std::size_t>(num_drafts),
                                           static_cast<std::size_t>(max_drafts_ + num_requested)};
  const std::span<const std::size_t> summands(both.data(), num_requested > 0 ? 2 : 1);
  // The guess of what drafting costs is as uncertain as the whole step.
  const double deviation = kFirstGuessDeviation * Rows(num_drafts);
  Begin(both[0], Rows(num_drafts), deviation);
  if (num_requested > 0) Begin(both[1], Drafting(num_requested), deviation);
  double sum = 0.0;
  for (std::size_t summand : summands) sum += costs_[summand].value;

  const double log_level = std::log(seconds) - std::log(sum);
  if (level->variance < 0.0) {
    *level = {.log_seconds = log_level, .variance = Square(2 * kNoiseDeviation)};
    ++costs_[both[0]].num_believed;
    return;
  }
  level->variance += Square(kLevelDrift);
  for (std::size_t i = 0; i < costs_.size(); ++i) {
    Covariance(i, i) += Square(kCostDrift * costs_[i].value);
  }

  const double error = log_level - level->log_seconds;
  std::vector<double> covariance;
  double cost_variance = 0.0;  // of log(sum)
  const auto predict = [&] {
    covariance = CovarianceWithSum(summands, sum);
    cost_variance = 0.0;
    for (std::size_t summand : summands) cost_variance += covariance[summand] / sum;
  };
  predict();
  const double plausible = Square(error / kPlausibleDeviations);
  if (plausible > noise_variance_ + level->variance + cost_variance) {
    // Too slow: an accident until it is repeated. Too fast: as uncertain as it takes.
    const double doubt =
        error > 0.0 ? kDoubt : (plausible - noise_variance_) / (level->variance + cost_variance);
    level->variance *= doubt;
    const double added = (doubt - 1.0) * cost_variance * Square(sum);
    for (std::size_t summand : summands) {
      if (costs_[summand].num_believed >= kSettledRecords) continue;
      Covariance(summand, summand) += added / static_cast<double>(summands.size());
    }
    if (error > 0.0) return;
    predict();
  }
  for (std::size_t summand : summands) ++costs_[summand].num_believed;

  const double total = noise_variance_ + level->variance + cost_variance;
  level->log_seconds += error * level->variance / total;
  level->variance *= 1.0 - level->variance / total;
  // From the logarithm back, exactly: the error may be large when a kind is seen first.
  const double share = cost_variance / total;
  const double step = share > 0.0 ? std::expm1(error * share) / share : error;
  for (std::size_t i = 0; i < costs_.size(); ++i) {
    const double corrected = costs_[i].value + covariance[i] / total * step;
    costs_[i].value = std::max(corrected, 0.1 * costs_[i].value);
    for (std::size_t j = 0; j < costs_.size(); ++j) {
      Covariance(i, j) -= covariance[i] * covariance[j] / total;
    }
  }
  // error * (what is left of it) is the noise alone, on average.
  const double left = error * error * noise_variance_ / total;
  noise_variance_ = std::max(noise_variance_ + (left - noise_variance_) / kNoiseMemory,
                             Square(kLeastNoiseDeviation));
}

}  // namespace megalith::engine
