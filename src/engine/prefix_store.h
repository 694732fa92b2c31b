#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "engine/prefix_index.h"
#include "exec/executor.h"
#include "exec/snapshot.h"

namespace megalith::engine {

struct PrefixStoreOptions {
  std::string directory;
  /// What the bits of a snapshot depend on: weights, numbers, layout. Files of another identity are
  /// kept apart. Letters and digits.
  std::string identity;
  std::int64_t limit_bytes = 0;  ///< of this identity's files: the least recently used go
  std::int32_t max_positions = 0;
};

/// Snapshots on disk, found by their tokens: they outlive the process. Files are written by a
/// thread of its own. Used on the thread that runs steps.
class PrefixStore {
 public:
  /// Looks at the files that are there; damaged ones are taken away. kIo if the folder cannot be
  /// used.
  static Result<std::unique_ptr<PrefixStore>> Open(const PrefixStoreOptions& options);
  /// Writes what still waits.
  ~PrefixStore();

  /// Tokens of the longest stored beginning of `prompt` that leaves one to run; 0: there is none.
  std::size_t FindLongest(std::span<const std::int32_t> prompt) const;
  /// The snapshot of exactly these tokens. kNotFound, kBadFile, kIo, and those of
  /// Executor::NewSnapshot; a file that cannot be used is taken away.
  Result<std::shared_ptr<const exec::Snapshot>> Read(std::span<const std::int32_t> tokens,
                                                     exec::Executor& executor);
  /// Stores it soon, unless it is there, or too much waits to be written already.
  void Write(std::span<const std::int32_t> tokens, std::shared_ptr<const exec::Snapshot> snapshot);
  /// Lets go of snapshots that have been written: on the thread that runs steps, now and then.
  void ReleaseWritten();

  std::int64_t bytes() const;
  std::size_t size() const;

 private:
  struct File {
    std::string path;
    std::int64_t bytes = 0;
    std::uint64_t last_use = 0;
  };
  struct Job {
    std::vector<std::int32_t> tokens;
    std::shared_ptr<const exec::Snapshot> snapshot;
  };

  explicit PrefixStore(PrefixStoreOptions options, std::string folder)
      : options_(std::move(options)), folder_(std::move(folder)) {}
  Status Scan();
  void Loop();
  void WriteOne(const Job& job);
  void MakeRoom(std::int64_t bytes);
  void Forget(PrefixIndex::Id id);

  const PrefixStoreOptions options_;
  const std::string folder_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Under mutex_.
  PrefixIndex index_;
  std::map<PrefixIndex::Id, File> files_;
  std::int64_t bytes_ = 0;
  std::uint64_t clock_ = 0;
  std::deque<Job> jobs_;
  std::vector<Job> written_;
  bool stop_ = false;

  std::thread thread_;
};

}  // namespace megalith::engine
