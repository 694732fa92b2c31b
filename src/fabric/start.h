#pragma once

#include <memory>

#include "fabric/mpi.h"

namespace megalith::fabric {

/// The job this process was started in: under mpirun one rank of it, else the only rank of its own.
/// Errors: those of StartMpiJob.
Result<std::unique_ptr<Fabric>> StartFabric(const MpiOptions& options = {});

}  // namespace megalith::fabric
