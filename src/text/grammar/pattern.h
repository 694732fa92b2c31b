#pragma once

// Regular expressions of JSON schemas (`pattern`) as automata.

#include <string_view>

#include "base/result.h"
#include "text/grammar/code_point_dfa.h"

namespace megalith::text::grammar {

/// Longest pattern that is read, in bytes.
inline constexpr std::size_t kMaxPatternBytes = 4096;

/// The strings in which `pattern` matches somewhere, as ECMA-262 with the flag u and JSON schema
/// define it: not anchored unless it says ^ and $.
///
/// Read: characters, `.`, classes with ranges and negation, \d \D \w \W \s \S, \t \n \r \f \v \0,
/// \xHH, \uHHHH (pairs of surrogates too), \u{H...}, escaped punctuation, groups of all capturing
/// kinds, alternation, ? * + {n} {n,} {n,m} (also lazy: the same set of strings), ^ at the start
/// and $ at the end of the pattern or of an outermost alternative.
/// kUnsupported, saying where: look-around, back-references, \b \B, \p \P, \c, anchors elsewhere,
/// patterns that need too many states. kUsage: not a regular expression.
Result<CodePointDfa> CompilePattern(std::string_view pattern);

}  // namespace megalith::text::grammar
