#pragma once

#include <cstdint>
#include <string>

namespace megalith {

/// Bytes for people, in powers of 1024 with up to three digits: "0 B", "512 B", "1.5 KiB",
/// "32 MiB", "1.41 TiB".
std::string FormatBytes(std::uint64_t bytes);

}  // namespace megalith
