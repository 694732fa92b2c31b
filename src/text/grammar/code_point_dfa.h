#pragma once

// Deterministic automata over characters, for string patterns.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/grammar/code_points.h"

namespace megalith::text::grammar {

struct CodePointDfa {
  static constexpr std::size_t kMaxStates = 4096;

  struct Edge {
    CodePointRange range;
    std::size_t target;
  };
  struct State {
    bool accepting = false;
    std::vector<Edge> edges;  ///< ascending, without overlaps
  };
  std::vector<State> states;  ///< starts in states[0]

  /// `text`: valid UTF-8.
  bool Accepts(std::string_view text) const;
};

/// Texts that both accept. kUnsupported if that needs more than kMaxStates.
Result<CodePointDfa> Intersect(const CodePointDfa& a, const CodePointDfa& b);

/// Texts of `dfa` with at least `min` and at most `max` characters. kUnsupported as above.
Result<CodePointDfa> LimitLength(const CodePointDfa& dfa, std::uint32_t min,
                                 std::optional<std::uint32_t> max);

/// All texts but these. `texts`: valid UTF-8.
CodePointDfa AllBut(const std::vector<std::string_view>& texts);

}  // namespace megalith::text::grammar
