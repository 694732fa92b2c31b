#include "model/json_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>

namespace megalith::model {
namespace {

constexpr std::size_t kMaxShown = 32;

/// Ignores everything but the error, so that also a large text takes no memory.
struct ErrorFinder {
  using Json = nlohmann::json;

  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(Json::number_integer_t) { return true; }
  bool number_unsigned(Json::number_unsigned_t) { return true; }
  bool number_float(Json::number_float_t, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(Json::binary_t&) { return true; }
  bool start_object(std::size_t) { return true; }
  bool key(std::string&) { return true; }
  bool end_object() { return true; }
  bool start_array(std::size_t) { return true; }
  bool end_array() { return true; }
  // Position 0 and kind out_of_range: a number that no double holds.
  bool parse_error(std::size_t count, const std::string&,
                   const nlohmann::detail::exception& error) {
    if (dynamic_cast<const Json::parse_error*>(&error) != nullptr) characters_read = count;
    return false;
  }

  std::optional<std::size_t> characters_read;
};

}  // namespace

std::string JsonErrorPlace(std::string_view json) {
  ErrorFinder finder;
  if (nlohmann::json::sax_parse(json.begin(), json.end(), &finder) || !finder.characters_read) {
    return {};
  }
  // The last character read is the one that does not fit; behind the end it counts, too.
  const std::size_t read = *finder.characters_read;
  const std::size_t at = std::min(read == 0 ? 0 : read - 1, json.size());
  const std::string_view before = json.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  std::string shown(before.substr(before.size() - std::min(before.size(), kMaxShown)));
  for (char& c : shown) {
    // Bytes above 0x7e might be half a character.
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = ' ';
  }
  const std::string place = fmt::format(" at byte {} (line {})", at, line);
  if (shown.find_first_not_of(' ') == std::string::npos) return place;
  return fmt::format("{}, after '{}'", place, shown);
}

}  // namespace megalith::model
