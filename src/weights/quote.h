#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace megalith::weights {

/// A name that came from a file, fit for a message: control characters replaced, length bounded.
inline std::string Quote(std::string_view name) {
  constexpr std::size_t kMaxQuoted = 200;
  std::size_t length = name.size();
  if (length > kMaxQuoted) {
    length = kMaxQuoted;
    // Do not cut inside a UTF-8 sequence.
    while (length > 0 && (static_cast<unsigned char>(name[length]) & 0xc0u) == 0x80u) --length;
  }
  std::string text(name.substr(0, length));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (length < name.size()) text += fmt::format("... ({} bytes)", name.size());
  return text;
}

}  // namespace megalith::weights
