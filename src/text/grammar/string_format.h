#pragma once

// The `format` keyword of JSON schemas.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::text::grammar {

/// A pattern for strings of this format; empty for formats that are not known. All strings that
/// match are valid; of email, hostname and uri only the usual ones match (no quoted local parts, no
/// internationalised names, uri with an authority). `max_length`: of the strings that matter;
/// others may then match without being valid.
std::optional<std::string> PatternOfFormat(std::string_view format,
                                           std::optional<std::uint32_t> max_length = std::nullopt);

/// "date, date-time, ...", for messages.
std::string KnownFormats();

}  // namespace megalith::text::grammar
