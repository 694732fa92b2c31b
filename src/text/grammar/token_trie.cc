#include "text/grammar/token_trie.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>

#include "text/utf8.h"

namespace megalith::text::grammar {
namespace {

constexpr TextClass kClasses[] = {TextClass::kJsonString, TextClass::kCharacters,
                                  TextClass::kBytes};

constexpr std::uint8_t BitOf(TextClass text_class) {
  return static_cast<std::uint8_t>(1u << static_cast<unsigned>(text_class));
}

// For every offset of `bytes`, the end included: the classes of which whole characters follow up to
// the end.
std::vector<std::uint8_t> PlainFrom(std::string_view bytes) {
  const std::uint8_t all =
      BitOf(TextClass::kJsonString) | BitOf(TextClass::kCharacters) | BitOf(TextClass::kBytes);
  std::vector<std::uint8_t> plain(bytes.size() + 1, all);
  for (std::size_t i = bytes.size(); i-- > 0;) {
    plain[i] = BitOf(TextClass::kBytes);
    const Utf8Step step = DecodeUtf8(bytes, i);
    if (!step.valid) continue;
    plain[i] = plain[i + step.length_bytes];
    if (!IsPlainByte(TextClass::kJsonString, static_cast<std::uint8_t>(bytes[i]))) {
      plain[i] &= static_cast<std::uint8_t>(~BitOf(TextClass::kJsonString));
    }
  }
  return plain;
}

std::uint32_t CountCharacters(std::string_view text) {
  return static_cast<std::uint32_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<std::uint8_t>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

Result<std::shared_ptr<const TokenTrie>> TokenTrie::Create(const Tokenizer& tokenizer) {
  MEGALITH_ASSIGN_OR_RETURN(const ControlTokens control, tokenizer.FindControlTokens());
  std::shared_ptr<TokenTrie> trie(new TokenTrie(tokenizer));
  const auto set_special = [&trie](Symbol symbol, std::vector<TokenId> ids) {
    trie->specials_[symbol - kNumBytes] = std::move(ids);
  };
  set_special(kOpenMarker, {control.open});
  set_special(kCloseMarker, {control.close});
  set_special(kSepMarker, {control.sep});
  set_special(kEndOfReply, {control.end_of_msg, control.eos});

  const Vocabulary& vocabulary = tokenizer.vocabulary();
  trie->num_mask_words_ = (static_cast<std::size_t>(tokenizer.vocab_size()) + 63) / 64;
  std::vector<TokenId> sorted(static_cast<std::size_t>(vocabulary.num_tokens()));
  std::iota(sorted.begin(), sorted.end(), 0);
  // char_traits<char> compares bytes as unsigned; any order would do.
  std::sort(sorted.begin(), sorted.end(), [&vocabulary](TokenId a, TokenId b) {
    return vocabulary.Bytes(a) < vocabulary.Bytes(b);
  });
  trie->tree_ = trie->BuildTree(sorted);

  std::array<std::vector<TokenId>, 4> others;
  for (const TextClass text_class : kClasses) {
    trie->classes_[static_cast<std::size_t>(text_class)].plain.resize(trie->num_mask_words_);
  }
  for (const TokenId id : sorted) {
    const std::string_view bytes = vocabulary.Bytes(id);
    const std::uint8_t plain = PlainFrom(bytes)[0];
    for (const TextClass text_class : kClasses) {
      const auto idx = static_cast<std::size_t>(text_class);
      if ((plain & BitOf(text_class)) == 0) {
        others[idx].push_back(id);
        continue;
      }
      SetToken(trie->classes_[idx].plain, id);
      if (text_class == TextClass::kBytes) continue;
      trie->classes_[idx].by_size.push_back({CountCharacters(bytes), id});
    }
  }
  for (const TextClass text_class : kClasses) {
    const auto idx = static_cast<std::size_t>(text_class);
    ClassTokens& tokens = trie->classes_[idx];
    tokens.others = trie->BuildTree(others[idx]);
    std::stable_sort(tokens.by_size.begin(), tokens.by_size.end(),
                     [](const SizedToken& a, const SizedToken& b) {
                       return a.num_characters < b.num_characters;
                     });
  }
  return std::shared_ptr<const TokenTrie>(std::move(trie));
}

TokenTrie::Tree TokenTrie::BuildTree(std::span<const TokenId> sorted) const {
  Tree tree;
  std::vector<std::uint32_t> open;  // nodes on the way to the last token
  std::string_view last;
  const auto close_to = [&](std::size_t depth) {
    for (; open.size() > depth; open.pop_back()) {
      tree.nodes[open.back()].end = static_cast<std::uint32_t>(tree.nodes.size());
    }
  };
  for (const TokenId id : sorted) {
    const std::string_view bytes = tokenizer_.TokenBytes(id);
    const std::size_t common = static_cast<std::size_t>(
        std::mismatch(last.begin(), last.end(), bytes.begin(), bytes.end()).first - last.begin());
    close_to(common);
    for (std::size_t i = common; i < bytes.size(); ++i) {
      open.push_back(static_cast<std::uint32_t>(tree.nodes.size()));
      tree.nodes.push_back({0, kNoToken, static_cast<std::uint16_t>(i + 1),
                            static_cast<std::uint8_t>(bytes[i]), 0xFF});
    }
    tree.nodes[open.back()].token = id;
    tree.max_depth = std::max(tree.max_depth, bytes.size());
    const std::vector<std::uint8_t> plain = PlainFrom(bytes);
    for (std::size_t i = 0; i < open.size(); ++i) tree.nodes[open[i]].plain_below &= plain[i + 1];
    last = bytes;
  }
  close_to(0);
  return tree;
}

Symbol TokenTrie::SymbolOf(TokenId id) const {
  for (Symbol symbol = kNumBytes; symbol < kOtherSpecial; ++symbol) {
    const auto tokens = TokensOf(symbol);
    if (std::find(tokens.begin(), tokens.end(), id) != tokens.end()) return symbol;
  }
  return kOtherSpecial;
}

}  // namespace megalith::text::grammar
