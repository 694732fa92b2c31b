#pragma once

// Somebody who proposes drafts for one sequence: what is proposed at the moment, how often it has
// been right, and how much of it is worth verifying.

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft_acceptance.h"
#include "engine/step_costs.h"

namespace megalith::engine {

/// Tokens that may follow the newest one, with a confidence logit each; fewer logits than drafts,
/// none or NaN are allowed.
struct DraftBlock {
  std::span<const std::int32_t> drafts;
  std::span<const float> confidence;
};

/// Where to cut a block: behind the draft that maximises the gain, expected tokens less the price
/// of the time.
class DraftCut {
 public:
  /// `price`: tokens that the time of a plain step is worth.
  explicit DraftCut(double price) : price_(price) {}

  /// The next draft, with its chance of being accepted if those before it are; `cost`: of the rows
  /// then verified, in plain steps.
  void Extend(double chance, double cost);

  std::int32_t num_drafts() const { return num_drafts_; }
  double tokens() const { return tokens_; }  ///< expected of the step
  double cost() const { return cost_; }      ///< of its rows
  double gain() const { return gain_; }      ///< over verifying none, in tokens; >= 0

 private:
  double price_;
  std::int32_t num_seen_ = 0;
  double survival_ = 1.0;  ///< of all drafts so far
  double accepted_ = 0.0;  ///< expected, of all drafts so far
  // Of the best cut.
  std::int32_t num_drafts_ = 0;
  double tokens_ = 1.0;
  double cost_ = 1.0;
  double gain_ = 0.0;
};

/// For one sequence.
class DraftSource {
 public:
  /// Begins with what the first blocks of others have shown, and adds its own to it. Blocks have at
  /// most `max_drafts` drafts.
  DraftSource(std::int32_t max_drafts, DraftAcceptance& experience);

  /// Takes the block for the next step; what is too long is cut.
  void Propose(const DraftBlock& block);
  std::int32_t num_drafts() const { return static_cast<std::int32_t>(drafts_.size()); }
  /// Of the block: one per draft, NaN where there is none.
  const std::vector<float>& confidence() const { return confidence_; }

  /// Learns how much of the block agrees with the tokens that the step has chosen, whether it was
  /// verified or not. `shared`: others may learn from it, too.
  void Judge(std::span<const std::int32_t> tokens, bool shared);

  /// Of drafts with such confidences, each taken to be at least `least_chance`. `chances` may be
  /// longer.
  void FillChances(std::span<const float> confidence, double least_chance,
                   std::span<double> chances) const;
  /// Of a block with such confidences, and of the one proposed.
  DraftCut BestCut(std::span<const float> confidence, const StepCosts& costs, double price,
                   double least_chance = 0.0) const;
  DraftCut BestCut(const StepCosts& costs, double price, double least_chance = 0.0) const {
    return BestCut(confidence_, costs, price, least_chance);
  }

  /// The next few drafts are to decide.
  void Doubt() { acceptance_.Doubt(); }

 private:
  DraftAcceptance& experience_;
  DraftAcceptance acceptance_;
  std::int64_t num_judged_ = 0;  ///< blocks
  std::size_t max_drafts_;
  std::vector<std::int32_t> drafts_;
  std::vector<float> confidence_;
};

}  // namespace megalith::engine
