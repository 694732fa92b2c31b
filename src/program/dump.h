#pragma once

#include <string>

#include "program/program.h"

namespace megalith::program {

/// Readable listing: buffers, counters, segments with every worker's stream, visits.
std::string DumpText(const Program& program);

/// The same content as one JSON object.
std::string DumpJson(const Program& program);

/// One instruction as DumpText prints it; used in verifier messages.
std::string Describe(const Program& program, const Segment& segment, const Stream& stream,
                     const Instruction& instruction);

}  // namespace megalith::program
