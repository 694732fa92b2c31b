#pragma once

// What becomes of request members that no reader asked for.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/errors.h"

namespace megalith::serve {

/// A member that is accepted although it changes nothing here.
struct IgnoredField {
  std::string_view name;
  std::string_view reason;
};
/// The only such members, of every endpoint. docs/server.md lists them.
std::span<const IgnoredField> IgnoredFields();

/// Appends a warning for each member that is ignored. An error for the first that exists elsewhere
/// but not here, and, unless `accept_unknown`, for the first that nobody knows.
std::optional<ApiError> ApplyFieldPolicy(const std::vector<std::string>& unread,
                                         bool accept_unknown, std::vector<std::string>& warnings);

}  // namespace megalith::serve
