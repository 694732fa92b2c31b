#include "engine/draft_source.h"

#include <algorithm>
#include <limits>

namespace megalith::engine {
namespace {

/// Blocks of a sequence that others learn from: few, or sequences whose drafts are good would
/// outnumber those that gave up early.
constexpr std::int64_t kSharedBlocks = 4;

}  // namespace

void DraftCut::Extend(double chance, double cost) {
  ++num_seen_;
  survival_ *= chance;
  accepted_ += survival_;
  const double gain = accepted_ - price_ * (cost - 1.0);
  if (gain <= gain_) return;
  num_drafts_ = num_seen_;
  tokens_ = 1.0 + accepted_;
  cost_ = cost;
  gain_ = gain;
}

DraftSource::DraftSource(std::int32_t max_drafts, DraftAcceptance& experience)
    : experience_(experience),
      acceptance_(experience),
      max_drafts_(static_cast<std::size_t>(max_drafts)) {
  acceptance_.Doubt();
}

void DraftSource::Propose(const DraftBlock& block) {
  const auto drafts = block.drafts.first(std::min(block.drafts.size(), max_drafts_));
  drafts_.assign(drafts.begin(), drafts.end());
  const auto given = block.confidence.first(std::min(block.confidence.size(), drafts_.size()));
  confidence_.assign(given.begin(), given.end());
  confidence_.resize(drafts_.size(), std::numeric_limits<float>::quiet_NaN());
}

void DraftSource::Judge(std::span<const std::int32_t> tokens, bool shared) {
  const auto wrong =
      std::mismatch(drafts_.begin(), drafts_.end(), tokens.begin(), tokens.end()).first;
  const auto num_right = static_cast<std::int32_t>(wrong - drafts_.begin());
  const auto num_known = static_cast<std::int32_t>(std::min(tokens.size(), drafts_.size()));
  // The first wrong draft is the last that tells something.
  const std::int32_t num_judged = std::min(num_right + 1, num_known);
  if (num_judged == 0) return;
  acceptance_.Record(confidence_, num_judged, num_right);
  if (shared && num_judged_ < kSharedBlocks) {
    experience_.Record(confidence_, num_judged, num_right);
  }
  ++num_judged_;
}

void DraftSource::FillChances(std::span<const float> confidence, double least_chance,
                              std::span<double> chances) const {
  acceptance_.Chances(confidence, chances);
  for (double& chance : chances) chance = std::max(chance, least_chance);
}

DraftCut DraftSource::BestCut(std::span<const float> confidence, const StepCosts& costs,
                              double price, double least_chance) const {
  std::vector<double> chances(confidence.size());
  FillChances(confidence, least_chance, chances);
  DraftCut cut(price);
  for (std::size_t k = 0; k < chances.size(); ++k) {
    cut.Extend(chances[k], costs.Rows(static_cast<std::int32_t>(k) + 1));
  }
  return cut;
}

}  // namespace megalith::engine
