#pragma once

#include <string>

namespace megalith::apps {

/// Lines from a file descriptor; unlike std::getline it tells when a signal came in between.
class LineReader {
 public:
  enum class Outcome { kLine, kEnd, kInterrupted };

  explicit LineReader(int descriptor) : descriptor_(descriptor) {}

  /// kLine: `line` is the next line without its end (the last one may lack it). After
  /// kInterrupted what has been typed so far is dropped, as shells do.
  Outcome Read(std::string& line);

 private:
  int descriptor_;
  std::string pending_;
  bool ended_ = false;
};

}  // namespace megalith::apps
