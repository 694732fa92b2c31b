#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace megalith::text {

/// Cuts a stream of text at the first stop string. Text that could be the beginning of a stop
/// string is held back, never more than the longest stop string less one byte; nothing is ever
/// taken back. The first stop string that is complete wins; of those complete at the same place,
/// the longest. So the result does not depend on how the text was chunked.
class StopStringFilter {
 public:
  /// Any number of stop strings, none included. kUsage for an empty one.
  static Result<StopStringFilter> Create(std::vector<std::string> stop_strings);

  StopStringFilter() = default;  ///< no stop strings: passes everything

  /// Appends to `out` what is safe to send. Text pushed after a stop is dropped.
  void Push(std::string_view text, std::string& out);

  /// The text ends here without a stop: appends what was held back and starts anew. After a stop
  /// it does nothing.
  void Flush(std::string& out);

  bool stopped() const { return matched_.has_value(); }
  /// Index of the stop string that was found.
  std::optional<std::size_t> matched() const { return matched_; }

 private:
  struct Pattern {
    std::string text;
    // [text.size()]: length of the longest proper prefix of text[0..i] that is also its suffix
    // (Knuth, Morris, Pratt), so that every byte is looked at once.
    std::vector<std::size_t> fallback;
    std::size_t num_matched = 0;
  };

  std::vector<Pattern> patterns_;
  std::string held_;
  std::optional<std::size_t> matched_;
};

}  // namespace megalith::text
