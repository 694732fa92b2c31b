#pragma once

// What is told of drafting, by whatever reports it.

#include <string_view>

#include "engine/draft_controller.h"

namespace megalith::engine {

/// Whether there is anything to tell: nothing can be drafted otherwise.
inline bool CanDraft(const DraftStatistics& drafting) {
  return drafting.rounds_by_drafts.size() > 1;
}

/// Sums up sequences; estimates and decisions are those of the last one.
void AddTo(DraftStatistics* sum, const DraftStatistics& more);

/// Calls field(name, value) for each figure in the order of reports: std::int64_t, std::vector of
/// them, double, std::string_view.
template <typename Field>
void ForEachDraftField(const DraftStatistics& drafting, Field field) {
  field("rounds", drafting.rounds);
  field("drafted", drafting.drafted);
  field("accepted", drafting.accepted);
  field("drafted_from_text", drafting.drafted_from_text);
  field("accepted_from_text", drafting.accepted_from_text);
  field("drafted_by_position", drafting.position_proposed);
  field("accepted_by_position", drafting.position_accepted);
  field("rounds_by_drafts", drafting.rounds_by_drafts);
  field("switches_on", drafting.switches_on);
  field("switches_off", drafting.switches_off);
  field("probes", drafting.probes);
  field("expected_speedup", drafting.expected_speedup);
  field("last_decision", drafting.last_reason);
}

}  // namespace megalith::engine
