#pragma once

#include "base/result.h"

namespace megalith::apps {

/// What the process returns to the shell.
enum class ExitCode : int {
  kFine = 0,
  kRunFailed = 1,  ///< the request was good, but could not be carried out
  kUsage = 2,      ///< the command line asks for something that does not exist
  kBadInput = 3,   ///< a file that was read is missing or not what it should be
};

/// The one table from errors to exit codes.
ExitCode ExitCodeOf(ErrorCode code);

}  // namespace megalith::apps
