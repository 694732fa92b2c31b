#include "text/grammar/schema_shape.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "text/grammar/string_format.h"

namespace megalith::text::grammar {
namespace {

// Say nothing about which values are valid, or are read elsewhere.
constexpr std::string_view kIgnored[] = {
    "title",     "description",   "default", "example",     "examples",   "$schema",
    "$id",       "$comment",      "$defs",   "definitions", "deprecated", "readOnly",
    "writeOnly", "discriminator", "$ref",    "allOf",       "anyOf",      "oneOf"};

constexpr std::int64_t kMaxCount = 1 << 30;

std::string MemberPath(const std::string& path, std::string_view key) {
  const bool simple = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '$' || c == '-';
  });
  if (simple) return path + "." + std::string(key);
  std::string quoted;
  AppendJsonEscaped(key, quoted);
  return path + "[\"" + quoted + "\"]";
}

tl::unexpected<Error> Expected(const SchemaPart& part, std::string_view what) {
  return Fail(
      ErrorCode::kUsage, "{}: {} expected, {} found", part.path, what,
      part.value->is_number() ? part.value->text() : std::string(JsonKindName(part.value->kind())));
}

Status CheckSchema(const SchemaPart& part) {
  if (part.value->is_object() || part.value->is_boolean()) return {};
  return Expected(part, "a schema (object or boolean)");
}

Result<TypeSet> ReadTypeName(const SchemaPart& part) {
  static constexpr std::pair<std::string_view, TypeSet> kNames[] = {
      {"null", kNullType},     {"boolean", kBooleanType}, {"integer", kIntegerType},
      {"number", kNumberType}, {"string", kStringType},   {"array", kArrayType},
      {"object", kObjectType}};
  for (const auto& [name, type] : kNames) {
    if (part.value->is_string() && part.value->text() == name) return type;
  }
  return Fail(ErrorCode::kUsage,
              "{}: null, boolean, integer, number, string, array or object expected, {} found",
              part.path,
              part.value->is_string() ? "\"" + part.value->text() + "\""
                                      : std::string(JsonKindName(part.value->kind())));
}

Result<TypeSet> ReadTypes(const SchemaPart& part) {
  if (!part.value->is_array()) return ReadTypeName(part);
  if (part.value->items().empty()) return Expected(part, "at least one type");
  TypeSet types = 0;
  for (std::size_t i = 0; i < part.value->items().size(); ++i) {
    MEGALITH_ASSIGN_OR_RETURN(const TypeSet type, ReadTypeName(part.Item(i)));
    types |= type;
  }
  return types;
}

Result<std::uint32_t> ReadCount(const SchemaPart& part) {
  const std::optional<std::int64_t> count = part.value->AsInteger();
  if (!count || *count < 0 || *count > kMaxCount) {
    return Expected(part, "an integer from 0 to 2^30");
  }
  return static_cast<std::uint32_t>(*count);
}

Result<Decimal> ReadDecimal(const SchemaPart& part) {
  if (!part.value->is_number()) return Expected(part, "a number");
  auto decimal = Decimal::Parse(part.value->text());
  if (!decimal) {
    return Fail(decimal.error().code, "{}: {}, {} found", part.path, decimal.error().message,
                part.value->text());
  }
  return decimal;
}

Result<bool> ReadBoolean(const SchemaPart& part) {
  if (!part.value->is_boolean()) return Expected(part, "true or false");
  return part.value->boolean();
}

Result<std::string> ReadString(const SchemaPart& part) {
  if (!part.value->is_string()) return Expected(part, "a string");
  return part.value->text();
}

void LowerTo(std::optional<std::uint32_t>& max, std::uint32_t value) {
  max = max ? std::min(*max, value) : value;
}

// Adds the keywords of one schema to a shape.
class KeywordReader {
 public:
  explicit KeywordReader(Shape& shape) : shape_(shape) {}

  Status Add(const SchemaPart& schema) {
    TypeSet types = kAllTypes;
    bool nullable = false;
    Shape::Items items;
    Shape::Members members;
    for (const JsonMember& member : schema.value->members()) {
      const SchemaPart part = schema.Member(member);
      const std::string& key = member.key;
      if (std::find(std::begin(kIgnored), std::end(kIgnored), key) != std::end(kIgnored)) continue;
      if (key == "type") {
        MEGALITH_ASSIGN_OR_RETURN(types, ReadTypes(part));
        continue;
      }
      if (key == "nullable") {
        MEGALITH_ASSIGN_OR_RETURN(nullable, ReadBoolean(part));
        continue;
      }
      if (key == "enum" || key == "const") {
        MEGALITH_RETURN_IF_ERROR(AddLiterals(part, key == "enum"));
        continue;
      }
      if (assertion_path_.empty()) assertion_path_ = part.path;
      if (key == "properties") {
        MEGALITH_RETURN_IF_ERROR(AddProperties(part, members));
      } else if (key == "additionalProperties") {
        MEGALITH_RETURN_IF_ERROR(CheckSchema(part));
        members.additional = part;
      } else if (key == "items") {
        MEGALITH_RETURN_IF_ERROR(CheckSchema(part));
        items.rest = part;
      } else if (key == "prefixItems") {
        if (!part.value->is_array()) return Expected(part, "an array of schemas");
        for (std::size_t i = 0; i < part.value->items().size(); ++i) {
          items.prefix.push_back(part.Item(i));
          MEGALITH_RETURN_IF_ERROR(CheckSchema(items.prefix.back()));
        }
      } else {
        MEGALITH_RETURN_IF_ERROR(AddAssertion(part, key));
      }
    }
    if (nullable) types |= kNullType;
    shape_.types &= types;
    if (items.rest || !items.prefix.empty()) shape_.items.push_back(std::move(items));
    if (members.additional || !members.properties.empty()) {
      shape_.members.push_back(std::move(members));
    }
    return {};
  }

  Status Finish() {
    if (!shape_.literals) return {};
    if (!assertion_path_.empty()) {
      return Fail(ErrorCode::kUnsupported, "{}: not supported beside enum or const ({})",
                  assertion_path_, literals_path_);
    }
    std::erase_if(*shape_.literals, [this](const JsonValue* literal) {
      return (TypeOf(*literal) & shape_.types) == 0;
    });
    return {};
  }

 private:
  Status AddLiterals(const SchemaPart& part, bool is_list) {
    std::vector<const JsonValue*> literals;
    if (is_list) {
      if (!part.value->is_array()) return Expected(part, "an array of values");
      for (const JsonValue& item : part.value->items()) literals.push_back(&item);
    } else {
      literals.push_back(part.value);
    }
    literals_path_ = part.path;
    for (const JsonValue* literal : literals) {
      if (literal->is_number() && literal->text().find_first_of("IN") != std::string::npos) {
        return Fail(ErrorCode::kUnsupported, "{}: a finite number expected, {} found", part.path,
                    literal->text());
      }
    }
    if (shape_.literals) {
      std::erase_if(literals, [this](const JsonValue* literal) {
        return std::none_of(shape_.literals->begin(), shape_.literals->end(),
                            [literal](const JsonValue* other) { return *literal == *other; });
      });
    }
    shape_.literals = std::move(literals);
    return {};
  }

  static Status AddProperties(const SchemaPart& part, Shape::Members& members) {
    if (!part.value->is_object()) return Expected(part, "an object of schemas");
    for (const JsonMember& property : part.value->members()) {
      SchemaPart schema = part.Member(property);
      MEGALITH_RETURN_IF_ERROR(CheckSchema(schema));
      members.by_name.emplace(property.key, members.properties.size());
      members.properties.emplace_back(property.key, std::move(schema));
    }
    return {};
  }

  Status AddRequired(const SchemaPart& part) {
    if (!part.value->is_array()) return Expected(part, "an array of names");
    std::set<std::string_view> known(shape_.required.begin(), shape_.required.end());
    // `known` points into the old list: it grows behind it.
    std::vector<std::string> required = shape_.required;
    for (std::size_t i = 0; i < part.value->items().size(); ++i) {
      const SchemaPart name = part.Item(i);
      if (!name.value->is_string()) return Expected(name, "a name");
      if (known.insert(name.value->text()).second) required.push_back(name.value->text());
    }
    shape_.required = std::move(required);
    return {};
  }

  // Keywords that need nothing but their own value.
  Status AddAssertion(const SchemaPart& part, std::string_view key) {
    if (key == "required") return AddRequired(part);
    if (key == "minLength") {
      MEGALITH_ASSIGN_OR_RETURN(const std::uint32_t count, ReadCount(part));
      shape_.min_length = std::max(shape_.min_length, count);
    } else if (key == "maxLength") {
      MEGALITH_ASSIGN_OR_RETURN(const std::uint32_t count, ReadCount(part));
      LowerTo(shape_.max_length, count);
    } else if (key == "minItems") {
      MEGALITH_ASSIGN_OR_RETURN(const std::uint32_t count, ReadCount(part));
      shape_.min_items = std::max(shape_.min_items, count);
    } else if (key == "maxItems") {
      MEGALITH_ASSIGN_OR_RETURN(const std::uint32_t count, ReadCount(part));
      LowerTo(shape_.max_items, count);
    } else if (key == "pattern") {
      MEGALITH_ASSIGN_OR_RETURN(std::string pattern, ReadString(part));
      shape_.patterns.push_back({std::move(pattern), part.path});
    } else if (key == "format") {
      MEGALITH_ASSIGN_OR_RETURN(std::string format, ReadString(part));
      if (!PatternOfFormat(format)) {
        return Fail(ErrorCode::kUnsupported, "{}: one of {} expected, \"{}\" found", part.path,
                    KnownFormats(), format);
      }
      shape_.patterns.push_back({std::move(format), part.path, true});
    } else if (key == "minimum" || key == "exclusiveMinimum") {
      MEGALITH_ASSIGN_OR_RETURN(Decimal value, ReadDecimal(part));
      shape_.bounds.RaiseMin({std::move(value), key == "exclusiveMinimum"});
    } else if (key == "maximum" || key == "exclusiveMaximum") {
      MEGALITH_ASSIGN_OR_RETURN(Decimal value, ReadDecimal(part));
      shape_.bounds.LowerMax({std::move(value), key == "exclusiveMaximum"});
    } else if (key == "uniqueItems" && part.value->is_boolean() && !part.value->boolean()) {
      return {};
    } else {
      return Fail(ErrorCode::kUnsupported, "{}: this keyword is not supported", part.path);
    }
    return {};
  }

  Shape& shape_;
  std::string assertion_path_;
  std::string literals_path_;
};

// A reference's token: ~1 is '/', ~0 is '~', %HH a byte.
std::string DecodePointerToken(std::string_view token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size(); ++i) {
    const auto hex = [&token](std::size_t at) -> int {
      const char c = at < token.size() ? token[at] : '\0';
      if (c >= '0' && c <= '9') return c - '0';
      const char lower = static_cast<char>(c | 0x20);
      return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
    };
    if (token[i] == '%' && hex(i + 1) >= 0 && hex(i + 2) >= 0) {
      bytes.push_back(static_cast<char>(hex(i + 1) * 16 + hex(i + 2)));
      i += 2;
    } else {
      bytes.push_back(token[i]);
    }
  }
  std::string key;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '~' && i + 1 < bytes.size() && (bytes[i + 1] == '0' || bytes[i + 1] == '1')) {
      key.push_back(bytes[++i] == '0' ? '~' : '/');
    } else {
      key.push_back(bytes[i]);
    }
  }
  return key;
}

}  // namespace

TypeSet TypeOf(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return kNullType;
    case JsonValue::Kind::kBoolean:
      return kBooleanType;
    case JsonValue::Kind::kNumber: {
      const auto decimal = Decimal::Parse(value.text());
      // Beyond what Decimal takes: a very large float, an integer, or a very small one.
      if (!decimal)
        return value.text().find("e-") == std::string::npos ? kIntegerType : kFractionType;
      return decimal->fraction.empty() ? kIntegerType : kFractionType;
    }
    case JsonValue::Kind::kString:
      return kStringType;
    case JsonValue::Kind::kArray:
      return kArrayType;
    case JsonValue::Kind::kObject:
      return kObjectType;
  }
  return 0;
}

SchemaPart SchemaPart::Member(const JsonMember& member) const {
  return {&member.value, MemberPath(path, member.key)};
}

SchemaPart SchemaPart::Item(std::size_t idx) const {
  return {&value->items()[idx], path + "[" + std::to_string(idx) + "]"};
}

Conjunction Shape::ItemAt(std::size_t idx) const {
  Conjunction conjunction;
  for (const Items& part : items) {
    if (idx < part.prefix.size()) {
      conjunction.push_back(part.prefix[idx]);
    } else if (part.rest) {
      conjunction.push_back(*part.rest);
    }
  }
  return conjunction;
}

std::size_t Shape::num_prefix_items() const {
  std::size_t num = 0;
  for (const Items& part : items) num = std::max(num, part.prefix.size());
  return num;
}

Conjunction Shape::MemberNamed(std::string_view name) const {
  Conjunction conjunction;
  for (const Members& part : members) {
    const auto it = part.by_name.find(name);
    if (it != part.by_name.end()) {
      conjunction.push_back(part.properties[it->second].second);
    } else if (part.additional) {
      conjunction.push_back(*part.additional);
    }
  }
  return conjunction;
}

Conjunction Shape::AdditionalMembers() const {
  Conjunction conjunction;
  for (const Members& part : members) {
    if (part.additional) conjunction.push_back(*part.additional);
  }
  return conjunction;
}

std::vector<std::string> Shape::MemberNames() const {
  std::vector<std::string> names;
  std::set<std::string_view> known;
  for (const Members& part : members) {
    for (const auto& property : part.properties) {
      if (known.insert(property.first).second) names.emplace_back(property.first);
    }
  }
  for (const std::string& name : required) {
    if (known.insert(name).second) names.push_back(name);
  }
  return names;
}

bool IsNever(const Conjunction& conjunction) {
  return std::any_of(conjunction.begin(), conjunction.end(), [](const SchemaPart& part) {
    return part.value->is_boolean() && !part.value->boolean();
  });
}

SchemaReader::SchemaReader(const JsonValue& root, std::string path)
    : root_{&root, std::move(path)} {}

Status SchemaReader::CheckSize() const {
  std::vector<const JsonValue*> todo = {root_.value};
  std::size_t num_nodes = 0;
  while (!todo.empty()) {
    const JsonValue& value = *todo.back();
    todo.pop_back();
    num_nodes += 1 + value.items().size() + value.members().size();
    if (num_nodes > kMaxNodes) {
      return Fail(ErrorCode::kOutOfRange, "{}: a schema of at most {} values expected, more found",
                  root_.path, kMaxNodes);
    }
    for (const JsonValue& item : value.items()) todo.push_back(&item);
    for (const JsonMember& member : value.members()) todo.push_back(&member.value);
  }
  return {};
}

Result<std::vector<Shape>> SchemaReader::Read(const Conjunction& conjunction) {
  std::vector<Leaves> alternatives = {{}};
  for (const SchemaPart& part : conjunction) {
    MEGALITH_ASSIGN_OR_RETURN(std::vector<Leaves> factors, Expand(part));
    MEGALITH_RETURN_IF_ERROR(Multiply(alternatives, std::move(factors), part.path));
  }
  std::vector<Shape> shapes;
  for (const Leaves& leaves : alternatives) {
    Shape shape;
    KeywordReader reader(shape);
    for (const SchemaPart& leaf : leaves) MEGALITH_RETURN_IF_ERROR(reader.Add(leaf));
    MEGALITH_RETURN_IF_ERROR(reader.Finish());
    if (shape.types != 0) shapes.push_back(std::move(shape));
  }
  return shapes;
}

Status SchemaReader::CountWork(std::size_t amount, const std::string& path) {
  work_ += amount;
  if (work_ <= kMaxWork) return {};
  return Fail(ErrorCode::kUnsupported, "{}: the schema has too many combinations", path);
}

// Every schema of `product` together with every one of `factors`.
Status SchemaReader::Multiply(std::vector<Leaves>& product, std::vector<Leaves> factors,
                              const std::string& path) {
  if (product.size() * factors.size() > kMaxAlternatives) {
    return Fail(ErrorCode::kUnsupported,
                "{}: at most {} alternatives for one value expected, {} found", path,
                kMaxAlternatives, product.size() * factors.size());
  }
  std::vector<Leaves> all;
  for (const Leaves& a : product) {
    for (const Leaves& b : factors) {
      Leaves both = a;
      for (const SchemaPart& leaf : b) {
        const bool known = std::any_of(both.begin(), both.end(), [&leaf](const SchemaPart& other) {
          return other.value == leaf.value;
        });
        if (!known) both.push_back(leaf);
      }
      MEGALITH_RETURN_IF_ERROR(CountWork(both.size() * b.size(), path));
      if (both.size() > kMaxAlternatives) {
        return Fail(ErrorCode::kUnsupported, "{}: at most {} schemas for one value expected", path,
                    kMaxAlternatives);
      }
      all.push_back(std::move(both));
    }
  }
  product = std::move(all);
  return {};
}

Result<std::vector<SchemaReader::Leaves>> SchemaReader::ExpandUnion(const SchemaPart& list) {
  if (!list.value->is_array() || list.value->items().empty()) {
    return Expected(list, "an array of at least one schema");
  }
  std::vector<Leaves> alternatives;
  for (std::size_t i = 0; i < list.value->items().size(); ++i) {
    MEGALITH_ASSIGN_OR_RETURN(std::vector<Leaves> more, Expand(list.Item(i)));
    alternatives.insert(alternatives.end(), more.begin(), more.end());
    if (alternatives.size() > kMaxAlternatives) {
      return Fail(ErrorCode::kUnsupported, "{}: at most {} alternatives expected, more found",
                  list.path, kMaxAlternatives);
    }
  }
  return alternatives;
}

Result<std::vector<SchemaReader::Leaves>> SchemaReader::Expand(const SchemaPart& schema) {
  MEGALITH_RETURN_IF_ERROR(CheckSchema(schema));
  if (schema.value->is_boolean()) {
    if (!schema.value->boolean()) return std::vector<Leaves>();
    return std::vector<Leaves>{{}};
  }
  if (std::find(open_.begin(), open_.end(), schema.value) != open_.end()) {
    return Fail(ErrorCode::kUsage, "{}: the schema refers to itself without a value in between",
                schema.path);
  }
  if (open_.size() >= static_cast<std::size_t>(kMaxNesting)) {
    return Fail(ErrorCode::kUnsupported,
                "{}: at most {} references and combinations inside each other expected",
                schema.path, kMaxNesting);
  }
  MEGALITH_RETURN_IF_ERROR(CountWork(schema.value->members().size() + 1, schema.path));
  open_.push_back(schema.value);
  const auto expand = [&]() -> Result<std::vector<Leaves>> {
    std::vector<Leaves> product = {{schema}};
    for (const JsonMember& member : schema.value->members()) {
      const SchemaPart part = schema.Member(member);
      if (member.key == "$ref") {
        MEGALITH_ASSIGN_OR_RETURN(const SchemaPart target, Resolve(part));
        MEGALITH_ASSIGN_OR_RETURN(std::vector<Leaves> factors, Expand(target));
        MEGALITH_RETURN_IF_ERROR(Multiply(product, std::move(factors), part.path));
      } else if (member.key == "anyOf" || member.key == "oneOf") {
        MEGALITH_ASSIGN_OR_RETURN(std::vector<Leaves> factors, ExpandUnion(part));
        MEGALITH_RETURN_IF_ERROR(Multiply(product, std::move(factors), part.path));
      } else if (member.key == "allOf") {
        if (!part.value->is_array() || part.value->items().empty()) {
          return Expected(part, "an array of at least one schema");
        }
        for (std::size_t i = 0; i < part.value->items().size(); ++i) {
          MEGALITH_ASSIGN_OR_RETURN(std::vector<Leaves> factors, Expand(part.Item(i)));
          MEGALITH_RETURN_IF_ERROR(Multiply(product, std::move(factors), part.path));
        }
      }
    }
    return product;
  };
  auto result = expand();
  open_.pop_back();
  return result;
}

Result<SchemaPart> SchemaReader::Resolve(const SchemaPart& reference) {
  if (!reference.value->is_string()) return Expected(reference, "a string");
  const std::string& text = reference.value->text();
  if (const auto it = resolved_.find(text); it != resolved_.end()) return it->second;
  if (text != "#" && !text.starts_with("#/")) {
    return Fail(ErrorCode::kUnsupported,
                "{}: a reference into this schema (\"#/...\") expected, \"{}\" found",
                reference.path, text);
  }
  SchemaPart part = root_;
  for (std::size_t begin = 1; begin < text.size();) {
    const std::size_t end = std::min(text.find('/', begin + 1), text.size());
    const std::string key = DecodePointerToken(text.substr(begin + 1, end - begin - 1));
    begin = end;
    bool found = false;
    for (const JsonMember& member : part.value->members()) {
      if (member.key != key) continue;
      part = part.Member(member);
      found = true;
      break;
    }
    for (std::size_t i = 0; !found && i < part.value->items().size(); ++i) {
      if (std::to_string(i) != key) continue;
      part = part.Item(i);
      found = true;
    }
    if (!found) {
      return Fail(ErrorCode::kUsage, "{}: \"{}\" leads to nothing in this schema", reference.path,
                  text);
    }
  }
  resolved_.emplace(text, part);
  return part;
}

}  // namespace megalith::text::grammar
