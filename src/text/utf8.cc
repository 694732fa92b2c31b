#include "text/utf8.h"

namespace megalith::text {
namespace {

struct LeadByte {
  std::uint8_t num_continuation_bytes;
  // Allowed values of the second byte; this is where overlong forms, surrogates and values beyond
  // U+10FFFF are refused (Unicode Standard, table 3-7).
  std::uint8_t second_min;
  std::uint8_t second_max;
};

// num_continuation_bytes 0: not a lead byte of a longer sequence.
LeadByte ClassifyLeadByte(std::uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step DecodeUtf8(std::string_view text, std::size_t offset) {
  const auto first = static_cast<std::uint8_t>(text[offset]);
  if (first < 0x80) return {first, 1, true, false};
  const LeadByte lead = ClassifyLeadByte(first);
  if (lead.num_continuation_bytes == 0) return {kReplacementCharacter, 1, false, false};

  char32_t code_point = first & (0x3Fu >> lead.num_continuation_bytes);
  std::uint8_t length_bytes = 1;
  for (; length_bytes <= lead.num_continuation_bytes; ++length_bytes) {
    if (offset + length_bytes >= text.size()) {
      return {kReplacementCharacter, length_bytes, false, true};
    }
    const auto byte = static_cast<std::uint8_t>(text[offset + length_bytes]);
    const std::uint8_t min = length_bytes == 1 ? lead.second_min : 0x80;
    const std::uint8_t max = length_bytes == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {kReplacementCharacter, length_bytes, false, false};
    code_point = (code_point << 6) | (byte & 0x3Fu);
  }
  return {code_point, length_bytes, true, false};
}

void AppendUtf8(char32_t code_point, std::string& out) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::optional<std::size_t> FindInvalidUtf8(std::string_view text) {
  std::size_t offset = 0;
  while (offset < text.size()) {
    const Utf8Step step = DecodeUtf8(text, offset);
    if (!step.valid) return offset;
    offset += step.length_bytes;
  }
  return std::nullopt;
}

void Utf8Repair::Push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (num_held_bytes_ > 0) {
    joined.assign(held_.data(), num_held_bytes_);
    joined.append(bytes);
    bytes = joined;
    num_held_bytes_ = 0;
  }
  std::size_t offset = 0;
  while (offset < bytes.size()) {
    const Utf8Step step = DecodeUtf8(bytes, offset);
    if (step.valid) {
      out.append(bytes, offset, step.length_bytes);
    } else if (step.incomplete) {
      num_held_bytes_ = bytes.copy(held_.data(), held_.size(), offset);
      return;
    } else {
      AppendUtf8(kReplacementCharacter, out);
    }
    offset += step.length_bytes;
  }
}

void Utf8Repair::Flush(std::string& out) {
  if (num_held_bytes_ > 0) AppendUtf8(kReplacementCharacter, out);
  num_held_bytes_ = 0;
}

std::string RepairUtf8(std::string_view bytes) {
  std::string out;
  Utf8Repair repair;
  repair.Push(bytes, out);
  repair.Flush(out);
  return out;
}

}  // namespace megalith::text
