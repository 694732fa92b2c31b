#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "fabric/fabric.h"

namespace megalith::bench {

/// What is measured between ranks.
enum class ExchangeOp : std::uint8_t {
  kAllGather,     ///< every rank puts its bytes for all and copies those of all
  kReduce,        ///< every rank puts floats for all and adds up those of all, in rank order
  kMpiAllGather,  ///< MPI_Allgather of the same
  kMpiAllReduce,  ///< MPI_Allreduce of the same
};
/// "all-gather", "reduce", "MPI_Allgather", "MPI_Allreduce".
const char* ExchangeOpName(ExchangeOp op);

/// One operation of one size, as rank 0 saw it.
struct ExchangeCost {
  ExchangeOp op;
  std::size_t bytes;  ///< that each rank gives; a multiple of 4
  int num_exchanges;
  double median_us, p99_us, min_us;
};

struct ExchangeOptions {
  std::vector<std::size_t> bytes;
  int num_exchanges = 1000;  ///< of the smallest sizes; fewer where that would move many bytes
  int num_rounds = 3;        ///< the operations take turns so many times
  bool with_mpi = false;     ///< measure MPI's own collectives too: an MPI job
};

/// Collective: measures all sizes; the costs are right on rank 0 only. Checks that the results of
/// every first exchange are right. kUsage for sizes that are no multiple of 4; kInternal for wrong
/// results; the errors of the fabric.
Result<std::vector<ExchangeCost>> MeasureExchange(fabric::Fabric& fabric,
                                                  const ExchangeOptions& options);

}  // namespace megalith::bench
