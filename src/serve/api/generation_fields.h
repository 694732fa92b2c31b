#pragma once

// The members that every generating endpoint understands in the same way.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/generator.h"
#include "serve/api/reader.h"
#include "text/tokenizer.h"

namespace megalith::serve {

/// What holds for requests that do not say otherwise.
struct GenerationDefaults {
  double temperature = 1.0;
  double top_p = 0.95;
  double top_p_with_tools = 1.0;
  double min_p = 0.0;
  std::int64_t max_tokens = 0;  ///< 0: as many as the context holds
  std::int64_t max_n = 16;      ///< largest n, and most prompts of one request
};

struct GenerationFields {
  std::optional<std::int64_t> max_tokens;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::int32_t top_k = 0;
  std::optional<std::uint64_t> seed;
  engine::LogitChanges logits;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::int64_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool return_progress = false;
  bool cache_prompt = true;
};

/// Reads temperature, top_p, top_k, min_p, seed, presence_penalty, frequency_penalty,
/// repetition_penalty, logit_bias, ignore_eos, cache_prompt.
Status ReadSampling(ObjectReader& reader, const text::Tokenizer& tokenizer,
                    GenerationFields& fields);

/// Reads stop, n, stream, stream_options, return_progress and the above.
Status ReadGenerationFields(ObjectReader& reader, const text::Tokenizer& tokenizer,
                            const GenerationDefaults& defaults, GenerationFields& fields);

/// A string or a list of strings, none of them empty.
Result<std::vector<std::string>> ReadStops(const text::JsonValue& value, const std::string& path);

/// What a generation needs of the model and the server's settings.
struct RequestRules {
  GenerationDefaults defaults;
  std::vector<text::TokenId> stop_ids;
  std::int64_t max_positions = 0;
};

/// One request per choice, each with its own seed: choice 0 has the seed that was given, or a
/// random one. REQUIRES prompt.size() < max_positions.
std::vector<engine::GenerationRequest> MakeRequests(const GenerationFields& fields,
                                                    const RequestRules& rules, bool has_tools,
                                                    engine::GenerationRequest prompt);

}  // namespace megalith::serve
