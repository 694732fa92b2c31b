#pragma once

namespace megalith::fabric {

/// MPI_Finalize, after all ranks have agreed that no message is on its way. `remote`: whether ranks
/// of other hosts were spoken to.
///
/// MPICH before 4.2 over UCX may hang there when endpoints to other hosts are open: a process that
/// waits for the launcher at the end no longer answers those that still close connections. With the
/// MPICH 4.0.2 of Debian 12 about half of all jobs over TCP hang. For it, this tells the launcher
/// over its socket that the process ends in order (PMI-1's `finalize`), and leaves MPI as it is.
void FinalizeMpi(bool remote);

}  // namespace megalith::fabric
