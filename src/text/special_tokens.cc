#include "text/special_tokens.h"

#include <algorithm>
#include <charconv>
#include <functional>

#include "text/json_value.h"

namespace megalith::text {
namespace {

struct AddedToken {
  TokenId id;
  std::string content;
};

Result<AddedToken> ReadAddedToken(const JsonMember& member, std::string_view name) {
  TokenId id = 0;
  const char* end = member.key.data() + member.key.size();
  const auto [stop, error] = std::from_chars(member.key.data(), end, id);
  if (error != std::errc() || stop != end || id < 0) {
    return Fail(ErrorCode::kBadFile,
                "{}: added_tokens_decoder: token ids as names expected, \"{}\" found", name,
                member.key);
  }
  const JsonValue* content = member.value.Find("content");
  if (content == nullptr || !content->is_string() || content->text().empty()) {
    return Fail(ErrorCode::kBadFile,
                "{}: added_tokens_decoder.{}: member content with the token's text expected", name,
                member.key);
  }
  return AddedToken{id, content->text()};
}

}  // namespace

Result<SpecialTokens> SpecialTokens::Parse(std::string_view tokenizer_config, std::string_view name,
                                           TokenId first_id) {
  auto config = ParseJson(tokenizer_config);
  if (!config) return Fail(ErrorCode::kBadFile, "{}: {}", name, config.error().message);
  const JsonValue* added = config->Find("added_tokens_decoder");
  if (added == nullptr || !added->is_object()) {
    return Fail(ErrorCode::kBadFile, "{}: object added_tokens_decoder expected, {} found", name,
                added == nullptr ? "none" : JsonKindName(added->kind()));
  }

  SpecialTokens special;
  special.first_id_ = first_id;
  special.names_.resize(kNumTokens);
  special.named_.resize(kNumTokens);
  for (const JsonMember& member : added->members()) {
    MEGALITH_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(member, name));
    if (token.id < first_id) {
      return Fail(ErrorCode::kBadFile,
                  "{}: added_tokens_decoder.{} (\"{}\"): id of at least {} expected, because the "
                  "ids below are ordinary tokens",
                  name, member.key, token.content, first_id);
    }
    if (!special.Contains(token.id)) {
      special.dropped_ids_.push_back(token.id);
      continue;
    }
    const auto index = static_cast<std::size_t>(token.id - first_id);
    if (special.named_[index]) {
      return Fail(ErrorCode::kBadFile, "{}: added_tokens_decoder: id {} stands twice", name,
                  token.id);
    }
    special.named_[index] = true;
    special.names_[index] = std::move(token.content);
  }
  std::sort(special.dropped_ids_.begin(), special.dropped_ids_.end());

  for (std::size_t i = 0; i < special.names_.size(); ++i) {
    const TokenId id = first_id + static_cast<TokenId>(i);
    if (!special.named_[i]) special.names_[i] = fmt::format("<|reserved_token_{}|>", id);
    const auto [entry, is_new] = special.ids_.emplace(special.names_[i], id);
    if (!is_new) {
      return Fail(ErrorCode::kBadFile,
                  "{}: added_tokens_decoder: \"{}\" is the name of id {} and {}", name,
                  special.names_[i], entry->second, id);
    }
  }
  special.BuildIndex();
  return special;
}

void SpecialTokens::BuildIndex() {
  for (const std::string& name : names_) {
    if (first_bytes_.find(name.front()) == std::string::npos) first_bytes_.push_back(name.front());
    lengths_.push_back(name.size());
  }
  std::sort(lengths_.begin(), lengths_.end(), std::greater<>());
  lengths_.erase(std::unique(lengths_.begin(), lengths_.end()), lengths_.end());
}

std::optional<TokenId> SpecialTokens::Find(std::string_view name) const {
  const auto entry = ids_.find(std::string(name));
  if (entry == ids_.end()) return std::nullopt;
  return entry->second;
}

SpecialTokens::Match SpecialTokens::FindFirst(std::string_view text, std::size_t offset) const {
  for (;;) {
    offset = text.find_first_of(first_bytes_, offset);
    if (offset == std::string_view::npos) return {text.size(), 0};
    for (const std::size_t length : lengths_) {
      if (length > text.size() - offset) continue;
      const auto id = Find(text.substr(offset, length));
      if (id) return {offset, *id};
    }
    ++offset;
  }
}

}  // namespace megalith::text
