#include "fabric/mpi_finalize.h"

#include <mpi.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace megalith::fabric {
namespace {

constexpr int kAnswerTimeoutMs = 5'000;

/// Whether this MPI library is an MPICH before 4.2.
bool IsOldMpich() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  int major = 0;
  int minor = 0;
  return std::sscanf(text, "MPICH Version: %d.%d", &major, &minor) == 2 &&
         (major < 4 || (major == 4 && minor < 2));
}

/// Says farewell to a PMI-1 launcher. False if there is none, or it does not answer.
bool FinalizePmi() {
  const char* number = std::getenv("PMI_FD");  // NOLINT(concurrency-mt-unsafe)
  if (number == nullptr) return false;
  const int launcher = std::atoi(number);
  constexpr std::string_view kRequest = "cmd=finalize\n";
  if (::write(launcher, kRequest.data(), kRequest.size()) !=
      static_cast<ssize_t>(kRequest.size())) {
    return false;
  }
  pollfd waiting{launcher, POLLIN, 0};
  char answer[256];
  return ::poll(&waiting, 1, kAnswerTimeoutMs) == 1 && ::read(launcher, answer, sizeof answer) > 0;
}

}  // namespace

void FinalizeMpi(bool remote) {
  if (remote && IsOldMpich() && FinalizePmi()) return;
  MPI_Finalize();
}

}  // namespace megalith::fabric
