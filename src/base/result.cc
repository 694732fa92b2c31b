#include "base/result.h"

namespace megalith {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return "usage";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kBadFile:
      return "bad_file";
    case ErrorCode::kBadConfig:
      return "bad_config";
    case ErrorCode::kBadTensor:
      return "bad_tensor";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kBadProgram:
      return "bad_program";
    case ErrorCode::kOutOfRange:
      return "out_of_range";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kBusy:
      return "busy";
    case ErrorCode::kNumeric:
      return "numeric";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

}  // namespace megalith
