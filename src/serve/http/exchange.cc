#include "serve/http/exchange.h"

#include <algorithm>

namespace megalith::serve::http {
namespace {

char LowerCase(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

const std::string* Request::FindHeader(std::string_view name) const {
  const auto found = std::find_if(headers.begin(), headers.end(), [name](const Header& header) {
    return std::equal(header.name.begin(), header.name.end(), name.begin(), name.end(),
                      [](char a, char b) { return LowerCase(a) == LowerCase(b); });
  });
  return found == headers.end() ? nullptr : &found->value;
}

}  // namespace megalith::serve::http
