#pragma once

#include <string>
#include <string_view>

namespace megalith::trace {

/// For the inside of a JSON string. Bytes that are not UTF-8 become U+FFFD.
std::string EscapeJson(std::string_view text);

/// For XML text and attribute values. What XML 1.0 does not allow (control characters, bytes that
/// are not UTF-8) becomes U+FFFD.
std::string EscapeXml(std::string_view text);

}  // namespace megalith::trace
