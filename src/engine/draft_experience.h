#pragma once

// What the sequences of an engine have learnt about drafts, for later ones to begin with.

#include <cstdint>

#include "engine/draft_acceptance.h"
#include "engine/step_costs.h"

namespace megalith::engine {

/// Used by one thread at a time.
struct DraftExperience {
  explicit DraftExperience(std::int32_t max_drafts)
      : costs(max_drafts), drafter(max_drafts), text(max_drafts) {}

  StepCosts costs;
  DraftAcceptance drafter;  ///< of its drafts, in the first blocks of sequences
  DraftAcceptance text;     ///< of drafts from the text, likewise
  double steps_lost = 0.0;  ///< to the drafter, in plain steps; below 0: gained
};

}  // namespace megalith::engine
