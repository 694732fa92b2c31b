#include "fabric/host_memory.h"

#include <unistd.h>

#include <algorithm>

#include "fabric/rendezvous.h"

namespace megalith::fabric {
namespace {

/// A multiple of every ordinary page size.
constexpr std::size_t kPartAlignment = std::size_t{1} << 16;

std::size_t RoundUp(std::size_t value) {
  return (value + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

}  // namespace

Result<std::unique_ptr<HostMemory>> HostMemory::Join(const Options& options) {
  std::unique_ptr<HostMemory> memory(new HostMemory(options));
  const std::vector<std::uint32_t>& ranks = options.local_ranks;
  memory->local_rank_ = static_cast<std::uint32_t>(
      std::find(ranks.begin(), ranks.end(), options.rank) - ranks.begin());
  const std::size_t control_bytes = RoundUp(JobControl::Bytes(options.num_ranks));
  Descriptor file;
  if (memory->local_rank_ == 0) {
    MEGALITH_ASSIGN_OR_RETURN(file, MakeSharedFile());
    MEGALITH_RETURN_IF_ERROR(GrowSharedFile(file, control_bytes));
    MEGALITH_RETURN_IF_ERROR(ReserveShared(file, 0, control_bytes));
  }
  memory->end_bytes_ = control_bytes;
  MEGALITH_ASSIGN_OR_RETURN(
      memory->file_,
      Meet({options.job_id, ranks, memory->local_rank_, options.start_timeout_ms}, std::move(file),
           [&](const Descriptor& shared) { return memory->Appear(shared, control_bytes); }));
  return memory;
}

/// Maps the control block and says that this rank is there, so that all are when Meet returns.
Status HostMemory::Appear(const Descriptor& shared, std::size_t control_bytes) {
  MEGALITH_ASSIGN_OR_RETURN(control_region_,
                            MemoryRegion::Shared(shared.number(), 0, control_bytes));
  control_ = JobControl(control_region_.data(), options_.num_ranks);
  remote_lines_ = std::make_unique<RankLine[]>(options_.num_ranks);
  for (std::uint32_t rank = 0; rank < options_.num_ranks; ++rank) {
    if (!IsLocal(rank)) control_.ReplaceLine(rank, &remote_lines_[rank]);
  }
  RankLine& line = control_.line(options_.rank);
  line.pid.store(static_cast<std::uint32_t>(::getpid()), std::memory_order_relaxed);
  line.pid_namespace.store(PidNamespace(), std::memory_order_relaxed);
  line.state.store(RankState::kPresent, std::memory_order_release);
  return {};
}

bool HostMemory::IsLocal(std::uint32_t rank) const {
  return std::binary_search(options_.local_ranks.begin(), options_.local_ranks.end(), rank);
}

Result<MailboxMemory> HostMemory::Allocate(const SlotPlan& plan) {
  const std::size_t offset = end_bytes_;
  const std::size_t bytes = plan.section_bytes() * options_.local_ranks.size();
  // Counted on all ranks also if it fails on one.
  end_bytes_ += bytes;
  // Each grows the file to the same length; what is there stays.
  MEGALITH_RETURN_IF_ERROR(GrowSharedFile(file_, end_bytes_));
  MEGALITH_RETURN_IF_ERROR(
      ReserveShared(file_, offset + local_rank_ * plan.section_bytes(), plan.section_bytes()));
  MEGALITH_ASSIGN_OR_RETURN(MemoryRegion shared,
                            MemoryRegion::Shared(file_.number(), offset, bytes));
  MailboxMemory memory;
  memory.sections.resize(options_.num_ranks, nullptr);
  memory.remote.resize(options_.num_ranks, true);
  for (std::size_t i = 0; i < options_.local_ranks.size(); ++i) {
    memory.sections[options_.local_ranks[i]] = shared.data() + i * plan.section_bytes();
    memory.remote[options_.local_ranks[i]] = false;
  }
  memory.regions.push_back(std::make_shared<MemoryRegion>(std::move(shared)));
  const std::size_t num_remote = options_.num_ranks - options_.local_ranks.size();
  if (num_remote > 0) {
    MEGALITH_ASSIGN_OR_RETURN(MemoryRegion received,
                              MemoryRegion::Private(num_remote * plan.section_bytes()));
    std::size_t index = 0;
    for (std::uint32_t rank = 0; rank < options_.num_ranks; ++rank) {
      if (!memory.remote[rank]) continue;
      memory.sections[rank] = received.data() + index++ * plan.section_bytes();
    }
    memory.regions.push_back(std::make_shared<MemoryRegion>(std::move(received)));
  }
  return memory;
}

}  // namespace megalith::fabric
