#include "serve/api/field_policy.h"

#include <algorithm>
#include <array>

namespace megalith::serve {
namespace {

constexpr std::array<IgnoredField, 13> kIgnored = {{
    {"user", "requests are not told apart by user"},
    {"safety_identifier", "requests are not told apart by user"},
    {"store", "nothing is stored"},
    {"metadata", "nothing is stored"},
    {"service_tier", "there is one tier"},
    {"prompt_cache_key", "the prefix cache finds prefixes by their tokens"},
    {"prompt_cache_retention", "the prefix cache evicts by size alone"},
    {"verbosity", "the model has no such setting"},
    {"prediction", "a hint for speed; drafts are chosen by the server"},
    {"truncation", "a prompt is never cut"},
    {"context_management", "a prompt is never cut"},
    {"container", "nothing is stored"},
    {"client_metadata", "nothing is stored"},
}};

struct RefusedField {
  std::string_view name;
  std::string_view instead;
};
constexpr std::array<RefusedField, 11> kRefused = {{
    {"functions", "use tools"},
    {"function_call", "use tool_choice"},
    {"audio", "this model writes text only"},
    {"web_search_options", "this server searches nothing"},
    {"suffix", "this model completes at the end only"},
    {"conversation", "nothing is stored: send the whole conversation"},
    {"prompt", "stored prompts do not exist here"},
    {"mcp_servers", "this server calls no tools itself"},
    {"grammar", "use response_format"},
    {"guided_json", "use response_format"},
    {"best_of", "use n"},
}};

ApiError FieldError(ApiErrorCode code, const std::string& name, std::string message) {
  ApiError error;
  error.code = code;
  error.message = std::move(message);
  error.param = name;
  return error;
}

// A name as a message shows it: clients choose its length.
std::string ShortName(const std::string& name) {
  constexpr std::size_t kMaxBytes = 64;
  if (name.size() <= kMaxBytes) return name;
  std::size_t end = kMaxBytes;  // not inside a character
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
  return name.substr(0, end) + "...";
}

}  // namespace

std::span<const IgnoredField> IgnoredFields() { return kIgnored; }

std::optional<ApiError> ApplyFieldPolicy(const std::vector<std::string>& unread,
                                         bool accept_unknown, std::vector<std::string>& warnings) {
  for (const std::string& full_name : unread) {
    const std::string name = ShortName(full_name);
    const auto has_name = [&name](const auto& field) { return field.name == name; };
    if (const auto* ignored = std::find_if(kIgnored.begin(), kIgnored.end(), has_name);
        ignored != kIgnored.end()) {
      warnings.push_back(fmt::format("{}: ignored: {}", name, ignored->reason));
    } else if (const auto* refused = std::find_if(kRefused.begin(), kRefused.end(), has_name);
               refused != kRefused.end()) {
      return FieldError(ApiErrorCode::kUnsupported, name,
                        fmt::format("{}: not supported: {}", name, refused->instead));
    } else if (accept_unknown) {
      warnings.push_back(fmt::format("{}: ignored: unknown", name));
    } else {
      return FieldError(ApiErrorCode::kUnknownParameter, name,
                        fmt::format("{}: this endpoint knows no such parameter", name));
    }
  }
  return std::nullopt;
}

}  // namespace megalith::serve
