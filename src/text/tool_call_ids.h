#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>

#include "text/chat.h"

namespace megalith::text {

/// Makes ids for generated tool calls: "call_" and 24 random characters. Random rather than
/// counted, because an id must be new over the whole conversation, whose earlier turns other
/// servers may have answered.
class ToolCallIds {
 public:
  ToolCallIds();  ///< seeded by the operating system
  explicit ToolCallIds(std::uint64_t seed) : state_(seed) {}

  /// Never returns an id that stands in this conversation.
  void Exclude(const Conversation& conversation);

  std::string Next();

 private:
  std::uint64_t state_;
  std::unordered_set<std::string> taken_;
};

}  // namespace megalith::text
