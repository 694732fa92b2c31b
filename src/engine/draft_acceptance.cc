#include "engine/draft_acceptance.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace megalith::engine {
namespace {

/// Chance of a first draft about which nothing is known: hopeful, since it must be tried.
constexpr double kFirstChance = 0.7;
/// What the prior counts for, in drafts.
constexpr double kPriorWeight = 1.0;
/// Half of what is known of a position is from the last 33 rounds with drafts.
constexpr double kPositionMemory = 48;
constexpr double kBinMemory = 64;
/// Confidences are believed at first: positions must have predicted e^2 times better.
constexpr double kFirstMerit = 2.0;
constexpr double kMeritMemory = 64;  // drafts
/// No prediction is taken for surer than this or its opposite.
constexpr double kSurest = 0.98;
/// A run of outcomes less likely than this is a change of the text.
constexpr double kUnlikely = 0.001;

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// What a prediction gave to the outcome.
double Credit(double chance, bool accepted) {
  chance = std::clamp(chance, 1.0 - kSurest, kSurest);
  return std::log(accepted ? chance : 1.0 - chance);
}

/// Whether draft k came with a confidence.
bool Has(std::span<const float> confidence, std::size_t k) {
  return k < confidence.size() && !std::isnan(confidence[k]);
}

}  // namespace

DraftAcceptance::DraftAcceptance(std::int32_t max_drafts) : merit_(kFirstMerit) {
  MEGALITH_CHECK(max_drafts >= 0);
  positions_.resize(static_cast<std::size_t>(max_drafts));
}

void DraftAcceptance::Count::Add(bool was_accepted) {
  seen += 1.0;
  if (was_accepted) accepted += 1.0;
}

double DraftAcceptance::Count::Share(double prior) const {
  return (accepted + kPriorWeight * prior) / (seen + kPriorWeight);
}

/// One unit of logit each, open at both ends: chances up to 0.05, 0.12, 0.27, 0.5, 0.73, ...
std::size_t DraftAcceptance::BinOf(float confidence) {
  const float bin = std::floor(confidence) + 4.0f;
  return static_cast<std::size_t>(std::clamp(bin, 0.0f, static_cast<float>(kNumBins - 1)));
}

double DraftAcceptance::ByConfidence(float confidence) const {
  return bins_[BinOf(confidence)].Share(Sigmoid(confidence));
}

void DraftAcceptance::Chances(std::span<const float> confidence, std::span<double> chances) const {
  MEGALITH_CHECK(chances.size() <= positions_.size());
  const double weight = Sigmoid(merit_);
  double by_position = kFirstChance;
  for (std::size_t k = 0; k < chances.size(); ++k) {
    by_position = positions_[k].Share(by_position);
    chances[k] = by_position;
    if (Has(confidence, k)) {
      chances[k] += weight * (ByConfidence(confidence[k]) - by_position);
    }
  }
}

void DraftAcceptance::Record(std::span<const float> confidence, std::int32_t num_drafts,
                             std::int32_t num_accepted) {
  MEGALITH_CHECK(num_drafts <= static_cast<std::int32_t>(positions_.size()));
  if (num_drafts <= 0) return;  // time without drafts is no reason to think better of them
  NoticeChange(confidence, num_accepted > 0);
  for (Count& position : positions_) position.Fade(1.0 - 1.0 / kPositionMemory);
  for (Count& bin : bins_) bin.Fade(1.0 - 1.0 / kBinMemory);
  // The first rejected draft is the last that tells something.
  const auto num_judged = static_cast<std::size_t>(std::min(num_drafts, num_accepted + 1));
  double by_position = kFirstChance;
  for (std::size_t k = 0; k < num_judged; ++k) {
    const bool accepted = k < static_cast<std::size_t>(num_accepted);
    by_position = positions_[k].Share(by_position);
    positions_[k].Add(accepted);
    if (!Has(confidence, k)) continue;
    merit_ *= 1.0 - 1.0 / kMeritMemory;
    merit_ += Credit(ByConfidence(confidence[k]), accepted) - Credit(by_position, accepted);
    bins_[BinOf(confidence[k])].Add(accepted);
  }
}

void DraftAcceptance::NoticeChange(std::span<const float> confidence, bool accepted) {
  double chance = 0.0;
  Chances(confidence.first(std::min<std::size_t>(confidence.size(), 1)), {&chance, 1});
  if (accepted != last_accepted_) run_likelihood_ = 1.0;
  last_accepted_ = accepted;
  run_likelihood_ *= accepted ? chance : 1.0 - chance;
  if (run_likelihood_ > kUnlikely) return;
  Doubt();
  run_likelihood_ = 1.0;
}

void DraftAcceptance::Doubt() {
  for (Count& position : positions_) position.Fade(1.0 / std::max(position.seen, 1.0));
  for (Count& bin : bins_) bin.Fade(1.0 / std::max(bin.seen, 1.0));
}

}  // namespace megalith::engine
