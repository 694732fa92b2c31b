#pragma once

#include <string_view>

namespace megalith::serve::web {

/// The web page (index.html): one UTF-8 document that needs nothing else but the server's own API,
/// at relative addresses. Its Content-Security-Policy is in it.
std::string_view IndexPage();

}  // namespace megalith::serve::web
