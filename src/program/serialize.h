#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "program/program.h"

namespace megalith::program {

/// The Program as bytes: magic, version, fields in declaration order, little-endian. Equal Programs
/// give equal bytes.
std::vector<std::byte> Serialize(const Program& program);

/// Reads what Serialize wrote; any other bytes give kBadProgram. The result still has to be
/// verified.
Result<Program> Deserialize(std::span<const std::byte> bytes);

/// 32 hexadecimal digits: XXH3-128 of Serialize(program).
std::string ContentHash(const Program& program);

}  // namespace megalith::program
