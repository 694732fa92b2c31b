#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megalith::text {

/// The pieces of a text by ICU's regular expressions with the reference pattern.
std::vector<std::string> SplitByIcu(std::string_view text);

/// The pieces by the scanner, as one text (no cutting of long text).
std::vector<std::string> SplitByScanner(std::string_view text);

}  // namespace megalith::text
