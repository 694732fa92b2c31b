#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generator.h"
#include "serve/api/generation_fields.h"
#include "text/grammar/token_trie.h"
#include "text/tokenizer.h"

namespace megalith::serve {

struct ServiceOptions {
  std::string model = "model";       ///< name under which the model is served
  std::vector<std::string> aliases;  ///< further names that requests may use
  bool accept_any_model = false;     ///< whatever a request names is taken to mean the model
  bool accept_unknown_fields = false;
  GenerationDefaults defaults;
  std::vector<std::string> api_keys;              ///< none: everybody may ask
  std::vector<std::string> cors_origins;          ///< none: no CORS headers; "*": any origin
  std::chrono::milliseconds ping_interval{5000};  ///< silence on a stream that a ping breaks
  std::size_t replay_bytes = std::size_t{64} << 20;
  std::string version;          ///< of the program, for GET /status
  std::string_view index_page;  ///< HTML for GET /; empty: there is no page. Must stay valid
};

/// The model behind the service.
struct ServedModel {
  text::Tokenizer tokenizer;
  std::vector<text::TokenId> stop_ids;
  engine::Generator* generator = nullptr;  ///< outlives the service
  std::string replay_file;                 ///< where generated turns outlive the process; or empty
  /// For forms of replies; null: the tokenizer has no control tokens. Set by Service::SetModel.
  std::shared_ptr<const text::grammar::TokenTrie> token_trie;
};

}  // namespace megalith::serve
