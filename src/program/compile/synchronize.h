#pragma once

#include "program/compile/builder.h"

namespace megalith::program {

/// Orders a segment's instructions: finds, from their operands, which other workers' phases each
/// one depends on (reads of what they write, writes over what they read or write), and inserts the
/// fewest all-join waits that cover it. A phase that somebody waits for gets a counter, signalled
/// by each of its workers when its last instruction of the phase is done. What a worker produced
/// itself needs no wait.
void Synchronize(SegmentBuilder& builder);

/// All workers meet between any two phases, those with nothing to do in a phase too.
void SynchronizeWithBarriers(SegmentBuilder& builder);

}  // namespace megalith::program
