#include "fabric/inproc.h"

#include <fmt/format.h>

#include <cstring>
#include <mutex>

namespace megalith::fabric {
namespace {

/// What the ranks of a process share.
class InprocJob {
 public:
  static Result<std::shared_ptr<InprocJob>> Make(std::uint32_t num_ranks) {
    auto job = std::make_shared<InprocJob>();
    MEGALITH_ASSIGN_OR_RETURN(job->control_memory_,
                              MemoryRegion::Private(JobControl::Bytes(num_ranks)));
    job->control_ = JobControl(job->control_memory_.data(), num_ranks);
    return job;
  }

  const JobControl& control() const { return control_; }

  /// The memory of the n-th set of mailboxes; whoever comes first makes it.
  Result<std::shared_ptr<MemoryRegion>> Region(std::size_t index, std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    if (index == regions_.size()) {
      MEGALITH_ASSIGN_OR_RETURN(MemoryRegion region, MemoryRegion::Private(bytes));
      regions_.push_back(std::make_shared<MemoryRegion>(std::move(region)));
    }
    const auto& region = regions_[index];
    if (region->size_bytes() != bytes) {
      return Fail(ErrorCode::kInternal, "mailboxes of {} bytes, {} expected", bytes,
                  region->size_bytes());
    }
    return region;
  }

 private:
  MemoryRegion control_memory_;
  JobControl control_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<MemoryRegion>> regions_;
};

class InprocFabric : public Fabric {
 public:
  InprocFabric(std::shared_ptr<InprocJob> job, std::uint32_t rank, const FabricOptions& options)
      : Fabric(job->control(), rank, rank, job->control().num_ranks(), options),
        job_(std::move(job)) {}

  ~InprocFabric() override { Leave(); }

  Status Start() {
    MEGALITH_ASSIGN_OR_RETURN(const SlotPlan plan, SlotPlan::Make(HostLayout(), num_ranks()));
    MEGALITH_ASSIGN_OR_RETURN(MailboxMemory memory, AllocateMailboxes(plan));
    SetHostMailboxes(
        std::make_unique<Mailboxes>(plan, std::move(memory), control(), rank(), max_spins()));
    control().line(rank()).state.store(RankState::kPresent, std::memory_order_release);
    return {};
  }

  std::string Describe() const override {
    if (num_ranks() == 1) return "one rank";
    return fmt::format("rank {} of {}, all in this process", rank(), num_ranks());
  }

 protected:
  Result<MailboxMemory> AllocateMailboxes(const SlotPlan& plan) override {
    MEGALITH_ASSIGN_OR_RETURN(auto region,
                              job_->Region(num_regions_++, plan.section_bytes() * num_ranks()));
    MailboxMemory memory;
    for (std::uint32_t writer = 0; writer < num_ranks(); ++writer) {
      memory.sections.push_back(region->data() + writer * plan.section_bytes());
    }
    memory.remote.resize(num_ranks(), false);
    // The first touch decides on which node the pages lie.
    std::memset(memory.sections[rank()], 0, plan.section_bytes());
    memory.regions.push_back(std::move(region));
    return memory;
  }

 private:
  std::shared_ptr<InprocJob> job_;
  std::size_t num_regions_ = 0;
};

}  // namespace

Result<std::vector<std::unique_ptr<Fabric>>> MakeInprocJob(std::uint32_t num_ranks,
                                                           const FabricOptions& options) {
  if (num_ranks == 0 || num_ranks > kMaxRanks) {
    return Fail(ErrorCode::kUsage, "{} ranks; 1 to {} are possible", num_ranks, kMaxRanks);
  }
  MEGALITH_ASSIGN_OR_RETURN(const std::shared_ptr<InprocJob> job, InprocJob::Make(num_ranks));
  std::vector<std::unique_ptr<Fabric>> fabrics;
  for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
    auto fabric = std::make_unique<InprocFabric>(job, rank, options);
    MEGALITH_RETURN_IF_ERROR(fabric->Start());
    fabrics.push_back(std::move(fabric));
  }
  return fabrics;
}

}  // namespace megalith::fabric
