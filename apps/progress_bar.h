#pragma once

#include <cstdint>
#include <string>

#include "base/progress.h"

namespace megalith::apps {

/// A line on stderr that is rewritten in place: stage, percent, amount, rate, time left. Shown only
/// if stderr is a terminal and the user did not ask for quiet.
class ProgressBar {
 public:
  explicit ProgressBar(bool quiet);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Update(const Progress& progress);
  /// For operations that take one. The bar must outlive it.
  ProgressCallback Callback() {
    return [this](const Progress& progress) { Update(progress); };
  }
  /// Removes the line.
  void Clear();

 private:
  bool enabled_;
  bool visible_ = false;
  std::string stage_;
  std::int64_t stage_start_ns_ = 0;
  std::int64_t last_drawn_ns_ = 0;
};

}  // namespace megalith::apps
