#pragma once

// Replayed turns in a file, so that they outlive the process.
//
//   bytes 0..8   "MEGAREPL"
//   records: u32 key_bytes, u32 num_ids, the key, num_ids x i32, u64 checksum of all of it
//
// Little endian. Records are appended one write each; what a killed process left half written is
// cut off at the next start.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/token_id.h"

namespace megalith::serve {

class ReplayLog {
 public:
  using Record = std::function<void(std::string key, std::vector<text::TokenId> ids)>;

  /// Opens or makes the file, for its owner alone, and calls `on_record` for all that it holds in
  /// the order they came. kIo with the system's reason; kUsage if another process has it open.
  static Result<std::unique_ptr<ReplayLog>> Open(const std::string& path, const Record& on_record);
  ~ReplayLog();
  ReplayLog(const ReplayLog&) = delete;
  ReplayLog& operator=(const ReplayLog&) = delete;

  /// kIo: the disk is full, for example. The file then still ends with a whole record.
  Status Append(std::string_view key, std::span<const text::TokenId> ids);

  /// Forgets everything in it.
  Status Clear();

  std::uint64_t num_bytes() const { return num_bytes_; }

 private:
  ReplayLog(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  Status Read(const Record& on_record);
  Status Truncate(std::uint64_t bytes);

  std::string path_;
  int descriptor_;
  std::uint64_t num_bytes_ = 0;
};

}  // namespace megalith::serve
