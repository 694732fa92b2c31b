#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "text/base64.h"

namespace megalith::text {
namespace {

std::uint64_t Mix(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;
  x ^= x >> 32;
  return x;
}

// Eight bytes at a time; tokens are short, so this is a few multiplications. Strings that collide
// cost time, not correctness, and vocabulary files come from the model's publisher.
std::uint64_t HashBytes(std::string_view bytes) {
  std::uint64_t hash = bytes.size() * 0x9E3779B97F4A7C15u;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = Mix(hash ^ word);
  }
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + i, bytes.size() - i);
  return Mix(hash ^ word);
}

// A line without its end.
struct RankLine {
  std::uint32_t rank;
  std::uint32_t line;    // 1-based
  std::uint32_t offset;  // of the bytes in the decoded text
  std::uint32_t num_bytes;
};

Result<RankLine> ParseLine(std::string_view line, std::uint32_t number, std::string_view name,
                           std::string& decoded) {
  if (!line.empty() && line.back() == '\r') {
    return Fail(ErrorCode::kBadFile,
                "{} line {}: the line ends with a carriage return; lines that end with a line feed "
                "alone expected (was the file converted to Windows line ends?)",
                name, number);
  }
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    return Fail(ErrorCode::kBadFile, "{} line {}: \"base64 rank\" expected, no space found", name,
                number);
  }
  const std::string_view base64 = line.substr(0, space);
  const std::string_view digits = line.substr(space + 1);
  const auto offset = static_cast<std::uint32_t>(decoded.size());
  if (base64.empty() || !DecodeBase64(base64, decoded)) {
    return Fail(ErrorCode::kBadFile, "{} line {}: base64 of the token's bytes expected, {} found",
                name, number, base64.empty() ? "nothing" : "other text");
  }
  const auto num_bytes = static_cast<std::uint32_t>(decoded.size() - offset);
  std::uint32_t rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (error != std::errc() || end != digits.data() + digits.size() ||
      (digits.size() > 1 && digits.front() == '0')) {
    return Fail(ErrorCode::kBadFile, "{} line {}: rank as a plain number expected behind the space",
                name, number);
  }
  return RankLine{rank, number, offset, num_bytes};
}

}  // namespace

Result<Vocabulary> Vocabulary::Parse(std::string_view file, std::string_view name) {
  if (file.size() > kMaxFileBytes) {
    return Fail(ErrorCode::kBadFile, "{}: at most {} bytes expected, {} found", name, kMaxFileBytes,
                file.size());
  }
  constexpr std::size_t kMaxLineBytes = (kMaxTokenBytes + 2) / 3 * 4 + 1 + 10;

  std::string decoded;
  decoded.reserve(file.size() / 2);
  std::vector<RankLine> lines;
  std::uint32_t number = 0;
  for (std::size_t begin = 0; begin < file.size();) {
    ++number;
    const std::size_t newline = std::min(file.find('\n', begin), file.size());
    const std::string_view text = file.substr(begin, newline - begin);
    if (text.size() > kMaxLineBytes) {
      return Fail(ErrorCode::kBadFile, "{} line {}: at most {} bytes expected, {} found", name,
                  number, kMaxLineBytes, text.size());
    }
    MEGALITH_ASSIGN_OR_RETURN(RankLine line, ParseLine(text, number, name, decoded));
    if (line.num_bytes > kMaxTokenBytes) {
      return Fail(ErrorCode::kBadFile, "{} line {}: token of at most {} bytes expected, {} found",
                  name, number, kMaxTokenBytes, line.num_bytes);
    }
    if (lines.size() == kMaxTokens) {
      return Fail(ErrorCode::kBadFile, "{} line {}: at most {} tokens expected", name, number,
                  kMaxTokens);
    }
    lines.push_back(line);
    begin = newline + 1;
  }

  // Order by rank. With n lines, every rank below n and none twice, there is no gap.
  constexpr std::uint32_t kUnset = 0xFFFFFFFF;
  std::vector<std::uint32_t> line_of_rank(lines.size(), kUnset);
  for (std::uint32_t i = 0; i < lines.size(); ++i) {
    const RankLine& line = lines[i];
    if (line.rank >= lines.size()) {
      return Fail(ErrorCode::kBadFile,
                  "{} line {}: rank below {} expected because the file has {} lines, {} found "
                  "(ranks must have no gap)",
                  name, line.line, lines.size(), lines.size(), line.rank);
    }
    if (line_of_rank[line.rank] != kUnset) {
      return Fail(ErrorCode::kBadFile, "{} line {}: rank {} stands already in line {}", name,
                  line.line, line.rank, lines[line_of_rank[line.rank]].line);
    }
    line_of_rank[line.rank] = i;
  }

  Vocabulary vocabulary;
  vocabulary.bytes_.reserve(decoded.size());
  vocabulary.offsets_.reserve(lines.size() + 1);
  vocabulary.offsets_.push_back(0);
  for (std::uint32_t& index : line_of_rank) {
    const RankLine& line = lines[index];
    vocabulary.bytes_.append(decoded, line.offset, line.num_bytes);
    vocabulary.offsets_.push_back(static_cast<std::uint32_t>(vocabulary.bytes_.size()));
    vocabulary.max_token_bytes_ =
        std::max<std::size_t>(vocabulary.max_token_bytes_, line.num_bytes);
    index = line.line;
  }
  MEGALITH_RETURN_IF_ERROR(vocabulary.BuildIndex(name, line_of_rank));
  return vocabulary;
}

// `lines`: line number of each token, for messages.
Status Vocabulary::BuildIndex(std::string_view name, const std::vector<std::uint32_t>& lines) {
  slots_.assign(std::bit_ceil(static_cast<std::size_t>(num_tokens()) * 2 + 1), kNone);
  pairs_.assign(256 * 256, kNone);
  single_.fill(kNone);
  const std::size_t mask = slots_.size() - 1;
  for (TokenId id = 0; id < num_tokens(); ++id) {
    const std::string_view token = Bytes(id);
    std::size_t slot = HashBytes(token) & mask;
    for (; slots_[slot] != kNone; slot = (slot + 1) & mask) {
      if (Bytes(slots_[slot]) == token) {
        return Fail(ErrorCode::kBadFile, "{} line {}: the same bytes stand already in line {}",
                    name, lines[static_cast<std::size_t>(id)],
                    lines[static_cast<std::size_t>(slots_[slot])]);
      }
    }
    slots_[slot] = id;
    const auto byte = [&token](std::size_t i) { return static_cast<std::uint8_t>(token[i]); };
    if (token.size() == 1) single_[byte(0)] = id;
    if (token.size() == 2) pairs_[std::size_t{byte(0)} * 256 + byte(1)] = id;
  }
  for (std::size_t i = 0; i < single_.size(); ++i) {
    if (single_[i] == kNone) {
      return Fail(ErrorCode::kBadFile,
                  "{}: a token for every single byte expected, none found for byte 0x{:02X}", name,
                  i);
    }
  }
  return {};
}

TokenId Vocabulary::FindOrNone(std::string_view bytes) const {
  if (bytes.size() <= 2) {
    if (bytes.empty()) return kNone;
    const std::size_t first = static_cast<std::uint8_t>(bytes[0]);
    if (bytes.size() == 1) return single_[first];
    return pairs_[first * 256 + static_cast<std::uint8_t>(bytes[1])];
  }
  if (bytes.size() > max_token_bytes_) return kNone;
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = HashBytes(bytes) & mask;; slot = (slot + 1) & mask) {
    const TokenId id = slots_[slot];
    if (id == kNone || Bytes(id) == bytes) return id;
  }
}

}  // namespace megalith::text
