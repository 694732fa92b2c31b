#include "line_reader.h"

#include <unistd.h>

#include <cerrno>

namespace megalith::apps {

LineReader::Outcome LineReader::Read(std::string& line) {
  while (true) {
    if (const std::size_t end = pending_.find('\n'); end != std::string::npos) {
      line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return Outcome::kLine;
    }
    if (ended_) {
      if (pending_.empty()) return Outcome::kEnd;
      line = std::move(pending_);
      pending_.clear();
      return Outcome::kLine;
    }
    char chunk[4096];
    const ssize_t size = read(descriptor_, chunk, sizeof chunk);
    if (size < 0 && errno == EINTR) {
      pending_.clear();
      return Outcome::kInterrupted;
    }
    if (size <= 0) {
      ended_ = true;
    } else {
      pending_.append(chunk, static_cast<std::size_t>(size));
    }
  }
}

}  // namespace megalith::apps
