#pragma once

#include <memory>
#include <span>

#include "fabric/fabric.h"

// MPI processes as ranks. Nothing here shows MPI's own header: what uses it is in a module that is
// loaded when needed (mpi_module.h), and may be missing.

namespace megalith::fabric {

/// Whether the process was started by mpirun or another MPI launcher, by its environment.
bool StartedByMpi();

struct MpiOptions : FabricOptions {
  /// At most so many ranks of a host exchange through shared memory; others through MPI as if they
  /// were on another host. 0: all. For tests, and where processes of a host cannot share memory.
  std::uint32_t max_ranks_sharing = 0;
};

/// Collective over MPI_COMM_WORLD, once per process; starts MPI unless the program has (with at
/// least MPI_THREAD_SERIALIZED). Ranks of one host exchange through shared memory, others through
/// MPI. Signals of death and stalling work across hosts, too.
///
/// Destroying the fabric waits for the other ranks to do the same, and ends MPI if this started it.
/// If the job has failed, it ends the process and all others through MPI_Abort with exit code 1, as
/// MPI knows no other way that leaves nobody behind: report the failure first.
///
/// Errors: kUnsupported without the MPI module or without thread support in MPI; those of
/// JoinShmJob.
Result<std::unique_ptr<Fabric>> StartMpiJob(const MpiOptions& options = {});

/// MPI's own collectives between the ranks of an MPI job, to measure against. Collective; false if
/// `fabric` is no MPI fabric.
bool MpiAllGather(Fabric& fabric, std::span<const std::byte> mine, std::span<std::byte> all);
/// Sums over the ranks, in MPI's order.
bool MpiAllReduce(Fabric& fabric, std::span<const float> mine, std::span<float> sum);

}  // namespace megalith::fabric
