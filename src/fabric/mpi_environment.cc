#include <cstdlib>

#include "fabric/mpi.h"

namespace megalith::fabric {

bool StartedByMpi() {
  // MPICH and its relatives, PMIx (Open MPI, Slurm), Open MPI, MVAPICH.
  for (const char* name :
       {"PMI_RANK", "PMI_FD", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"}) {
    if (std::getenv(name) != nullptr) return true;  // NOLINT(concurrency-mt-unsafe)
  }
  return false;
}

}  // namespace megalith::fabric
