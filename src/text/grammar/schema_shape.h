#pragma once

// JSON schemas as alternatives of plain requirements: references followed, allOf joined, anyOf and
// oneOf multiplied out.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/grammar/numbers.h"
#include "text/json_value.h"

namespace megalith::text::grammar {

/// Sets of JSON types, as bits. Numbers are integers and the others.
using TypeSet = std::uint8_t;
inline constexpr TypeSet kNullType = 0x01;
inline constexpr TypeSet kBooleanType = 0x02;
inline constexpr TypeSet kIntegerType = 0x04;
inline constexpr TypeSet kFractionType = 0x08;
inline constexpr TypeSet kNumberType = kIntegerType | kFractionType;
inline constexpr TypeSet kStringType = 0x10;
inline constexpr TypeSet kArrayType = 0x20;
inline constexpr TypeSet kObjectType = 0x40;
inline constexpr TypeSet kAllTypes = 0x7F;

/// The one type of a value.
TypeSet TypeOf(const JsonValue& value);

/// A schema or a part of one, and where it stands.
struct SchemaPart {
  const JsonValue* value = nullptr;
  std::string path;

  /// The member or item, with its path.
  SchemaPart Member(const JsonMember& member) const;
  SchemaPart Item(std::size_t idx) const;
};

/// Schemas that must all hold. None: everything does.
using Conjunction = std::vector<SchemaPart>;

/// What a value must satisfy, without alternatives. Requirements on values of one type say nothing
/// about values of the others.
struct Shape {
  TypeSet types = kAllTypes;
  /// enum and const: the values that are left. No other requirement but `types` stands beside it.
  std::optional<std::vector<const JsonValue*>> literals;

  struct Pattern {
    std::string pattern;  ///< or the name of a format
    std::string path;
    bool is_format = false;
  };
  std::uint32_t min_length = 0;
  std::optional<std::uint32_t> max_length;
  std::vector<Pattern> patterns;  ///< all must match

  NumberBounds bounds;

  /// prefixItems and items of one schema.
  struct Items {
    std::vector<SchemaPart> prefix;
    std::optional<SchemaPart> rest;
  };
  std::vector<Items> items;
  std::uint32_t min_items = 0;
  std::optional<std::uint32_t> max_items;

  /// properties and additionalProperties of one schema.
  struct Members {
    std::vector<std::pair<std::string_view, SchemaPart>> properties;  ///< in their order
    std::map<std::string_view, std::size_t> by_name;                  ///< into properties
    std::optional<SchemaPart> additional;
  };
  std::vector<Members> members;
  std::vector<std::string> required;  ///< each once

  /// What the item at `idx` must satisfy.
  Conjunction ItemAt(std::size_t idx) const;
  /// Items that have requirements of their own.
  std::size_t num_prefix_items() const;
  /// What the member must satisfy.
  Conjunction MemberNamed(std::string_view name) const;
  /// What members without a schema of their own must satisfy.
  Conjunction AdditionalMembers() const;
  /// Names in `properties`, then further ones in `required`; each once.
  std::vector<std::string> MemberNames() const;
};

/// True if a schema of the conjunction is `false`.
bool IsNever(const Conjunction& conjunction);

class SchemaReader {
 public:
  static constexpr std::size_t kMaxNodes = 50'000;
  static constexpr std::size_t kMaxAlternatives = 256;
  /// References, allOf and anyOf followed inside each other for one value.
  static constexpr int kMaxNesting = 64;

  /// `path`: of the root, for messages. `root` must outlive the reader and all it returns.
  SchemaReader(const JsonValue& root, std::string path);

  /// kOutOfRange if the schema has more than kMaxNodes values.
  Status CheckSize() const;

  Conjunction root() const { return {root_}; }

  /// A value satisfies the conjunction if it satisfies one of these. kUnsupported names a keyword
  /// that is not implemented, kUsage one whose value no schema may have, both by path.
  Result<std::vector<Shape>> Read(const Conjunction& conjunction);

 private:
  // Schemas whose own keywords all apply.
  using Leaves = std::vector<SchemaPart>;

  Result<std::vector<Leaves>> Expand(const SchemaPart& schema);
  Result<std::vector<Leaves>> ExpandUnion(const SchemaPart& list);
  Status Multiply(std::vector<Leaves>& product, std::vector<Leaves> factors,
                  const std::string& path);
  Status CountWork(std::size_t amount, const std::string& path);
  Result<SchemaPart> Resolve(const SchemaPart& reference);

  // Schemas looked at for all values together; about a second.
  static constexpr std::size_t kMaxWork = 5'000'000;

  SchemaPart root_;
  std::size_t work_ = 0;
  std::vector<const JsonValue*> open_;                       // being expanded
  std::map<std::string, SchemaPart, std::less<>> resolved_;  // by reference
};

}  // namespace megalith::text::grammar
