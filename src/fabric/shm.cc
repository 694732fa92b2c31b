#include "fabric/shm.h"

#include <fmt/format.h>

#include <numeric>

#include "fabric/host_memory.h"
#include "fabric/monitor.h"

namespace megalith::fabric {
namespace {

class ShmFabric : public Fabric {
 public:
  ShmFabric(std::unique_ptr<HostMemory> memory, std::uint32_t rank, const FabricOptions& options)
      : Fabric(memory->control(), rank, memory->local_rank(), memory->control().num_ranks(),
               options),
        memory_(std::move(memory)) {}

  ~ShmFabric() override { Leave(); }

  Status Start() {
    MEGALITH_ASSIGN_OR_RETURN(
        monitor_,
        Monitor::Start(control(),
                       {rank(), memory_->local_ranks(), {}, options().stall_timeout_ms, 0, {}}));
    MEGALITH_ASSIGN_OR_RETURN(const SlotPlan plan, SlotPlan::Make(HostLayout(), num_ranks()));
    MEGALITH_ASSIGN_OR_RETURN(MailboxMemory memory, AllocateMailboxes(plan));
    SetHostMailboxes(
        std::make_unique<Mailboxes>(plan, std::move(memory), control(), rank(), max_spins()));
    return Barrier();
  }

  std::string Describe() const override {
    return fmt::format("rank {} of {}, shared memory", rank(), num_ranks());
  }

 protected:
  Result<MailboxMemory> AllocateMailboxes(const SlotPlan& plan) override {
    return memory_->Allocate(plan);
  }

 private:
  std::unique_ptr<HostMemory> memory_;
  std::unique_ptr<Monitor> monitor_;  // before memory_ goes
};

}  // namespace

Result<std::unique_ptr<Fabric>> JoinShmJob(const std::string& job_id, std::uint32_t rank,
                                           std::uint32_t num_ranks, const FabricOptions& options) {
  if (num_ranks > kMaxRanks || rank >= num_ranks) {
    return Fail(ErrorCode::kUsage, "rank {} of {}; 1 to {} ranks are possible", rank, num_ranks,
                kMaxRanks);
  }
  HostMemory::Options host{job_id, num_ranks, rank, std::vector<std::uint32_t>(num_ranks),
                           options.start_timeout_ms};
  std::iota(host.local_ranks.begin(), host.local_ranks.end(), 0U);
  MEGALITH_ASSIGN_OR_RETURN(auto memory, HostMemory::Join(host));
  auto fabric = std::make_unique<ShmFabric>(std::move(memory), rank, options);
  MEGALITH_RETURN_IF_ERROR(fabric->Start());
  return fabric;
}

}  // namespace megalith::fabric
