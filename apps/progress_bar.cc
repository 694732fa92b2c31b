#include "progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/clock.h"
#include "base/units.h"
#include "console.h"

namespace megalith::apps {

ProgressBar::ProgressBar(bool quiet) : enabled_(!quiet && isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() { Clear(); }

void ProgressBar::Clear() {
  if (!visible_) return;
  Note("\r\033[K");
  visible_ = false;
}

void ProgressBar::Update(const Progress& progress) {
  if (!enabled_) return;
  const std::int64_t now = NowNs();
  if (progress.stage != stage_) {
    stage_ = progress.stage;
    stage_start_ns_ = now;
  } else if (now - last_drawn_ns_ < 100'000'000 && progress.done < progress.total) {
    return;  // ten times a second is enough for people
  }
  last_drawn_ns_ = now;
  const auto amount = [&progress](std::uint64_t value) {
    return progress.in_bytes ? FormatBytes(value) : fmt::format("{}", value);
  };
  std::string line = fmt::format("{} {}", stage_, amount(progress.done));
  if (progress.total > 0) {
    line +=
        fmt::format(" of {} ({}%)", amount(progress.total), progress.done * 100 / progress.total);
  }
  const double seconds = static_cast<double>(now - stage_start_ns_) * 1e-9;
  if (seconds > 0.5 && progress.done > 0) {
    const double rate = static_cast<double>(progress.done) / seconds;
    line += fmt::format(", {}/s", amount(static_cast<std::uint64_t>(rate)));
    if (progress.total > progress.done) {
      line += fmt::format(", {:.0f} s left",
                          static_cast<double>(progress.total - progress.done) / rate);
    }
  }
  Note("\r\033[K{}", line);
  std::fflush(stderr);
  visible_ = true;
  // What comes next may print: a finished line must not stay in front of it.
  if (progress.total > 0 && progress.done >= progress.total) Clear();
}

}  // namespace megalith::apps
