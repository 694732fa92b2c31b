#pragma once

// JSON numbers, with or without bounds, as edges over digits.

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/grammar/byte_grammar.h"

namespace megalith::text::grammar {

/// Digits before the point that a number may have: what 64-bit integers have. Bounds and literals
/// with more widen it.
inline constexpr std::size_t kMaxWholeDigits = 19;
/// Digits behind the point: more than any float has that is written without an exponent.
inline constexpr std::size_t kMaxFractionDigits = 22;

/// A decimal number, exactly.
struct Decimal {
  bool negative = false;  ///< never for zero
  std::string whole;      ///< digits, "0" or without leading zeros
  std::string fraction;   ///< digits without trailing zeros

  /// `text`: a JSON number. kUnsupported if it has more than 64 digits on either side of the point.
  static Result<Decimal> Parse(std::string_view text);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

/// < 0, 0, > 0.
int Compare(const Decimal& a, const Decimal& b);

struct NumberBounds {
  struct Bound {
    Decimal value;
    bool exclusive = false;
  };
  std::optional<Bound> min;
  std::optional<Bound> max;

  bool any() const { return min || max; }
  void RaiseMin(const Bound& bound);
  void LowerMax(const Bound& bound);
};

/// All numbers: at most kMaxWholeDigits, then maybe a point and at most kMaxFractionDigits, then
/// maybe an exponent that keeps them finite. `integer`: neither point nor exponent.
void AddNumber(GrammarBuilder& builder, StateId from, bool integer, StateId to);

/// The numbers within the bounds, written without exponent.
void AddBoundedNumber(GrammarBuilder& builder, StateId from, const NumberBounds& bounds,
                      bool integer, StateId to);

}  // namespace megalith::text::grammar
