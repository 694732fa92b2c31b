#pragma once

#include <string>
#include <string_view>

namespace megalith::text {

/// Appends the bytes of a base64 text (RFC 4648 alphabet, with padding, nothing else inside) to
/// `out`. False, with `out` unchanged, if it is not exactly the canonical encoding of some bytes.
bool DecodeBase64(std::string_view base64, std::string& out);

/// RFC 4648 with padding.
std::string EncodeBase64(std::string_view bytes);

}  // namespace megalith::text
