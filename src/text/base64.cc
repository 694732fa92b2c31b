#include "text/base64.h"

#include <array>
#include <cstdint>

namespace megalith::text {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t kInvalid = 0xFF;

constexpr std::array<std::uint8_t, 256> MakeDigits() {
  std::array<std::uint8_t, 256> digits{};
  digits.fill(kInvalid);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i) {
    digits[static_cast<std::uint8_t>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  }
  return digits;
}
constexpr std::array<std::uint8_t, 256> kDigits = MakeDigits();

}  // namespace

bool DecodeBase64(std::string_view base64, std::string& out) {
  if (base64.size() % 4 != 0) return false;
  std::size_t num_padding = 0;
  if (base64.ends_with("==")) {
    num_padding = 2;
  } else if (base64.ends_with('=')) {
    num_padding = 1;
  }
  const std::size_t num_digits = base64.size() - num_padding;
  const std::size_t old_size = out.size();
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < base64.size(); ++i) {
    std::uint8_t digit = 0;
    if (i < num_digits) digit = kDigits[static_cast<std::uint8_t>(base64[i])];
    if (digit == kInvalid) {
      out.resize(old_size);
      return false;
    }
    bits = (bits << 6) | digit;
    if (i % 4 == 3) {
      out.push_back(static_cast<char>((bits >> 16) & 0xFF));
      out.push_back(static_cast<char>((bits >> 8) & 0xFF));
      out.push_back(static_cast<char>(bits & 0xFF));
    }
  }
  // The bytes that padding stands for must be zero: else two texts would mean the same bytes.
  for (std::size_t i = 0; i < num_padding; ++i) {
    if (out.back() != 0) {
      out.resize(old_size);
      return false;
    }
    out.pop_back();
  }
  return true;
}

std::string EncodeBase64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = bytes.size() - i < 3 ? bytes.size() - i : 3;
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      bits = (bits << 8) | (j < count ? static_cast<std::uint8_t>(bytes[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      out.push_back(j <= count ? kAlphabet[(bits >> (18 - 6 * j)) & 63] : '=');
    }
  }
  return out;
}

}  // namespace megalith::text
