#include "text/hf_tokenizer.h"

#include <array>
#include <string>

#include "text/json_value.h"
#include "text/utf8.h"

namespace megalith::text {
namespace {

// Byte-level vocabularies write every byte as one printable character: the printable ones of
// Latin-1 as themselves, the other 68 as U+0100.. in order of the byte.
constexpr char32_t kNumByteCharacters = 0x144;

std::array<int, kNumByteCharacters> MakeByteOfCharacter() {
  std::array<int, kNumByteCharacters> byte_of{};
  byte_of.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    byte_of[printable ? static_cast<char32_t>(byte) : next++] = byte;
  }
  return byte_of;
}

// False if the text has a character that stands for no byte.
bool ToBytes(std::string_view text, std::string& bytes) {
  static const auto byte_of = MakeByteOfCharacter();
  bytes.clear();
  for (std::size_t offset = 0; offset < text.size();) {
    const Utf8Step step = DecodeUtf8(text, offset);
    if (step.code_point >= kNumByteCharacters || byte_of[step.code_point] < 0) return false;
    bytes.push_back(static_cast<char>(byte_of[step.code_point]));
    offset += step.length_bytes;
  }
  return true;
}

Status CheckAddedToken(const Tokenizer& tokenizer, const JsonValue& token, std::string_view name) {
  const JsonValue* id_value = token.Find("id");
  const JsonValue* content = token.Find("content");
  const auto id = id_value == nullptr ? std::nullopt : id_value->AsInteger();
  if (!id || content == nullptr || !content->is_string()) {
    return Fail(ErrorCode::kBadFile, "{}: added_tokens: objects with id and content expected",
                name);
  }
  if (*id >= tokenizer.vocab_size()) return {};  // dropped everywhere, see SpecialTokens
  if (*id < 0) return Fail(ErrorCode::kBadFile, "{}: added_tokens: id {} found", name, *id);
  const std::string_view ours = tokenizer.TokenBytes(static_cast<TokenId>(*id));
  if (ours != content->text()) {
    return Fail(
        ErrorCode::kBadFile,
        "{} and the files beside it disagree: id {} is \"{}\" there and \"{}\" by "
        "tiktoken.model and tokenizer_config.json; remove the file that is not this model's",
        name, *id, content->text(), RepairUtf8(ours));
  }
  return {};
}

}  // namespace

Status CheckHfTokenizer(const Tokenizer& tokenizer, std::string_view tokenizer_json,
                        std::string_view name) {
  auto root = ParseJson(tokenizer_json);
  if (!root) return Fail(ErrorCode::kBadFile, "{}: {}", name, root.error().message);
  const JsonValue* model = root->Find("model");
  const JsonValue* vocab = model == nullptr ? nullptr : model->Find("vocab");
  if (vocab == nullptr || !vocab->is_object()) {
    return Fail(ErrorCode::kBadFile,
                "{}: object model.vocab expected, so it cannot be compared with tiktoken.model",
                name);
  }

  const Vocabulary& vocabulary = tokenizer.vocabulary();
  std::string bytes;
  TokenId num_ordinary = 0;
  for (const auto& [text, value] : vocab->members()) {
    const auto id = value.AsInteger();
    if (!id)
      return Fail(ErrorCode::kBadFile, "{}: model.vocab: id expected for \"{}\"", name, text);
    // Some converters list special tokens here too, by their names.
    const auto special = tokenizer.special_tokens().Find(text);
    if (special && *special == *id) continue;
    if (*id >= tokenizer.vocab_size()) continue;
    const auto ours = ToBytes(text, bytes) ? vocabulary.Find(bytes) : std::nullopt;
    if (ours != *id) {
      return Fail(ErrorCode::kBadFile,
                  "{} and tiktoken.model disagree: \"{}\" has id {} there and {} here; remove the "
                  "file that is not this model's",
                  name, text, *id, ours ? std::to_string(*ours) : "none");
    }
    ++num_ordinary;
  }
  if (num_ordinary != vocabulary.num_tokens()) {
    return Fail(ErrorCode::kBadFile,
                "{} and tiktoken.model disagree: {} ordinary tokens there and {} here", name,
                num_ordinary, vocabulary.num_tokens());
  }
  const JsonValue* added = root->Find("added_tokens");
  if (added != nullptr) {
    for (const JsonValue& token : added->items()) {
      MEGALITH_RETURN_IF_ERROR(CheckAddedToken(tokenizer, token, name));
    }
  }
  return {};
}

}  // namespace megalith::text
