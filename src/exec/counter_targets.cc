#include "exec/counter_targets.h"

namespace megalith::exec {

using program::Counter;
using program::CounterScope;

CounterTargets::CounterTargets(const program::Program& program) : program_(&program) {
  std::vector<std::int64_t> visits_of_segment(program.segments.size(), 0);
  for (const program::Visit& visit : program.visits) ++visits_of_segment[visit.segment];
  const auto num_visits = static_cast<std::int64_t>(program.visits.size());
  for (std::size_t i = 0; i < program.counters.size(); ++i) {
    const Counter& counter = program.counters[i];
    Rule rule;
    rule.per_visit = counter.signals_per_visit;
    switch (counter.scope) {
      case CounterScope::kSegment:
        rule.by_ordinal = true;
        rule.per_epoch = rule.per_visit * visits_of_segment[counter.segment];
        break;
      case CounterScope::kProgram:
        // A wait refers to the visit before; in the first visit to the last step's end.
        rule.visit_factor = 1;
        rule.visit_offset = -1;
        rule.per_epoch = rule.per_visit * num_visits;
        break;
      case CounterScope::kHost:
        rule.per_epoch = 1;
        host_counters_.push_back(static_cast<std::uint32_t>(i));
        break;
      case CounterScope::kDone:
        rule.per_epoch = rule.per_visit;
        done_counter_ = static_cast<std::uint32_t>(i);
        done_signals_ = rule.per_visit;
        break;
    }
    rules_.push_back(rule);
  }
}

}  // namespace megalith::exec
