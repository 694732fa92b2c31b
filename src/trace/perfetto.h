#pragma once

#include <span>
#include <string>

#include "trace/timeline.h"

namespace megalith::trace {

/// Steps of one Program.
struct TracedSteps {
  const TraceReader* reader;
  std::span<const Timeline> timelines;
};

/// Chrome trace JSON, as ui.perfetto.dev opens it. Tracks: the host's steps, the critical path, one
/// for each worker with its visits and in them waits and work; a counter for each worker of the
/// rate at which it reads. Time zero is the begin of the first step. The same input gives the same
/// bytes.
std::string PerfettoJson(std::span<const TracedSteps> steps);

}  // namespace megalith::trace
