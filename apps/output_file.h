#pragma once

#include <span>
#include <string>

#include "base/result.h"

namespace megalith::apps {

/// A file that appears complete or not at all: written under another name in the same folder and
/// renamed at the end. "-" is stdout; devices and pipes are written directly.
class OutputFile {
 public:
  /// Opens for writing now, so that a path that cannot work fails before the work. kUsage, kIo.
  static Result<OutputFile> Create(const std::string& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  /// Writes everything and gives the file its name. Once. kIo with the system's reason.
  Status Commit(std::span<const char> bytes);

 private:
  OutputFile(int descriptor, std::string path, std::string temporary)
      : descriptor_(descriptor), path_(std::move(path)), temporary_(std::move(temporary)) {}

  int descriptor_;
  std::string path_;
  std::string temporary_;  // empty: written directly
};

}  // namespace megalith::apps
