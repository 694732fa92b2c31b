#include "text/generation_ids.h"

#include <algorithm>
#include <array>

#include "text/json_value.h"
#include "text/read_file.h"

namespace megalith::text {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;
constexpr std::array<std::string_view, 2> kStopNames = {"[EOS]", "<|end_of_msg|>"};
constexpr std::array<std::string_view, 3> kMarkerNames = {"<|open|>", "<|close|>", "<|sep|>"};

Status AddId(const JsonValue& value, std::string_view where, const Tokenizer& tokenizer,
             std::vector<TokenId>& ids) {
  const auto id = value.AsInteger();
  if (!id || *id < 0 || *id >= tokenizer.vocab_size()) {
    return Fail(ErrorCode::kBadConfig, "{}: token ids from 0 to {} expected, {} found", where,
                tokenizer.vocab_size() - 1,
                value.is_number() ? value.text() : std::string(JsonKindName(value.kind())));
  }
  ids.push_back(static_cast<TokenId>(*id));
  return {};
}

// `eos_token_id` of one object; absent and null add nothing.
Status AddEosIds(const JsonValue* object, std::string_view where, const Tokenizer& tokenizer,
                 std::vector<TokenId>& ids) {
  const JsonValue* eos = object == nullptr ? nullptr : object->Find("eos_token_id");
  if (eos == nullptr || eos->is_null()) return {};
  if (!eos->is_array()) return AddId(*eos, where, tokenizer, ids);
  for (const JsonValue& item : eos->items()) {
    MEGALITH_RETURN_IF_ERROR(AddId(item, where, tokenizer, ids));
  }
  return {};
}

Result<JsonValue> ParseConfig(std::string_view text, std::string_view name) {
  if (text.empty()) return JsonValue();
  auto config = ParseJson(text);
  if (!config) return Fail(ErrorCode::kBadFile, "{}: {}", name, config.error().message);
  return config;
}

// Empty if the file is absent.
Result<std::string> ReadIfPresent(const std::filesystem::path& path) {
  auto contents = ReadSmallFile(path, kMaxConfigBytes);
  if (!contents && contents.error().code == ErrorCode::kNotFound) return std::string();
  return contents;
}

}  // namespace

Result<std::vector<TokenId>> FindStopIds(const std::filesystem::path& model_dir,
                                         const Tokenizer& tokenizer) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string generation_config,
                            ReadIfPresent(model_dir / "generation_config.json"));
  MEGALITH_ASSIGN_OR_RETURN(const std::string config, ReadIfPresent(model_dir / "config.json"));
  return FindStopIds(generation_config, config, tokenizer);
}

Result<std::vector<TokenId>> FindStopIds(std::string_view generation_config,
                                         std::string_view config, const Tokenizer& tokenizer) {
  MEGALITH_ASSIGN_OR_RETURN(const JsonValue generation,
                            ParseConfig(generation_config, "generation_config.json"));
  MEGALITH_ASSIGN_OR_RETURN(const JsonValue model, ParseConfig(config, "config.json"));
  std::vector<TokenId> ids;
  MEGALITH_RETURN_IF_ERROR(
      AddEosIds(&generation, "generation_config.json: eos_token_id", tokenizer, ids));
  MEGALITH_RETURN_IF_ERROR(AddEosIds(&model, "config.json: eos_token_id", tokenizer, ids));
  MEGALITH_RETURN_IF_ERROR(AddEosIds(model.Find("text_config"),
                                     "config.json: text_config.eos_token_id", tokenizer, ids));
  for (const std::string_view name : kStopNames) {
    if (const auto id = tokenizer.special_tokens().Find(name)) ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::vector<TokenId> FindNeverGeneratedIds(const Tokenizer& tokenizer) {
  const SpecialTokens& special = tokenizer.special_tokens();
  const auto is_generated = [](std::string_view name) {
    return std::find(kStopNames.begin(), kStopNames.end(), name) != kStopNames.end() ||
           std::find(kMarkerNames.begin(), kMarkerNames.end(), name) != kMarkerNames.end();
  };
  std::vector<TokenId> ids;
  for (TokenId id = special.first_id(); id < tokenizer.vocab_size(); ++id) {
    if (!is_generated(special.Name(id))) ids.push_back(id);
  }
  return ids;
}

}  // namespace megalith::text
