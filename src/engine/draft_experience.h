#pragma once

// What the sequences of an engine have learnt about one kind of drafts, for later ones to begin
// with.

#include <cstdint>

#include "engine/draft_acceptance.h"
#include "engine/step_costs.h"

namespace megalith::engine {

/// Used by one thread at a time.
struct DraftExperience {
  explicit DraftExperience(std::int32_t max_drafts) : costs(max_drafts), acceptance(max_drafts) {}

  StepCosts costs;
  DraftAcceptance acceptance;  ///< in the first rounds of sequences
  double steps_lost = 0.0;     ///< to drafting, in plain steps; below 0: gained
};

}  // namespace megalith::engine
