#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "fabric/memory_region.h"

namespace megalith::fabric {

/// How the processes of one host find each other: through a Unix socket with an abstract name made
/// of the user and the job id, which nobody else can have and which disappears with the process.
struct Rendezvous {
  std::string job_id;  ///< 1 to 64 letters, digits, '-', '_' or '.'; other for every job
  std::vector<std::uint32_t> ranks;  ///< of all members; members are numbered by position
  std::uint32_t member;              ///< this process
  std::int64_t timeout_ms;           ///< until all are there
};

/// Member 0 hands its shared file to all others; each member calls `take` with it and holds on to
/// it. Returns the file when all have. Processes of other users are refused. `file` is member 0's,
/// invalid on the others. Errors: kUsage (job id, numbers, a member that is there twice, another
/// number of members), that of `take`, kIo with who has not come or has gone.
Result<Descriptor> Meet(const Rendezvous& rendezvous, Descriptor file,
                        const std::function<Status(const Descriptor&)>& take);

}  // namespace megalith::fabric
