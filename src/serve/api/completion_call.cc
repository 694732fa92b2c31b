#include "serve/api/completion_call.h"

#include <limits>

namespace megalith::serve {
namespace {

// What OpenAI's endpoint generates unless told otherwise.
constexpr std::int64_t kDefaultMaxTokens = 16;
constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxLogprobs = 20;
// Generations that one request may ask for: prompts times n.
constexpr std::int64_t kMaxGenerations = 256;

Result<std::vector<text::TokenId>> ReadPrompt(const text::JsonValue& value, const std::string& path,
                                              const text::Tokenizer& tokenizer) {
  std::vector<text::TokenId> ids;
  if (value.is_string()) {
    const auto encoded = tokenizer.Encode(value.text());
    if (!encoded) return Fail(encoded.error().code, "{}: {}", path, encoded.error().message);
    ids = *encoded;
  } else {
    MEGALITH_ASSIGN_OR_RETURN(ids, ReadTokenIds(value, path, tokenizer));
  }
  if (ids.empty())
    return Fail(ErrorCode::kUsage, "{}: at least one token expected, none found", path);
  return ids;
}

// Text, ids, or a list of either.
Status ReadPrompts(const text::JsonValue& value, const text::Tokenizer& tokenizer,
                   CompletionCall& call) {
  const bool is_ids = value.is_array() && !value.items().empty() && value.items()[0].is_number();
  if (value.is_string() || is_ids) {
    MEGALITH_ASSIGN_OR_RETURN(std::vector<text::TokenId> ids,
                              ReadPrompt(value, "prompt", tokenizer));
    call.prompts.push_back(std::move(ids));
    return {};
  }
  if (!value.is_array() || value.items().empty()) {
    return Fail(ErrorCode::kUsage,
                "prompt: text, token ids or a list of at least one of them expected, {} found",
                value.is_array() ? "an empty list" : Describe(value));
  }
  if (value.items().size() > kMaxGenerations) {
    return Fail(ErrorCode::kUsage, "prompt: at most {} prompts expected, {} found", kMaxGenerations,
                value.items().size());
  }
  for (std::size_t i = 0; i < value.items().size(); ++i) {
    MEGALITH_ASSIGN_OR_RETURN(
        std::vector<text::TokenId> ids,
        ReadPrompt(value.items()[i], fmt::format("prompt[{}]", i), tokenizer));
    call.prompts.push_back(std::move(ids));
  }
  return {};
}

Status CheckCounts(const CompletionCall& call, std::int64_t best_of) {
  const std::int64_t n = call.generation.n;
  if (best_of > n) {
    return Fail(ErrorCode::kUnsupported,
                "best_of: at most n = {} expected, {} found; choosing among answers is not "
                "supported",
                n, best_of);
  }
  if (n * static_cast<std::int64_t>(call.prompts.size()) > kMaxGenerations) {
    return Fail(ErrorCode::kUsage,
                "n: at most {} answers in all expected, {} prompts times {} found", kMaxGenerations,
                call.prompts.size(), n);
  }
  return {};
}

}  // namespace

Result<std::vector<text::TokenId>> ReadTokenIds(const text::JsonValue& value,
                                                const std::string& path,
                                                const text::Tokenizer& tokenizer) {
  MEGALITH_RETURN_IF_ERROR(CheckArray(value, path));
  std::vector<text::TokenId> ids;
  ids.reserve(value.items().size());
  for (std::size_t i = 0; i < value.items().size(); ++i) {
    MEGALITH_ASSIGN_OR_RETURN(const std::int64_t id,
                              ReadInteger(value.items()[i], fmt::format("{}[{}]", path, i),
                                          {0, tokenizer.vocab_size() - 1}));
    ids.push_back(static_cast<text::TokenId>(id));
  }
  return ids;
}

Result<CompletionCall> ReadCompletion(const text::JsonValue& body, const text::Tokenizer& tokenizer,
                                      const GenerationDefaults& defaults) {
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(body, ""));
  CompletionCall call;
  MEGALITH_RETURN_IF_ERROR(reader.String("model", call.model));
  MEGALITH_ASSIGN_OR_RETURN(const text::JsonValue* prompt,
                            reader.Require("prompt", "text or token ids"));
  MEGALITH_RETURN_IF_ERROR(ReadPrompts(*prompt, tokenizer, call));
  MEGALITH_RETURN_IF_ERROR(ReadGenerationFields(reader, tokenizer, defaults, call.generation));
  call.generation.max_tokens = kDefaultMaxTokens;
  MEGALITH_RETURN_IF_ERROR(
      reader.Integer("max_tokens", {0, kMaxTokens}, call.generation.max_tokens));
  std::optional<std::int64_t> logprobs;
  MEGALITH_RETURN_IF_ERROR(reader.Integer("logprobs", {0, kMaxLogprobs}, logprobs));
  if (logprobs) call.num_logprobs = static_cast<std::int32_t>(*logprobs);
  MEGALITH_RETURN_IF_ERROR(reader.Boolean("echo", call.echo));
  std::int64_t best_of = 1;
  MEGALITH_RETURN_IF_ERROR(reader.Integer("best_of", {1, kMaxGenerations}, best_of));
  MEGALITH_RETURN_IF_ERROR(CheckCounts(call, best_of));
  call.unread = reader.Unread();
  return call;
}

}  // namespace megalith::serve
