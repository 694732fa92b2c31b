#include "text/grammar/string_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <map>
#include <vector>

namespace megalith::text::grammar {
namespace {

constexpr char kLabel[] = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
constexpr char kMailCharacter[] = "[A-Za-z0-9_%+-]";
// DNS takes 253 characters; RFC 5321 takes 64 before the sign and 254 in all. So strings up to here
// are valid however long their parts are.
constexpr std::uint32_t kMaxLocalPart = 64;

// Names of at most num_labels * (max_label + 1) - 1 characters. Regular expressions cannot bound
// the whole beside its parts at a bearable size, so the parts are bounded more closely than in DNS.
std::string BoundedHost(int num_labels, int max_label) {
  const std::string label =
      fmt::format("[A-Za-z0-9](?:[A-Za-z0-9-]{{0,{}}}[A-Za-z0-9])?", max_label - 2);
  return fmt::format(R"({0}(?:\.{0}){{0,{1}}})", label, num_labels - 1);
}

std::string Host() { return fmt::format(R"({0}(?:\.{0})*)", kLabel); }

const std::map<std::string_view, std::string>& Patterns() {
  static const std::map<std::string_view, std::string> patterns = [] {
    // RFC 3339. Months have their days; 29 February in leap years only.
    const std::string leap =
        R"((?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00))";
    const std::string date = fmt::format(
        R"((?:\d{{4}}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|)"
        R"(02-(?:0[1-9]|1\d|2[0-8]))|{}-02-29))",
        leap);
    const std::string time =
        R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d))";
    const std::string byte = R"((?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
    const std::string ipv4 = fmt::format(R"((?:{0}\.){{3}}{0})", byte);
    const std::string group = "[0-9A-Fa-f]{1,4}";
    // RFC 4291: eight groups, or fewer with one "::". No embedded IPv4.
    std::string ipv6 = fmt::format("(?:{0}:){{7}}{0}", group);
    ipv6 += fmt::format("|(?:{0}:){{1,7}}:", group);
    for (int behind = 1; behind <= 6; ++behind) {
      ipv6 += fmt::format("|(?:{0}:){{1,{1}}}(?::{0}){{{2}}}", group, 7 - behind, behind);
    }
    ipv6 += fmt::format("|:(?::{0}){{1,7}}|::", group);
    const std::string uri_char = R"((?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}))";
    const std::string uri =
        fmt::format(R"([A-Za-z][A-Za-z0-9+.-]*://{0}(?::\d{{1,5}})?(?:/{1}*)*(?:\?(?:{1}|[/?])*)?)"
                    R"((?:#(?:{1}|[/?])*)?)",
                    Host(), uri_char);
    // Mailboxes with dots are bounded more closely, too.
    const std::string local =
        fmt::format(R"((?:{0}{{1,64}}|{0}(?:\.?{0}){{0,31}}))", kMailCharacter);
    // RFC 3339, appendix A; weeks alone, days before "T", units in order without gaps.
    const std::string duration_time = R"(T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S))";
    const std::string duration = fmt::format(
        R"(P(?:\d+W|(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)(?:{0})?|{0}))", duration_time);
    std::map<std::string_view, std::string> map = {
        {"date", date},
        {"time", time},
        {"date-time", fmt::format("{}T{}", date, time)},
        {"duration", duration},
        {"uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
        {"ipv4", ipv4},
        {"ipv6", ipv6},
        {"hostname", BoundedHost(6, 41)},
        {"email", fmt::format("{}@{}", local, BoundedHost(5, 37))},
        {"uri", uri},
    };
    for (auto& [name, pattern] : map) pattern = fmt::format("^(?:{})$", pattern);
    return map;
  }();
  return patterns;
}

}  // namespace

std::optional<std::string> PatternOfFormat(std::string_view format,
                                           std::optional<std::uint32_t> max_length) {
  // Bounds of the parts would multiply with those of the whole.
  const bool is_short = max_length && *max_length <= kMaxLocalPart;
  if (is_short && format == "hostname") return fmt::format("^{}$", Host());
  if (is_short && format == "email") {
    return fmt::format(R"(^{0}+(?:\.{0}+)*@{1}$)", kMailCharacter, Host());
  }
  const auto it = Patterns().find(format);
  if (it == Patterns().end()) return std::nullopt;
  return it->second;
}

std::string KnownFormats() {
  std::vector<std::string_view> names;
  for (const auto& entry : Patterns()) names.push_back(entry.first);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace megalith::text::grammar
