#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fabric/fabric.h"
#include "fabric/memory_region.h"
#include "fabric/monitor.h"

namespace megalith::fabric {

/// What the processes of one host share: a file without a name with the job's control block and,
/// one after the other, the sections of mailboxes of each rank.
class HostMemory {
 public:
  struct Options {
    std::string job_id;
    std::uint32_t num_ranks;                 ///< of the whole job
    std::uint32_t rank;                      ///< in the job
    std::vector<std::uint32_t> local_ranks;  ///< those of this host, ascending, `rank` among them
    std::int64_t start_timeout_ms;
  };

  /// Collective over local_ranks: when it returns all are present. Errors: those of Meet.
  static Result<std::unique_ptr<HostMemory>> Join(const Options& options);

  const JobControl& control() const { return control_; }
  std::uint32_t local_rank() const { return local_rank_; }
  const std::vector<std::uint32_t>& local_ranks() const { return options_.local_ranks; }

  /// Collective over local_ranks, in the same order on all. Sections of ranks of other hosts are
  /// private memory.
  Result<MailboxMemory> Allocate(const SlotPlan& plan);

 private:
  explicit HostMemory(const Options& options) : options_(options) {}
  bool IsLocal(std::uint32_t rank) const;
  Status Appear(const Descriptor& shared, std::size_t control_bytes);

  Options options_;
  std::uint32_t local_rank_ = 0;
  Descriptor file_;
  MemoryRegion control_region_;
  std::unique_ptr<RankLine[]> remote_lines_;  // by rank; used for those of other hosts
  JobControl control_;
  std::size_t end_bytes_ = 0;  // of what has been given out, the same on all
};

}  // namespace megalith::fabric
