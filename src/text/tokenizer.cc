#include "text/tokenizer.h"

#include "text/pretokenize.h"
#include "text/utf8.h"

namespace megalith::text {

struct Tokenizer::Tables {
  Vocabulary vocabulary;
  SpecialTokens special;
  std::string source;
};

Result<Tokenizer> Tokenizer::FromFiles(std::string_view ranks, std::string_view tokenizer_config,
                                       std::optional<std::int64_t> vocab_size) {
  return Create(ranks, "tiktoken.model", tokenizer_config, "tokenizer_config.json", vocab_size);
}

Result<Tokenizer> Tokenizer::Create(std::string_view ranks, std::string_view ranks_name,
                                    std::string_view config, std::string_view config_name,
                                    std::optional<std::int64_t> vocab_size) {
  MEGALITH_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Parse(ranks, ranks_name));
  const TokenId num_ranks = vocabulary.num_tokens();
  if (vocab_size && *vocab_size != std::int64_t{num_ranks} + SpecialTokens::kNumTokens) {
    return Fail(ErrorCode::kBadConfig,
                "{}: vocab_size {} needs {} ranks and {} special tokens, {} ranks found",
                ranks_name, *vocab_size, *vocab_size - SpecialTokens::kNumTokens,
                SpecialTokens::kNumTokens, num_ranks);
  }
  MEGALITH_ASSIGN_OR_RETURN(SpecialTokens special,
                            SpecialTokens::Parse(config, config_name, num_ranks));
  return Tokenizer(std::make_shared<const Tables>(
      Tables{std::move(vocabulary), std::move(special),
             fmt::format("{} ({} ranks) and {}", ranks_name, num_ranks, config_name)}));
}

TokenId Tokenizer::vocab_size() const {
  return tables_->vocabulary.num_tokens() + SpecialTokens::kNumTokens;
}

const Vocabulary& Tokenizer::vocabulary() const { return tables_->vocabulary; }

const SpecialTokens& Tokenizer::special_tokens() const { return tables_->special; }

const std::string& Tokenizer::source() const { return tables_->source; }

Result<ControlTokens> Tokenizer::FindControlTokens() const {
  ControlTokens tokens{};
  const struct {
    std::string_view name;
    TokenId& id;
  } wanted[] = {{"<|open|>", tokens.open},
                {"<|close|>", tokens.close},
                {"<|sep|>", tokens.sep},
                {"<|end_of_msg|>", tokens.end_of_msg},
                {"[EOS]", tokens.eos}};
  for (const auto& [name, id] : wanted) {
    const auto found = special_tokens().Find(name);
    if (!found) {
      return Fail(ErrorCode::kUnsupported,
                  "tokenizer_config.json: the chat format needs a special token {}, none found",
                  name);
    }
    id = *found;
  }
  return tokens;
}

namespace {

Status CheckUtf8(std::string_view text) {
  const auto invalid = FindInvalidUtf8(text);
  if (!invalid) return {};
  return Fail(ErrorCode::kUsage, "text byte {}: valid UTF-8 expected, byte 0x{:02X} found",
              *invalid, static_cast<std::uint8_t>(text[*invalid]));
}

void EncodePieces(const Vocabulary& vocabulary, std::string_view text, std::vector<TokenId>& ids) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = FindPieceEnd(text, begin);
    vocabulary.EncodePiece(text.substr(begin, end - begin), ids);
    begin = end;
  }
}

}  // namespace

Status Tokenizer::EncodeTo(std::string_view text, std::vector<TokenId>& ids) const {
  MEGALITH_RETURN_IF_ERROR(CheckUtf8(text));
  LongTextCutter cutter(text);
  for (std::string_view part = cutter.Next(); !part.empty(); part = cutter.Next()) {
    EncodePieces(tables_->vocabulary, part, ids);
  }
  return {};
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text) const {
  std::vector<TokenId> ids;
  MEGALITH_RETURN_IF_ERROR(EncodeTo(text, ids));
  return ids;
}

Result<std::vector<TokenId>> Tokenizer::EncodeWithSpecials(std::string_view text) const {
  MEGALITH_RETURN_IF_ERROR(CheckUtf8(text));
  std::vector<TokenId> ids;
  // The reference cuts long text first and looks for special names in each part.
  LongTextCutter cutter(text);
  for (std::string_view part = cutter.Next(); !part.empty(); part = cutter.Next()) {
    for (std::size_t begin = 0; begin < part.size();) {
      const SpecialTokens::Match match = tables_->special.FindFirst(part, begin);
      // Look-ahead must not see the special name: encode the stretch before it alone.
      EncodePieces(tables_->vocabulary, part.substr(begin, match.offset - begin), ids);
      begin = match.offset;
      if (begin == part.size()) break;
      ids.push_back(match.id);
      begin += tables_->special.Name(match.id).size();
    }
  }
  return ids;
}

Result<std::vector<TokenId>> Tokenizer::EncodeBytes(std::string_view bytes) const {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
  if (bytes.size() > kMaxBytes) {
    return Fail(ErrorCode::kUsage, "raw bytes to encode: at most {} expected, {} found", kMaxBytes,
                bytes.size());
  }
  std::vector<TokenId> ids;
  tables_->vocabulary.EncodePiece(bytes, ids);
  return ids;
}

Result<std::string> Tokenizer::DecodeBytes(std::span<const TokenId> ids) const {
  std::string bytes;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return Fail(ErrorCode::kOutOfRange, "token id {}: 0 to {} expected, {} found", i,
                  vocab_size() - 1, ids[i]);
    }
    bytes.append(TokenBytes(ids[i]));
  }
  return bytes;
}

std::string_view Tokenizer::TokenBytes(TokenId id) const {
  return IsSpecial(id) ? std::string_view(tables_->special.Name(id))
                       : tables_->vocabulary.Bytes(id);
}

Result<std::vector<TokenId>> Tokenizer::CheckIds(std::span<const std::int64_t> ids) const {
  std::vector<TokenId> checked;
  checked.reserve(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return Fail(ErrorCode::kOutOfRange, "token id {}: 0 to {} expected, {} found", i,
                  vocab_size() - 1, ids[i]);
    }
    checked.push_back(static_cast<TokenId>(ids[i]));
  }
  return checked;
}

}  // namespace megalith::text
