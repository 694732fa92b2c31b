#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace megalith {

/// How far a long operation is.
struct Progress {
  std::string_view stage;  ///< what is being done, e.g. "pack weights"; valid during the call
  std::uint64_t done;      ///< in the unit of `total`, never decreasing within a stage
  std::uint64_t total;     ///< 0 if not known
  bool in_bytes;           ///< done and total are bytes
};

/// Called now and then from the thread that called the operation. May be empty. To stop an
/// operation, set its CancelFlag.
using ProgressCallback = std::function<void(const Progress&)>;

}  // namespace megalith
