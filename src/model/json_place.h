#pragma once

// Where a JSON text stops being JSON. The parser that reads the files (simdjson) does not say.

#include <string>
#include <string_view>

namespace megalith::model {

/// For a text that a parser refused: " at byte 17 (line 2), after '"layers": 3,'", to be put behind
/// the message. The byte counts from 0 and is the first that does not fit; at the end of a text cut
/// short it is the length. Empty when the text is well-formed JSON and the parser's reason is
/// another, for example a number out of range.
std::string JsonErrorPlace(std::string_view json);

}  // namespace megalith::model
