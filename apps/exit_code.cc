#include "exit_code.h"

namespace megalith::apps {

ExitCode ExitCodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
    case ErrorCode::kOutOfRange:
      return ExitCode::kUsage;
    case ErrorCode::kNotFound:
    case ErrorCode::kBadFile:
    case ErrorCode::kBadConfig:
    case ErrorCode::kBadTensor:
    case ErrorCode::kUnsupported:
    case ErrorCode::kBadProgram:
      return ExitCode::kBadInput;
    case ErrorCode::kIo:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kBusy:
    case ErrorCode::kNumeric:
    case ErrorCode::kCancelled:
    case ErrorCode::kInternal:
      return ExitCode::kRunFailed;
  }
  return ExitCode::kRunFailed;
}

}  // namespace megalith::apps
