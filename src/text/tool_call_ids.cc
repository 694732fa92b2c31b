#include "text/tool_call_ids.h"

#include <random>
#include <string_view>

namespace megalith::text {
namespace {

std::uint64_t SystemSeed() {
  std::random_device device;
  const std::uint64_t high = device();
  return (high << 32) | device();
}

// SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t NextRandom(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15u;
  std::uint64_t x = state;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

ToolCallIds::ToolCallIds() : state_(SystemSeed()) {}

void ToolCallIds::Exclude(const Conversation& conversation) {
  for (const Message& message : conversation) {
    for (const ToolCall& call : message.tool_calls) taken_.insert(call.id);
    taken_.insert(message.tool_call_id);
  }
}

std::string ToolCallIds::Next() {
  constexpr std::string_view kCharacters = "abcdefghijklmnopqrstuvwxyz0123456789";
  constexpr int kNumCharacters = 24;
  for (;;) {
    std::string id = "call_";
    for (int i = 0; i < kNumCharacters; ++i) {
      id.push_back(kCharacters[NextRandom(state_) % kCharacters.size()]);
    }
    if (taken_.insert(id).second) return id;
  }
}

}  // namespace megalith::text
