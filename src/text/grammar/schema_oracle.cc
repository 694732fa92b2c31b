#include "text/grammar/schema_oracle.h"

#include <algorithm>
#include <cmath>
#include <regex>
#include <stdexcept>
#include <string>

namespace megalith::text::grammar {
namespace {

bool HasType(const JsonValue& value, const std::string& type) {
  if (type == "integer") {
    return value.is_number() && *value.AsDouble() == std::floor(*value.AsDouble());
  }
  return JsonKindName(value.kind()) == type;
}

const JsonValue& Follow(const std::string& reference, const JsonValue& root) {
  const JsonValue* at = &root;
  std::size_t begin = 1;
  while (begin < reference.size()) {
    const std::size_t end = std::min(reference.find('/', begin + 1), reference.size());
    at = at->Find(reference.substr(begin + 1, end - begin - 1));
    if (at == nullptr) throw std::runtime_error("a reference to nothing: " + reference);
    begin = end;
  }
  return *at;
}

std::size_t CountCharacters(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool IsValidMember(const JsonMember& member, const JsonValue& schema, const JsonValue& root) {
  const JsonValue* properties = schema.Find("properties");
  const JsonValue* own = properties == nullptr ? nullptr : properties->Find(member.key);
  if (own != nullptr) return IsValid(member.value, *own, root);
  const JsonValue* additional = schema.Find("additionalProperties");
  return additional == nullptr || IsValid(member.value, *additional, root);
}

bool IsValidItem(const JsonValue& array, std::size_t i, const JsonValue& schema,
                 const JsonValue& root) {
  const JsonValue* prefix = schema.Find("prefixItems");
  if (prefix != nullptr && i < prefix->items().size()) {
    return IsValid(array.items()[i], prefix->items()[i], root);
  }
  const JsonValue* items = schema.Find("items");
  return items == nullptr || IsValid(array.items()[i], *items, root);
}

bool Satisfies(const JsonValue& value, const JsonMember& keyword, const JsonValue& schema,
               const JsonValue& root) {
  const std::string& key = keyword.key;
  const JsonValue& operand = keyword.value;
  const auto any_of = [&](auto&& predicate) {
    return std::any_of(operand.items().begin(), operand.items().end(), predicate);
  };
  const auto valid = [&](const JsonValue& other) { return IsValid(value, other, root); };
  if (key == "type") {
    if (operand.is_string()) return HasType(value, operand.text());
    return any_of([&](const JsonValue& type) { return HasType(value, type.text()); });
  }
  if (key == "enum") return any_of([&](const JsonValue& other) { return value == other; });
  if (key == "const") return value == operand;
  if (key == "anyOf" || key == "oneOf") return any_of(valid);
  if (key == "allOf") return std::all_of(operand.items().begin(), operand.items().end(), valid);
  if (key == "$ref") return valid(Follow(operand.text(), root));
  if (value.is_number()) {
    const double number = *value.AsDouble();
    if (key == "minimum") return number >= *operand.AsDouble();
    if (key == "maximum") return number <= *operand.AsDouble();
    if (key == "exclusiveMinimum") return number > *operand.AsDouble();
    if (key == "exclusiveMaximum") return number < *operand.AsDouble();
  }
  if (value.is_string()) {
    const auto length = static_cast<std::int64_t>(CountCharacters(value.text()));
    if (key == "minLength") return length >= *operand.AsInteger();
    if (key == "maxLength") return length <= *operand.AsInteger();
    if (key == "pattern") return std::regex_search(value.text(), std::regex(operand.text()));
  }
  if (value.is_array()) {
    const auto num_items = static_cast<std::int64_t>(value.items().size());
    if (key == "minItems") return num_items >= *operand.AsInteger();
    if (key == "maxItems") return num_items <= *operand.AsInteger();
    for (std::size_t i = 0; i < value.items().size(); ++i) {
      if (!IsValidItem(value, i, schema, root)) return false;
    }
  }
  if (value.is_object()) {
    if (key == "required") {
      return std::all_of(
          operand.items().begin(), operand.items().end(),
          [&value](const JsonValue& name) { return value.Find(name.text()) != nullptr; });
    }
    for (const JsonMember& member : value.members()) {
      if ((key == "properties" || key == "additionalProperties") &&
          !IsValidMember(member, schema, root)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

bool IsValid(const JsonValue& value, const JsonValue& schema, const JsonValue& root) {
  if (schema.is_boolean()) return schema.boolean();
  return std::all_of(
      schema.members().begin(), schema.members().end(),
      [&](const JsonMember& keyword) { return Satisfies(value, keyword, schema, root); });
}

}  // namespace megalith::text::grammar
