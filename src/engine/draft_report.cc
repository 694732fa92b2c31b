#include "engine/draft_report.h"

#include <algorithm>
#include <vector>

namespace megalith::engine {
namespace {

void AddTo(std::vector<std::int64_t>* sum, const std::vector<std::int64_t>& more) {
  sum->resize(std::max(sum->size(), more.size()));
  for (std::size_t i = 0; i < more.size(); ++i) (*sum)[i] += more[i];
}

}  // namespace

void AddTo(DraftStatistics* sum, const DraftStatistics& more) {
  sum->rounds += more.rounds;
  sum->drafted += more.drafted;
  sum->accepted += more.accepted;
  sum->drafted_from_text += more.drafted_from_text;
  sum->accepted_from_text += more.accepted_from_text;
  AddTo(&sum->position_proposed, more.position_proposed);
  AddTo(&sum->position_accepted, more.position_accepted);
  AddTo(&sum->rounds_by_drafts, more.rounds_by_drafts);
  sum->switches_on += more.switches_on;
  sum->switches_off += more.switches_off;
  sum->probes += more.probes;
  sum->expected_speedup = more.expected_speedup;
  sum->last_plan = more.last_plan;
  sum->last_reason = more.last_reason;
}

}  // namespace megalith::engine
