#pragma once

// Exact replay of what the model wrote. Clients send an assistant message back as text and JSON;
// encoding that anew often gives other ids than were generated (another split of a word, another
// order of keys, 1.0 for 1), and a cached prefix ends at the first of them. Here a message finds
// the ids it was generated as.

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "serve/replay_log.h"
#include "text/chat.h"
#include "text/token_id.h"

namespace megalith::serve {

/// What makes two assistant messages the same to the model: reasoning, content (parts joined),
/// names and arguments of calls; arguments as JSON whose keys are sorted and whose whole numbers
/// have one spelling. Ids of calls do not count: they are not part of the prompt. `thinking`: the
/// mode, for its turns begin differently.
std::string CanonicalMessage(const text::Message& message, bool thinking);

/// Turns by canonical message; the least recently used go first. Thread-safe.
class ReplayStore {
 public:
  explicit ReplayStore(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// `ids`: of the whole turn behind the generation prefix, without the stop id. A turn larger than
  /// the limit is not kept.
  void Put(const text::Message& message, bool thinking, std::vector<text::TokenId> ids);

  std::optional<std::vector<text::TokenId>> Find(const text::Message& message, bool thinking);

  /// Keeps turns in a file from now on, and takes what it holds already. Errors: ReplayLog::Open;
  /// the store then goes on without a file.
  Status KeepIn(const std::string& path);

  std::size_t num_bytes() const;
  std::size_t num_turns() const;

 private:
  struct Turn {
    std::string key;
    std::vector<text::TokenId> ids;
  };
  static std::size_t Bytes(const Turn& turn);
  bool Insert(Turn turn);
  void Drop(std::list<Turn>::iterator turn);
  void Log(const Turn& turn);
  Status RewriteLog();

  const std::size_t limit_bytes_;
  mutable std::mutex mutex_;
  std::list<Turn> turns_;  // most recently used first
  std::unordered_map<std::string_view, std::list<Turn>::iterator> index_;  // keys lie in turns_
  std::size_t num_bytes_ = 0;
  std::unique_ptr<ReplayLog> log_;  // null: no file
};

}  // namespace megalith::serve
