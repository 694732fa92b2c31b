#include "text/grammar/numbers.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

namespace megalith::text::grammar {
namespace {

constexpr std::size_t kMaxDecimalDigits = 64;

void AddDigits(GrammarBuilder& builder, StateId from, int first, int last, StateId to) {
  builder.AddSymbols(from, static_cast<Symbol>('0' + first), static_cast<Symbol>('0' + last), to);
}

// 1 to `max_digits` digits.
void AddDigitRun(GrammarBuilder& builder, StateId from, std::size_t max_digits, StateId to) {
  for (std::size_t i = 0; i < max_digits; ++i) {
    const StateId next = builder.NewState();
    AddDigits(builder, from, 0, 9, next);
    builder.AddEmpty(next, to);
    from = next;
  }
}

// The digits of a bound's magnitude by position, zeros behind the last.
class BoundDigits {
 public:
  BoundDigits(const Decimal& value, bool exclusive) : value_(&value), exclusive_(exclusive) {}

  std::size_t num_whole() const { return value_->whole.size(); }
  std::size_t num_fraction() const { return value_->fraction.size(); }
  bool exclusive() const { return exclusive_; }

  int operator[](std::size_t position) const {
    if (position < num_whole()) return value_->whole[position] - '0';
    position -= num_whole();
    return position < num_fraction() ? value_->fraction[position] - '0' : 0;
  }
  bool OnlyZerosFrom(std::size_t position) const {
    for (; position < num_whole() + num_fraction(); ++position) {
      if ((*this)[position] != 0) return false;
    }
    return true;
  }

 private:
  const Decimal* value_;
  bool exclusive_;
};

// Numbers without a sign from `low` to `high`, digit by digit: so long as all digits so far are
// those of a bound, the next one is compared with it, too.
class MagnitudeEdges {
 public:
  MagnitudeEdges(GrammarBuilder& builder, std::optional<BoundDigits> low,
                 std::optional<BoundDigits> high, bool integer, StateId to)
      : builder_(builder), low_(low), high_(high), to_(to) {
    if (!integer) {
      max_fraction_ = kMaxFractionDigits;
      for (const auto& bound : {low, high}) {
        if (bound) max_fraction_ = std::max(max_fraction_, bound->num_fraction() + 1);
      }
    }
  }

  void AddTo(StateId from) {
    const std::size_t fewest = low_ ? low_->num_whole() : 1;
    const std::size_t most =
        high_ ? high_->num_whole() : std::max(kMaxWholeDigits, low_ ? low_->num_whole() : 0);
    for (num_whole_ = fewest; num_whole_ <= most; ++num_whole_) {
      const bool at_low = low_ && low_->num_whole() == num_whole_;
      const bool at_high = high_ && high_->num_whole() == num_whole_;
      builder_.AddEmpty(from, StateAt(0, at_low, at_high));
    }
  }

 private:
  // The state before digit `position` of a number with num_whole_ digits before the point.
  // `at_low`, `at_high`: all digits so far are those of the bound.
  StateId StateAt(std::size_t position, bool at_low, bool at_high) {
    // Between the bounds only the distance to the point matters.
    const bool between = !at_low && !at_high && position > 0;
    const std::tuple key(between ? 0 : num_whole_,
                         between ? kMaxDecimalDigits + position - num_whole_ : position, at_low,
                         at_high);
    const auto it = states_.find(key);
    if (it != states_.end()) return it->second;
    const StateId state = builder_.NewState();
    states_.emplace(key, state);
    if (position < num_whole_) {
      // Only a lone zero starts with zero.
      AddDigitEdges(state, position, position == 0 && num_whole_ > 1 ? 1 : 0, at_low, at_high);
      return state;
    }
    if (MayEnd(position, at_low, at_high)) builder_.AddEmpty(state, to_);
    if (position < num_whole_ + max_fraction_) {
      const StateId digit = position == num_whole_ ? builder_.AddSymbol(state, '.') : state;
      AddDigitEdges(digit, position, 0, at_low, at_high);
    }
    return state;
  }

  void AddDigitEdges(StateId from, std::size_t position, int first, bool at_low, bool at_high) {
    const int low = at_low ? (*low_)[position] : 0;
    const int high = at_high ? (*high_)[position] : 9;
    for (int digit = std::max(first, low); digit <= high; ++digit) {
      const StateId next = StateAt(position + 1, at_low && digit == low, at_high && digit == high);
      AddDigits(builder_, from, digit, digit, next);
    }
  }

  bool MayEnd(std::size_t position, bool at_low, bool at_high) const {
    if (at_low && (low_->exclusive() || !low_->OnlyZerosFrom(position))) return false;
    return !at_high || !high_->exclusive() || !high_->OnlyZerosFrom(position);
  }

  GrammarBuilder& builder_;
  std::optional<BoundDigits> low_;
  std::optional<BoundDigits> high_;
  StateId to_;
  std::size_t max_fraction_ = 0;
  std::size_t num_whole_ = 0;
  std::map<std::tuple<std::size_t, std::size_t, bool, bool>, StateId> states_;
};

}  // namespace

Result<Decimal> Decimal::Parse(std::string_view text) {
  Decimal decimal;
  decimal.negative = text.starts_with('-');
  if (decimal.negative) text.remove_prefix(1);
  int exponent = 0;
  if (const std::size_t mark = text.find_first_of("eE"); mark != std::string_view::npos) {
    std::string_view digits = text.substr(mark + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    if (read.ec != std::errc()) exponent = 1 << 20;
    text = text.substr(0, mark);
  }
  const std::size_t point = std::min(text.find('.'), text.size());
  std::string digits(text.substr(0, point));
  auto num_whole = static_cast<std::int64_t>(digits.size());
  if (point < text.size()) digits += text.substr(point + 1);
  num_whole += exponent;
  const auto limit = static_cast<std::int64_t>(kMaxDecimalDigits);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos ||
      num_whole > limit || static_cast<std::int64_t>(digits.size()) - num_whole > limit) {
    return Fail(ErrorCode::kUnsupported,
                "a number with at most {} digits before and behind the point expected",
                kMaxDecimalDigits);
  }
  if (num_whole < 0) digits.insert(0, static_cast<std::size_t>(-num_whole), '0');
  const auto at = static_cast<std::size_t>(std::max<std::int64_t>(num_whole, 0));
  if (digits.size() < at) digits.resize(at, '0');
  decimal.whole = digits.substr(0, at);
  decimal.fraction = digits.substr(at);
  decimal.whole.erase(0, std::min(decimal.whole.find_first_not_of('0'), decimal.whole.size()));
  if (decimal.whole.empty()) decimal.whole.push_back('0');
  while (decimal.fraction.ends_with('0')) decimal.fraction.pop_back();
  if (decimal.is_zero()) decimal.negative = false;
  return decimal;
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int order = 0;
  if (a.whole.size() != b.whole.size()) {
    order = a.whole.size() < b.whole.size() ? -1 : 1;
  } else {
    order = a.whole.compare(b.whole);
    if (order == 0) order = a.fraction.compare(b.fraction);
  }
  return a.negative ? -order : order;
}

void NumberBounds::RaiseMin(const Bound& bound) {
  const int order = min ? Compare(bound.value, min->value) : 1;
  if (order > 0 || (order == 0 && bound.exclusive)) min = bound;
}

void NumberBounds::LowerMax(const Bound& bound) {
  const int order = max ? Compare(bound.value, max->value) : -1;
  if (order < 0 || (order == 0 && bound.exclusive)) max = bound;
}

void AddNumber(GrammarBuilder& builder, StateId from, bool integer, StateId to) {
  const StateId unsigned_ = builder.AddSymbol(from, '-');
  builder.AddEmpty(from, unsigned_);
  const StateId whole = builder.NewState();
  AddDigits(builder, unsigned_, 0, 0, whole);
  const StateId first_digit = builder.NewState();
  AddDigits(builder, unsigned_, 1, 9, first_digit);
  builder.AddEmpty(first_digit, whole);
  AddDigitRun(builder, first_digit, kMaxWholeDigits - 1, whole);
  builder.AddEmpty(whole, to);
  if (integer) return;
  const StateId fraction = builder.NewState();
  AddDigitRun(builder, builder.AddSymbol(whole, '.'), kMaxFractionDigits, fraction);
  builder.AddEmpty(fraction, to);
  // Exponents from -999 to 279.
  const StateId exponent = builder.NewState();
  for (const StateId state : {whole, fraction}) {
    builder.AddSymbol(state, 'e', exponent);
    builder.AddSymbol(state, 'E', exponent);
  }
  AddDigitRun(builder, builder.AddSymbol(exponent, '-'), 3, to);
  const StateId positive = builder.AddSymbol(exponent, '+');
  builder.AddEmpty(exponent, positive);
  AddDigitRun(builder, positive, 2, to);
  const StateId hundreds = builder.AddSymbol(positive, '1');
  AddDigits(builder, positive, 0, 0, hundreds);
  const StateId tens = builder.NewState();
  AddDigits(builder, hundreds, 0, 9, tens);
  const StateId two_hundreds = builder.AddSymbol(positive, '2');
  AddDigits(builder, two_hundreds, 0, 7, tens);
  AddDigits(builder, tens, 0, 9, to);
}

void AddBoundedNumber(GrammarBuilder& builder, StateId from, const NumberBounds& bounds,
                      bool integer, StateId to) {
  const auto digits = [](const NumberBounds::Bound& bound) {
    return BoundDigits(bound.value, bound.exclusive);
  };
  const auto& [min, max] = bounds;
  if (min && max) {
    const int order = Compare(min->value, max->value);
    if (order > 0 || (order == 0 && (min->exclusive || max->exclusive))) return;
  }
  // From zero on.
  if (!max || !max->value.negative) {
    std::optional<BoundDigits> low;
    std::optional<BoundDigits> high;
    if (min && !min->value.negative) low = digits(*min);
    if (max) high = digits(*max);
    MagnitudeEdges(builder, low, high, integer, to).AddTo(from);
  }
  // Below zero: the magnitudes lie the other way round. "-0" is left out.
  if (!min || min->value.negative) {
    static const Decimal zero = {false, "0", ""};
    std::optional<BoundDigits> low = BoundDigits(zero, true);
    std::optional<BoundDigits> high;
    if (max && max->value.negative) low = digits(*max);
    if (min) high = digits(*min);
    MagnitudeEdges(builder, low, high, integer, to).AddTo(builder.AddSymbol(from, '-'));
  }
}

}  // namespace megalith::text::grammar
