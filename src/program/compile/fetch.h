#pragma once

#include <vector>

#include "program/program.h"

namespace megalith::program {

/// Adds the requests that bring each worker's weight tiles into its store ahead of use. Tile i of a
/// stream goes to slot i mod S; when it has been consumed, the slot is refilled with tile i + S,
/// or, at the end of the visit, with the next visit's tile for that slot, so that fetching runs on
/// across layers. Tiles of chosen experts are not known ahead and stream through.
void ScheduleFetches(const Program& program, Stream& stream);

/// The same without running ahead: every tile is requested by the instruction before its use.
void ScheduleFetchesInPlace(Stream& stream);

}  // namespace megalith::program
