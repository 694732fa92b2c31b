#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace megalith {

/// Every failure the libraries report. One line of meaning each; the message of an Error says
/// where it happened, what was expected and what was found.
enum class ErrorCode {
  kUsage,        ///< the caller asked for something that does not exist or does not fit together
  kNotFound,     ///< a file or directory is not there or cannot be opened
  kIo,           ///< the operating system refused or cut short a read or write
  kBadFile,      ///< a file's bytes are not what its format allows
  kBadConfig,    ///< config.json lacks a key, contradicts itself or asks for the impossible
  kBadTensor,    ///< a tensor is absent, unknown, or of another shape or dtype than the model needs
  kUnsupported,  ///< well-formed, but not implemented here
  kBadProgram,   ///< a Program failed verification or cannot be decoded
  kOutOfRange,   ///< a value (token id, position, row count) is outside what was declared
  kOutOfMemory,  ///< the memory the plan needs is not available
  kBusy,         ///< too much is waiting already; the same may succeed later
  kNumeric,      ///< the computation produced NaN or infinity
  kCancelled,    ///< stopped on request
  kInternal,     ///< a bug in this project
};

/// The enumerator as a lower-case word, e.g. "bad_config".
std::string_view ErrorCodeName(ErrorCode code);

struct Error {
  ErrorCode code;
  std::string message;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

/// `return Fail(ErrorCode::kBadFile, "{}: {} bytes expected, {} found", path, want, have);`
template <typename... Args>
[[nodiscard]] tl::unexpected<Error> Fail(ErrorCode code, fmt::format_string<Args...> format,
                                         Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

}  // namespace megalith

#define MEGALITH_CONCAT_INNER(a, b) a##b
#define MEGALITH_CONCAT(a, b) MEGALITH_CONCAT_INNER(a, b)

/// Evaluates a Status or Result expression and returns its error from the enclosing function.
#define MEGALITH_RETURN_IF_ERROR(expression)                                        \
  do {                                                                              \
    if (auto megalith_status = (expression); !megalith_status) {                    \
      return tl::unexpected<::megalith::Error>(std::move(megalith_status).error()); \
    }                                                                               \
  } while (false)

/// `MEGALITH_ASSIGN_OR_RETURN(auto file, File::Open(path));`
#define MEGALITH_ASSIGN_OR_RETURN(declaration, expression)                                  \
  MEGALITH_ASSIGN_OR_RETURN_INNER(MEGALITH_CONCAT(megalith_result_, __LINE__), declaration, \
                                  expression)
#define MEGALITH_ASSIGN_OR_RETURN_INNER(result, declaration, expression)            \
  auto result = (expression);                                                       \
  if (!result) return tl::unexpected<::megalith::Error>(std::move(result).error()); \
  declaration = std::move(*result)
