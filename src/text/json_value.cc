#include "text/json_value.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>

namespace megalith::text {
namespace {

// Python's dict: first place, last value. Sorting indices keeps large objects from costing the
// square of their size.
void MergeRepeatedKeys(std::vector<JsonMember>& members) {
  std::vector<std::size_t> order(members.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&members](std::size_t a, std::size_t b) {
    return members[a].key < members[b].key;
  });
  std::vector<bool> drop(members.size(), false);
  bool any = false;
  for (std::size_t i = 0; i + 1 < order.size();) {
    std::size_t last = i;
    while (last + 1 < order.size() && members[order[last + 1]].key == members[order[i]].key) ++last;
    for (std::size_t j = i + 1; j <= last; ++j) drop[order[j]] = true;
    if (last > i) {
      members[order[i]].value = std::move(members[order[last]].value);
      any = true;
    }
    i = last + 1;
  }
  if (!any) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (drop[i]) continue;
    if (kept != i) members[kept] = std::move(members[i]);
    ++kept;
  }
  members.resize(kept);
}

}  // namespace

struct JsonValue::Children {
  std::vector<JsonValue> items;
  std::vector<JsonMember> members;
};

JsonValue JsonValue::Boolean(bool value) {
  JsonValue json;
  json.kind_ = Kind::kBoolean;
  json.boolean_ = value;
  return json;
}

JsonValue JsonValue::Integer(std::int64_t value) { return Number(std::to_string(value)); }

JsonValue JsonValue::Double(double value) { return Number(PythonFloatRepr(value)); }

JsonValue JsonValue::Number(std::string digits) {
  JsonValue json;
  json.kind_ = Kind::kNumber;
  json.text_ = std::move(digits);
  return json;
}

JsonValue JsonValue::String(std::string value) {
  JsonValue json;
  json.kind_ = Kind::kString;
  json.text_ = std::move(value);
  return json;
}

JsonValue JsonValue::Array(std::vector<JsonValue> items) {
  JsonValue json;
  json.kind_ = Kind::kArray;
  if (!items.empty()) json.children_ = std::make_shared<Children>(Children{std::move(items), {}});
  return json;
}

JsonValue JsonValue::Object(std::vector<JsonMember> members) {
  MergeRepeatedKeys(members);
  JsonValue json;
  json.kind_ = Kind::kObject;
  if (!members.empty()) {
    json.children_ = std::make_shared<Children>(Children{{}, std::move(members)});
  }
  return json;
}

const std::vector<JsonValue>& JsonValue::items() const {
  static const std::vector<JsonValue> empty;
  return children_ == nullptr ? empty : children_->items;
}

const std::vector<JsonMember>& JsonValue::members() const {
  static const std::vector<JsonMember> empty;
  return children_ == nullptr ? empty : children_->members;
}

const JsonValue* JsonValue::Find(std::string_view key) const {
  for (const JsonMember& member : members()) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

std::optional<std::int64_t> JsonValue::AsInteger() const {
  if (!is_number()) return std::nullopt;
  std::int64_t value = 0;
  const char* end = text().data() + text().size();
  const auto [stop, error] = std::from_chars(text().data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::optional<double> JsonValue::AsDouble() const {
  if (!is_number()) return std::nullopt;
  // Only the spellings of ParseJson and PythonFloatRepr can stand here, so strtod reads all of it.
  // It is used because from_chars gives no value beyond the range of double.
  return std::strtod(text().c_str(), nullptr);
}

bool operator==(const JsonValue& a, const JsonValue& b) {
  return a.kind() == b.kind() && a.boolean() == b.boolean() && a.text() == b.text() &&
         a.items() == b.items() && a.members() == b.members();
}

bool operator==(const JsonMember& a, const JsonMember& b) {
  return a.key == b.key && a.value == b.value;
}

std::string_view JsonKindName(JsonValue::Kind kind) {
  switch (kind) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBoolean:
      return "boolean";
    case JsonValue::Kind::kNumber:
      return "number";
    case JsonValue::Kind::kString:
      return "string";
    case JsonValue::Kind::kArray:
      return "array";
    case JsonValue::Kind::kObject:
      return "object";
  }
  return "unknown";
}

}  // namespace megalith::text
