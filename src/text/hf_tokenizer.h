#pragma once

#include <string_view>

#include "base/result.h"
#include "text/tokenizer.h"

namespace megalith::text {

/// Compares a Hugging Face tokenizer.json (byte-level BPE) with a tokenizer: every entry of
/// model.vocab must be the token with that id, every ordinary token must be in it, and
/// added_tokens inside the vocabulary must have the same names. Two files that disagree mean that
/// one of them does not belong to the model. kBadFile names the first difference, or says what
/// could not be read.
Status CheckHfTokenizer(const Tokenizer& tokenizer, std::string_view tokenizer_json,
                        std::string_view name);

}  // namespace megalith::text
