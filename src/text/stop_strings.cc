#include "text/stop_strings.h"

#include <algorithm>

namespace megalith::text {
namespace {

std::vector<std::size_t> MakeFallback(std::string_view text) {
  std::vector<std::size_t> fallback(text.size(), 0);
  for (std::size_t i = 1; i < text.size(); ++i) {
    std::size_t length = fallback[i - 1];
    while (length > 0 && text[i] != text[length]) length = fallback[length - 1];
    if (text[i] == text[length]) ++length;
    fallback[i] = length;
  }
  return fallback;
}

}  // namespace

Result<StopStringFilter> StopStringFilter::Create(std::vector<std::string> stop_strings) {
  StopStringFilter filter;
  for (std::size_t i = 0; i < stop_strings.size(); ++i) {
    if (stop_strings[i].empty()) {
      return Fail(ErrorCode::kUsage, "stop[{}]: text expected, an empty string found", i);
    }
    std::vector<std::size_t> fallback = MakeFallback(stop_strings[i]);
    filter.patterns_.push_back({std::move(stop_strings[i]), std::move(fallback), 0});
  }
  return filter;
}

void StopStringFilter::Push(std::string_view text, std::string& out) {
  if (stopped()) return;
  if (patterns_.empty()) {
    out.append(text);
    return;
  }
  held_.append(text);
  const std::size_t num_old_bytes = held_.size() - text.size();
  std::size_t num_pending = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    num_pending = 0;
    std::size_t match_length = 0;
    for (std::size_t p = 0; p < patterns_.size(); ++p) {
      Pattern& pattern = patterns_[p];
      std::size_t& length = pattern.num_matched;
      while (length > 0 && text[i] != pattern.text[length]) length = pattern.fallback[length - 1];
      if (text[i] == pattern.text[length]) ++length;
      if (length == pattern.text.size() && length > match_length) {
        match_length = length;
        matched_ = p;
      }
      num_pending = std::max(num_pending, length);
    }
    if (stopped()) {
      out.append(held_, 0, num_old_bytes + i + 1 - match_length);
      held_.clear();
      return;
    }
  }
  if (text.empty()) return;
  out.append(held_, 0, held_.size() - num_pending);
  held_.erase(0, held_.size() - num_pending);
}

void StopStringFilter::Flush(std::string& out) {
  out.append(held_);
  held_.clear();
  for (Pattern& pattern : patterns_) pattern.num_matched = 0;
}

}  // namespace megalith::text
