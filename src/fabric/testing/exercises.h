#pragma once

#include <cstdint>
#include <functional>

#include "fabric/fabric.h"

namespace megalith::fabric {

/// What every kind of fabric must do, as functions that all ranks call with the same arguments, so
/// that they can run in threads, in forked processes and under mpirun. They return what went wrong.

struct ExchangeExercise {
  int num_exchanges = 200;
  int num_workers = 1;  ///< threads of each rank, which all put and receive
  std::size_t max_bytes = 3000;
  int max_delay_us = 0;  ///< random pauses before puts and after receiving
  std::uint64_t seed = 1;
};
/// In each exchange every worker of every rank puts a part for all and a part for each rank, of
/// pseudo-random size, and checks all parts of all ranks in an order that varies. Some puts are
/// made in two halves (Outgoing, Publish).
Status ExerciseExchanges(Fabric& fabric, const ExchangeExercise& exercise);

/// Pseudo-random sequence of Barrier, Broadcast and AllGather with sizes from 0 to several chunks.
Status ExerciseCollectives(Fabric& fabric, int count, int max_delay_us, std::uint64_t seed);

/// Exchanges without end, in steps that SetActivity names, until the job fails: returns why.
/// `on_middle` is called once, between two steps.
Status ExchangeUntilFailure(Fabric& fabric, const std::function<void()>& on_middle = {});

}  // namespace megalith::fabric
