#include "text/generation_ids.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "base/file.h"
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
  if (eos->items().empty()) {
    return Fail(ErrorCode::kBadConfig,
                "{}: a token id or a list of them expected, an empty list "
                "found",
                where);
  }
  for (const JsonValue& item : eos->items()) {
    MEGALITH_RETURN_IF_ERROR(AddId(item, where, tokenizer, ids));
  }
  return {};
}

// A file and the name it has in messages.
struct NamedText {
  std::string name;
  std::optional<std::string> text;  // empty: the file is absent
};

Result<JsonValue> ParseConfig(const NamedText& file) {
  if (!file.text) return JsonValue();
  auto config = ParseJson(*file.text);
  if (!config) return Fail(ErrorCode::kBadFile, "{}: {}", file.name, config.error().message);
  if (!config->is_object()) {
    return Fail(ErrorCode::kBadConfig, "{}: a JSON object expected, {} found", file.name,
                JsonKindName(config->kind()));
  }
  return config;
}

Result<NamedText> ReadIfPresent(const std::filesystem::path& path) {
  NamedText file{path.string(), std::nullopt};
  if (IsAbsent(file.name)) return file;
  MEGALITH_ASSIGN_OR_RETURN(file.text, ReadSmallFile(path, kMaxConfigBytes));
  return file;
}

Result<std::vector<TokenId>> JoinStopIds(const NamedText& generation_config,
                                         const NamedText& config, const Tokenizer& tokenizer) {
  MEGALITH_ASSIGN_OR_RETURN(const JsonValue generation, ParseConfig(generation_config));
  MEGALITH_ASSIGN_OR_RETURN(const JsonValue model, ParseConfig(config));
  const std::string generation_key = generation_config.name + ": eos_token_id";
  // In config.json the key may stand at either level, null at the other. Here null says nothing.
  const JsonValue* eos = generation.Find("eos_token_id");
  if (eos != nullptr && eos->is_null()) {
    return Fail(ErrorCode::kBadConfig, "{}: a token id or a list of them expected, null found",
                generation_key);
  }
  std::vector<TokenId> ids;
  MEGALITH_RETURN_IF_ERROR(AddEosIds(&generation, generation_key, tokenizer, ids));
  MEGALITH_RETURN_IF_ERROR(AddEosIds(&model, config.name + ": eos_token_id", tokenizer, ids));
  MEGALITH_RETURN_IF_ERROR(AddEosIds(model.Find("text_config"),
                                     config.name + ": text_config.eos_token_id", tokenizer, ids));
  for (const std::string_view name : kStopNames) {
    if (const auto id = tokenizer.special_tokens().Find(name)) ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

Result<std::vector<TokenId>> FindStopIds(const std::filesystem::path& model_dir,
                                         const Tokenizer& tokenizer) {
  MEGALITH_ASSIGN_OR_RETURN(const NamedText generation_config,
                            ReadIfPresent(model_dir / "generation_config.json"));
  MEGALITH_ASSIGN_OR_RETURN(const NamedText config, ReadIfPresent(model_dir / "config.json"));
  return JoinStopIds(generation_config, config, tokenizer);
}

Result<std::vector<TokenId>> FindStopIds(std::string_view generation_config,
                                         std::string_view config, const Tokenizer& tokenizer) {
  const auto named = [](const char* name, std::string_view text) {
    return NamedText{name, text.empty() ? std::nullopt : std::optional<std::string>(text)};
  };
  return JoinStopIds(named("generation_config.json", generation_config),
                     named("config.json", config), tokenizer);
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
