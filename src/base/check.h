#pragma once

namespace megalith::internal {

/// Prints the failed condition and aborts. The only place in the libraries that does either.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace megalith::internal

/// For this project's own bugs only, never for input: prints the condition and aborts.
#define MEGALITH_CHECK(condition)                                        \
  do {                                                                   \
    if (!(condition)) {                                                  \
      ::megalith::internal::CheckFailed(__FILE__, __LINE__, #condition); \
    }                                                                    \
  } while (false)
