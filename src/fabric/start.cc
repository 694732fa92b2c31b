#include "fabric/start.h"

#include "fabric/inproc.h"

namespace megalith::fabric {

Result<std::unique_ptr<Fabric>> StartFabric(const MpiOptions& options) {
  if (StartedByMpi()) return StartMpiJob(options);
  MEGALITH_ASSIGN_OR_RETURN(auto job, MakeInprocJob(1, options));
  return std::move(job.front());
}

}  // namespace megalith::fabric
