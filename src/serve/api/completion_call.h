#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "serve/api/generation_fields.h"

namespace megalith::serve {

/// The body of POST /v1/completions.
struct CompletionCall {
  std::string model;
  std::vector<std::vector<text::TokenId>> prompts;  ///< at least one, none of them empty
  GenerationFields generation;                      ///< max_tokens may be 0
  std::optional<std::int32_t> num_logprobs;
  bool echo = false;
  std::vector<std::string> unread;
};

Result<CompletionCall> ReadCompletion(const text::JsonValue& body, const text::Tokenizer& tokenizer,
                                      const GenerationDefaults& defaults);

/// A list of ids of the vocabulary.
Result<std::vector<text::TokenId>> ReadTokenIds(const text::JsonValue& value,
                                                const std::string& path,
                                                const text::Tokenizer& tokenizer);

}  // namespace megalith::serve
