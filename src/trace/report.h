#pragma once

// A summary as text for people and as JSON for scripts.

#include <string>

#include "trace/summary.h"

namespace megalith::trace {

/// Tables: steps and workers, time by op, critical path by op, bubbles by cause. All figures are of
/// one step: sums divided by the number of steps. Ends with a newline.
std::string ReportText(const Summary& summary);

/// The same as one JSON object, sums over all steps in nanoseconds and bytes. No newline at the
/// end.
std::string ReportJson(const Summary& summary);

}  // namespace megalith::trace
