#include "serve/api/generation_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <random>

namespace megalith::serve {
namespace {

constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMinInt64 = std::numeric_limits<std::int64_t>::min();
// Every byte of an answer is compared with every stop string.
constexpr std::size_t kMaxStops = 64;
constexpr std::size_t kMaxStopBytes = 4096;
constexpr std::size_t kMaxBiases = 4096;

Result<std::int32_t> ReadTokenKey(const std::string& key, const std::string& path,
                                  const text::Tokenizer& tokenizer) {
  std::int32_t id = -1;
  const char* end = key.data() + key.size();
  const auto [stop, error] = std::from_chars(key.data(), end, id);
  if (error != std::errc() || stop != end || id < 0 || id >= tokenizer.vocab_size()) {
    return Fail(ErrorCode::kUsage, "{}: token ids from 0 to {} as keys expected, \"{}\" found",
                path, tokenizer.vocab_size() - 1, key.substr(0, 32));
  }
  return id;
}

Status ReadLogitBias(ObjectReader& reader, const text::Tokenizer& tokenizer,
                     engine::LogitChanges& logits) {
  const text::JsonValue* value = reader.Find("logit_bias");
  if (value == nullptr) return {};
  const std::string path = reader.PathOf("logit_bias");
  MEGALITH_ASSIGN_OR_RETURN(const ObjectReader bias, ObjectReader::Create(*value, path));
  if (value->members().size() > kMaxBiases) {
    return Fail(ErrorCode::kUsage, "{}: at most {} members expected, {} found", path, kMaxBiases,
                value->members().size());
  }
  std::map<std::int32_t, float> by_token;  // "7" and "07" are the same token
  for (const text::JsonMember& member : value->members()) {
    MEGALITH_ASSIGN_OR_RETURN(const std::int32_t id, ReadTokenKey(member.key, path, tokenizer));
    MEGALITH_ASSIGN_OR_RETURN(const double number,
                              ReadNumber(member.value, path + "." + member.key, {-100.0, 100.0}));
    // The API promises that -100 bans a token.
    by_token[id] =
        number <= -100.0 ? -std::numeric_limits<float>::infinity() : static_cast<float>(number);
  }
  logits.bias.assign(by_token.begin(), by_token.end());
  return {};
}

Status ReadStreamOptions(ObjectReader& reader, GenerationFields& fields) {
  const text::JsonValue* value = reader.Find("stream_options");
  if (value == nullptr) return {};
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader options,
                            ObjectReader::Create(*value, reader.PathOf("stream_options")));
  MEGALITH_RETURN_IF_ERROR(options.Boolean("include_usage", fields.include_usage));
  // Padding against observers of encrypted traffic; there is none here.
  bool obfuscation = false;
  MEGALITH_RETURN_IF_ERROR(options.Boolean("include_obfuscation", obfuscation));
  if (const auto unread = options.Unread(); !unread.empty()) {
    return Fail(ErrorCode::kUsage, "{}: no such option; include_usage is the only one",
                options.PathOf(unread.front()));
  }
  if (!fields.stream) {
    return Fail(ErrorCode::kUsage, "stream_options: expected only together with stream: true");
  }
  return {};
}

std::uint64_t RandomSeed() {
  std::random_device device;
  const std::uint64_t high = device();
  return (high << 32) | device();
}

kernels::SamplingOptions MakeSampling(const GenerationFields& fields,
                                      const GenerationDefaults& defaults, bool has_tools) {
  kernels::SamplingOptions sampling;
  sampling.temperature = static_cast<float>(fields.temperature.value_or(defaults.temperature));
  const double top_p =
      fields.top_p.value_or(has_tools ? defaults.top_p_with_tools : defaults.top_p);
  // 0 keeps the most likely token alone, and so does the smallest positive number.
  sampling.top_p = std::max(static_cast<float>(top_p), std::numeric_limits<float>::min());
  sampling.min_p = static_cast<float>(fields.min_p.value_or(defaults.min_p));
  sampling.top_k = fields.top_k;
  return sampling;
}

void ForbidStops(const std::vector<text::TokenId>& stop_ids, engine::LogitChanges& logits) {
  for (const text::TokenId id : stop_ids) {
    std::erase_if(logits.bias, [id](const auto& bias) { return bias.first == id; });
    logits.bias.emplace_back(id, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

Result<std::vector<std::string>> ReadStops(const text::JsonValue& value, const std::string& path) {
  std::vector<std::string> stops;
  if (value.is_string()) {
    stops.push_back(value.text());
  } else {
    if (!value.is_array()) {
      return Fail(ErrorCode::kUsage, "{}: string or array of strings expected, {} found", path,
                  Describe(value));
    }
    if (value.items().size() > kMaxStops) {
      return Fail(ErrorCode::kUsage, "{}: at most {} strings expected, {} found", path, kMaxStops,
                  value.items().size());
    }
    for (std::size_t i = 0; i < value.items().size(); ++i) {
      MEGALITH_ASSIGN_OR_RETURN(std::string stop,
                                ReadString(value.items()[i], fmt::format("{}[{}]", path, i)));
      stops.push_back(std::move(stop));
    }
  }
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return Fail(ErrorCode::kUsage, "{}: strings of 1 to {} bytes expected, one of {} found", path,
                  kMaxStopBytes, stop.size());
    }
  }
  return stops;
}

Status ReadSampling(ObjectReader& reader, const text::Tokenizer& tokenizer,
                    GenerationFields& fields) {
  engine::LogitChanges& logits = fields.logits;
  MEGALITH_RETURN_IF_ERROR(reader.Number("temperature", {0.0, 100.0}, fields.temperature));
  MEGALITH_RETURN_IF_ERROR(reader.Number("top_p", {0.0, 1.0}, fields.top_p));
  MEGALITH_RETURN_IF_ERROR(reader.Number("min_p", {0.0, 1.0}, fields.min_p));
  std::int64_t top_k = 0;
  MEGALITH_RETURN_IF_ERROR(
      reader.Integer("top_k", {-1, std::numeric_limits<std::int32_t>::max()}, top_k));
  fields.top_k = static_cast<std::int32_t>(std::max<std::int64_t>(top_k, 0));
  std::optional<std::int64_t> seed;
  MEGALITH_RETURN_IF_ERROR(reader.Integer("seed", {kMinInt64, kMaxInt64}, seed));
  if (seed) fields.seed = static_cast<std::uint64_t>(*seed);
  double presence = 0.0;
  double frequency = 0.0;
  double repetition = 1.0;
  MEGALITH_RETURN_IF_ERROR(reader.Number("presence_penalty", {-2.0, 2.0}, presence));
  MEGALITH_RETURN_IF_ERROR(reader.Number("frequency_penalty", {-2.0, 2.0}, frequency));
  MEGALITH_RETURN_IF_ERROR(reader.Number("repetition_penalty", {0.01, 100.0}, repetition));
  logits.presence_penalty = static_cast<float>(presence);
  logits.frequency_penalty = static_cast<float>(frequency);
  logits.repetition_penalty = static_cast<float>(repetition);
  MEGALITH_RETURN_IF_ERROR(ReadLogitBias(reader, tokenizer, logits));
  MEGALITH_RETURN_IF_ERROR(reader.Boolean("ignore_eos", fields.ignore_eos));
  return reader.Boolean("cache_prompt", fields.cache_prompt);
}

Status ReadGenerationFields(ObjectReader& reader, const text::Tokenizer& tokenizer,
                            const GenerationDefaults& defaults, GenerationFields& fields) {
  MEGALITH_RETURN_IF_ERROR(ReadSampling(reader, tokenizer, fields));
  if (const text::JsonValue* stop = reader.Find("stop"); stop != nullptr) {
    MEGALITH_ASSIGN_OR_RETURN(fields.stop, ReadStops(*stop, "stop"));
  }
  MEGALITH_RETURN_IF_ERROR(reader.Integer("n", {1, defaults.max_n}, fields.n));
  MEGALITH_RETURN_IF_ERROR(reader.Boolean("stream", fields.stream));
  MEGALITH_RETURN_IF_ERROR(ReadStreamOptions(reader, fields));
  MEGALITH_RETURN_IF_ERROR(reader.Boolean("return_progress", fields.return_progress));
  if (fields.return_progress && !fields.stream) {
    return Fail(ErrorCode::kUsage, "return_progress: expected only together with stream: true");
  }
  return {};
}

std::vector<engine::GenerationRequest> MakeRequests(const GenerationFields& fields,
                                                    const RequestRules& rules, bool has_tools,
                                                    engine::GenerationRequest prompt) {
  const auto room = rules.max_positions - static_cast<std::int64_t>(prompt.prompt.size());
  std::int64_t max_tokens = room;
  if (rules.defaults.max_tokens > 0) max_tokens = std::min(max_tokens, rules.defaults.max_tokens);
  if (fields.max_tokens) max_tokens = std::min(room, *fields.max_tokens);
  prompt.max_tokens = std::max<std::int64_t>(max_tokens, 1);
  prompt.sampling = MakeSampling(fields, rules.defaults, has_tools);
  prompt.logits = fields.logits;
  if (fields.ignore_eos) {
    ForbidStops(rules.stop_ids, prompt.logits);
  } else {
    prompt.stop_ids = rules.stop_ids;
  }
  prompt.use_prefix_cache = fields.cache_prompt;

  const std::uint64_t seed = fields.seed ? *fields.seed : RandomSeed();
  std::vector<engine::GenerationRequest> requests;
  for (std::int64_t i = 0; i < fields.n; ++i) {
    requests.push_back(prompt);
    // The odd constant keeps the seeds of neighbouring requests' choices apart.
    requests.back().sampling.seed = seed + static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u;
  }
  return requests;
}

}  // namespace megalith::serve
