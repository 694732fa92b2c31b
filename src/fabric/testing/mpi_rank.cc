// One rank of the tests in mpi_test.cc: mpi_rank EXERCISE MAX_RANKS_SHARING [TOKEN]. What went
// wrong goes to stderr as "rank R: reason", and the exit code is 1.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "fabric/agreement.h"
#include "fabric/start.h"
#include "fabric/testing/exercises.h"

namespace megalith::fabric {
namespace {

Status Exchange(Fabric& fabric) {
  ExchangeExercise exercise;
  exercise.num_exchanges = 150;
  exercise.num_workers = 2;
  MEGALITH_RETURN_IF_ERROR(ExerciseExchanges(fabric, exercise));
  exercise.num_exchanges = 50;
  exercise.max_delay_us = 300;
  exercise.seed = 2;
  MEGALITH_RETURN_IF_ERROR(ExerciseExchanges(fabric, exercise));
  // Large ones, which MPI transfers in another way.
  exercise.num_exchanges = 10;
  exercise.max_delay_us = 0;
  exercise.max_bytes = 1 << 20;
  MEGALITH_RETURN_IF_ERROR(ExerciseExchanges(fabric, exercise));
  return ExerciseCollectives(fabric, 100, 100, 5);
}

Status ManyExchanges(Fabric& fabric) {
  ExchangeExercise exercise;
  exercise.num_exchanges = 10'000;
  exercise.max_bytes = 512;
  return ExerciseExchanges(fabric, exercise);
}

/// The victim, a rank in the middle, gets the signal in the middle of exchanges.
Status ExchangeUntilSignal(Fabric& fabric, int signal) {
  if (fabric.rank() != 2) return ExchangeUntilFailure(fabric);
  MEGALITH_ASSIGN_OR_RETURN(const auto mailboxes,
                            fabric.CreateMailboxes({{256, Audience::kAllPeers}}));
  const Bytes bytes(256);
  for (std::uint64_t n = 1; n <= 300; ++n) {
    fabric.SetActivity("step " + std::to_string(n));
    mailboxes->Put(0, n, bytes);
    for (std::uint32_t source = 0; source < fabric.num_ranks(); ++source) {
      if (mailboxes->Wait(0, source, n).data() == nullptr) return fabric.status();
    }
  }
  ::usleep(300'000);  // for a heartbeat to tell what this rank did
  ::raise(signal);
  return ExchangeUntilFailure(fabric);
}

/// A put that its readers, who give up their mailboxes, never wait for.
Status LeaveUnread(Fabric& fabric) {
  const std::size_t bytes = std::size_t{4} << 20;  // mapped by itself
  MEGALITH_ASSIGN_OR_RETURN(auto mailboxes, fabric.CreateMailboxes({{bytes, Audience::kAllPeers}}));
  if (fabric.rank() == 0) {
    ::usleep(200'000);
    mailboxes->Put(0, 1, Bytes(bytes));
  }
  mailboxes.reset();
  return fabric.Barrier();
}

Status Run(const std::string& exercise, Fabric& fabric) {
  if (exercise == "exchange") return Exchange(fabric);
  if (exercise == "many") return ManyExchanges(fabric);
  if (exercise == "kill") return ExchangeUntilSignal(fabric, SIGKILL);
  if (exercise == "stop") return ExchangeUntilSignal(fabric, SIGSTOP);
  if (exercise == "abort") {
    if (fabric.rank() == 3) {
      MEGALITH_RETURN_IF_ERROR(fabric.Barrier());
      fabric.Abort("disk on fire");
      return fabric.status();
    }
    MEGALITH_RETURN_IF_ERROR(fabric.Barrier());
    return ExchangeUntilFailure(fabric);
  }
  if (exercise == "speak") {
    // Rank 0 still has something to do when the others have ended.
    if (fabric.rank() == 3) fabric.Abort("disk on fire");
    const Status status = ExchangeUntilFailure(fabric);
    if (fabric.rank() != 0) return status;
    ::usleep(2'000'000);
    std::fprintf(stderr, "the clients have been told\n");
    return status;
  }
  if (exercise == "endless") return ExchangeUntilFailure(fabric);
  if (exercise == "unread") return LeaveUnread(fabric);
  if (exercise == "leave") return fabric.rank() == 1 ? Status() : fabric.Barrier();
  if (exercise == "idle") {
    // Rank 0 leaves last, after everybody else has been waiting for a while.
    if (fabric.rank() == 0) ::usleep(1'000'000);
    return fabric.status();
  }
  if (exercise == "agree") {
    return CheckAgreement(fabric, {{"build", fabric.rank() == 2 ? "old" : "new"}});
  }
  if (exercise == "describe") {
    std::printf("%s; local %u of %u\n", fabric.Describe().c_str(), fabric.local_rank(),
                fabric.num_local_ranks());
    return {};
  }
  return Fail(ErrorCode::kUsage, "no exercise '{}'", exercise);
}

int Main(int argc, char** argv) {
  SetLogSink([](LogLevel, std::string_view message) {
    std::fprintf(stderr, "log: %.*s\n", static_cast<int>(message.size()), message.data());
    std::fflush(stderr);
  });
  MpiOptions options;
  const std::string exercise = argc > 1 ? argv[1] : "";
  if (argc > 2) options.max_ranks_sharing = static_cast<std::uint32_t>(std::atoi(argv[2]));
  // Nobody is to seem stopped because the machine is busy, and least where none is to be stopped.
  const bool may_stall = exercise == "stop" || exercise == "kill";
  options.stall_timeout_ms = may_stall ? 10'000 : 0;
  options.remote_stall_timeout_ms = may_stall ? 10'000 : 0;
  options.start_timeout_ms = 600'000;
  auto fabric = StartFabric(options);
  if (!fabric) {
    std::fprintf(stderr, "start: %s\n", fabric.error().message.c_str());
    return 1;
  }
  const std::int64_t start_ns = NowNs();
  const Status status = Run(exercise, **fabric);
  if (!status) {
    std::fprintf(stderr, "rank %u: %s (after %.1f s)\n", (*fabric)->rank(),
                 status.error().message.c_str(), SecondsSince(start_ns));
    std::fflush(stderr);
  }
  std::fflush(stdout);
  fabric->reset();
  return status ? 0 : 1;
}

}  // namespace
}  // namespace megalith::fabric

int main(int argc, char** argv) { return megalith::fabric::Main(argc, argv); }
