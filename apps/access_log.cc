#include "access_log.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

namespace megalith::apps {

Result<std::unique_ptr<AccessLog>> AccessLog::Open(const std::string& path) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "ae");
  if (file == nullptr) {
    return Fail(ErrorCode::kIo, "{}: cannot be written: {}", path, std::strerror(errno));
  }
  return std::unique_ptr<AccessLog>(new AccessLog(file));
}

AccessLog::~AccessLog() {
  if (file_ != stdout) std::fclose(file_);
}

void AccessLog::Write(const serve::http::AccessRecord& record) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const nlohmann::ordered_json line = {{"time", now},
                                       {"request_id", record.request_id},
                                       {"client", record.client},
                                       {"method", record.method},
                                       {"path", record.path},
                                       {"status", record.status},
                                       {"sent_bytes", record.sent_bytes},
                                       {"seconds", record.seconds},
                                       {"finished", record.finished}};
  // A path may hold any bytes.
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const std::lock_guard lock(mutex_);
  std::fwrite(text.data(), 1, text.size(), file_);
  std::fflush(file_);
}

}  // namespace megalith::apps
