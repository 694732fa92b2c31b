#pragma once

#include <string>

#include "trace/timeline.h"

namespace megalith::trace {

/// One step as a drawing that needs no scripts: a lane for each worker and one for the critical
/// path, work coloured by OpGroup, waits hatched, layers marked, a time axis, a legend. Names and
/// times are in tool tips. The same input gives the same bytes.
std::string TimelineSvg(const TraceReader& reader, const Timeline& timeline);

}  // namespace megalith::trace
