#include "text/chat_tag.h"

namespace megalith::text {
namespace {

void ReplaceAll(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// In the reverse order of escaping: else "&amp;quot;" would become a quote.
std::string Unescape(std::string_view value) {
  std::string text(value);
  ReplaceAll(text, "&quot;", "\"");
  ReplaceAll(text, "&amp;", "&");
  return text;
}

}  // namespace

const std::string* ChatTag::Find(std::string_view key) const {
  for (const auto& [name_, value] : attributes) {
    if (name_ == key) return &value;
  }
  return nullptr;
}

ChatTag ParseChatTag(std::string_view text) {
  ChatTag tag;
  const std::size_t name_end = text.find(' ');
  tag.name = std::string(text.substr(0, name_end));
  if (name_end == std::string_view::npos) return tag;
  std::string_view rest = text.substr(name_end);
  for (;;) {
    const std::size_t begin = rest.find_first_not_of(' ');
    if (begin == std::string_view::npos) return tag;
    rest.remove_prefix(begin);
    const std::size_t equals = rest.find("=\"");
    if (equals == std::string_view::npos) return tag;
    const std::size_t value = equals + 2;
    const std::size_t end = rest.find('"', value);
    if (end == std::string_view::npos) return tag;
    tag.attributes.emplace_back(rest.substr(0, equals), Unescape(rest.substr(value, end - value)));
    rest.remove_prefix(end + 1);
  }
}

std::string FormatAttribute(std::string_view key, std::string_view value) {
  std::string escaped(value);
  ReplaceAll(escaped, "&", "&amp;");
  ReplaceAll(escaped, "\"", "&quot;");
  std::string out = " ";
  out.append(key).append("=\"").append(escaped).append("\"");
  return out;
}

}  // namespace megalith::text
