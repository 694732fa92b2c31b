#pragma once

// The text between a <|open|> or <|close|> marker and its <|sep|>: name key="value" key="value".

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith::text {

struct ChatTag {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;

  /// The attribute's value; nullptr if the tag has none of this name.
  const std::string* Find(std::string_view key) const;
};

/// The name ends at the first space. Attributes are read as far as they are well-formed; what
/// stands behind is ignored.
ChatTag ParseChatTag(std::string_view text);

/// ` key="value"` with its leading space; in the value & becomes &amp; and then " becomes &quot;.
std::string FormatAttribute(std::string_view key, std::string_view value);

}  // namespace megalith::text
