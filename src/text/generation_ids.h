#pragma once

// Which ids end a generation, and which should never be generated.

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace megalith::text {

/// The ids that stop generation, ascending, each once: every eos_token_id (a number or a list) of
/// generation_config.json and config.json (top level and text_config), and the tokenizer's [EOS]
/// and <|end_of_msg|>. All of them, because config and tokenizer of released models name different
/// ones and the weights end with either. An absent generation_config.json or config.json adds
/// nothing. Errors name the file's path: kNotFound (there, but cannot be opened), kIo, kBadFile;
/// kBadConfig: a file that is no object, an id outside the vocabulary, an empty list, null in
/// generation_config.json.
Result<std::vector<TokenId>> FindStopIds(const std::filesystem::path& model_dir,
                                         const Tokenizer& tokenizer);

/// The same from the contents of the files; empty means absent.
Result<std::vector<TokenId>> FindStopIds(std::string_view generation_config,
                                         std::string_view config, const Tokenizer& tokenizer);

/// Special ids that a model never means to generate, ascending: all but [EOS] and the four of the
/// chat format. For a sampler that masks them.
std::vector<TokenId> FindNeverGeneratedIds(const Tokenizer& tokenizer);

}  // namespace megalith::text
