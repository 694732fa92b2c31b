#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace megalith::exec {

/// kOutOfMemory with both sizes if this process may not take `bytes` more. Asked once for the sum
/// of several arenas, because pages not yet touched do not show in what is available.
Status CheckMemory(std::string_view what, std::int64_t bytes);

}  // namespace megalith::exec
