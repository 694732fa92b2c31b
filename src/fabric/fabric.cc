#include "fabric/fabric.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/affinity.h"
#include "base/spin.h"

namespace megalith::fabric {
namespace {

/// Of one exchange behind the collective functions; more goes in several.
constexpr std::size_t kChunkBytes = 32 << 10;

std::uint32_t ChooseSpins(const FabricOptions& options, std::uint32_t num_local_ranks) {
  if (options.max_spins != FabricOptions::kChooseSpins) return options.max_spins;
  const auto cpus = AllowedCpus();
  return cpus && cpus->size() < num_local_ranks ? 0 : SpinThenYield::kDefaultMaxSpins;
}

Bytes ToBytes(std::string_view text) {
  Bytes bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::string ToText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string DescribeLayout(const MailboxLayout& layout) {
  std::string text;
  for (const MailboxSpec& spec : layout) {
    text += fmt::format("{}{} bytes {}", text.empty() ? "" : ", ", spec.bytes,
                        spec.audience == Audience::kEachPeer ? "for each peer" : "for all");
  }
  return text;
}

}  // namespace

Fabric::Fabric(const JobControl& control, std::uint32_t rank, std::uint32_t local_rank,
               std::uint32_t num_local_ranks, const FabricOptions& options)
    : control_(control),
      rank_(rank),
      local_rank_(local_rank),
      num_local_ranks_(num_local_ranks),
      options_(options),
      max_spins_(ChooseSpins(options, num_local_ranks)) {}

Fabric::~Fabric() = default;

void Fabric::SetSharesCpus(bool shares_cpus) {
  if (options_.max_spins != FabricOptions::kChooseSpins) return;
  max_spins_ = shares_cpus ? 0 : SpinThenYield::kDefaultMaxSpins;
  host_->set_max_spins(max_spins_);
}

MailboxLayout Fabric::HostLayout() { return {{kChunkBytes, Audience::kAllPeers}}; }

Status Fabric::status() const {
  if (!failed()) return {};
  return Fail(ErrorCode::kIo, "{}", control_.FailureMessage());
}

void Fabric::Abort(std::string_view reason) {
  if (control_.Fail(fmt::format("rank {} gave up: {}", rank_, reason))) OnFailure();
}

/// One step of every collective function: this rank's chunk becomes readable by all. Afterwards
/// rank 0's chunk (kFromRank0) or everybody's (kAll) has arrived here.
///
/// Reuse of slots: whoever puts sequence n knows that all have finished reading n - 2. It has seen
/// n - 1 of all, which each puts after finishing n - 2; or, as the receiver of rank 0's n, knows
/// that rank 0 has.
Status Fabric::Exchange(std::span<const std::byte> chunk, Flow flow) {
  const std::uint64_t sequence = ++sequence_;
  const auto await = [&](std::uint32_t source, std::uint64_t wanted) {
    return host_->Wait(0, source, wanted).data() != nullptr;
  };
  const bool receives = flow == Flow::kFromRank0 && rank_ != 0;
  bool fine = true;
  if (receives) {
    fine = await(0, sequence);
  } else if (sequence > 1) {
    for (std::uint32_t source = 0; fine && source < num_ranks(); ++source) {
      fine = await(source, sequence - 1);
    }
  }
  // A receiver's is empty: it says that the chunks before have been read.
  if (!receives) fine = fine && host_->Put(0, sequence, chunk);
  if (flow == Flow::kAll) {
    for (std::uint32_t source = 0; fine && source < num_ranks(); ++source) {
      fine = await(source, sequence);
    }
  }
  if (fine) return {};
  if (const Status status = this->status(); !status) return status;
  return Fail(ErrorCode::kInternal, "rank {}: a wait ended without a failure", rank_);
}

Status Fabric::Barrier() { return Exchange({}, Flow::kAll); }

Status Fabric::Broadcast(Bytes* bytes) {
  std::size_t total = bytes->size();
  std::size_t done = 0;
  bool first = true;
  // The first chunk begins with the length.
  do {
    std::byte chunk[kChunkBytes];
    std::size_t used = 0;
    if (rank_ == 0) {
      if (first) {
        std::memcpy(chunk, &total, sizeof total);
        used = sizeof total;
      }
      const std::size_t amount = std::min(kChunkBytes - used, total - done);
      if (amount > 0) std::memcpy(chunk + used, bytes->data() + done, amount);
      done += amount;
      MEGALITH_RETURN_IF_ERROR(Exchange({chunk, used + amount}, Flow::kFromRank0));
    } else {
      MEGALITH_RETURN_IF_ERROR(Exchange({}, Flow::kFromRank0));
      std::span<const std::byte> got = host_->Data(0, 0, sequence_);
      if (got.data() == nullptr) return status();
      if (first) {
        if (got.size() < sizeof total) {
          return Fail(ErrorCode::kInternal, "rank {} and rank 0 are in different collectives",
                      rank_);
        }
        std::memcpy(&total, got.data(), sizeof total);
        got = got.subspan(sizeof total);
        bytes->resize(total);
      }
      if (got.size() > total - done) {
        return Fail(ErrorCode::kInternal, "rank {} and rank 0 are in different collectives", rank_);
      }
      if (!got.empty()) std::memcpy(bytes->data() + done, got.data(), got.size());
      done += got.size();
      if (!host_->Put(0, sequence_, {})) return status();
    }
    first = false;
  } while (done < total);
  return {};
}

Result<std::vector<Bytes>> Fabric::AllGather(std::span<const std::byte> bytes) {
  // The first exchange tells all lengths, so that all know how many follow.
  std::vector<std::size_t> sizes(num_ranks());
  const std::size_t mine = bytes.size();
  MEGALITH_RETURN_IF_ERROR(
      Exchange(std::as_bytes(std::span<const std::size_t>(&mine, 1)), Flow::kAll));
  std::vector<Bytes> all(num_ranks());
  std::size_t longest = 0;
  for (std::uint32_t source = 0; source < num_ranks(); ++source) {
    const std::span<const std::byte> got = host_->Data(0, source, sequence_);
    if (got.data() == nullptr) return tl::unexpected(status().error());
    if (got.size() != sizeof(std::size_t)) {
      return Fail(ErrorCode::kInternal, "rank {} and rank {} are in different collectives", rank_,
                  source);
    }
    std::memcpy(&sizes[source], got.data(), sizeof(std::size_t));
    longest = std::max(longest, sizes[source]);
    all[source].reserve(sizes[source]);
  }
  for (std::size_t done = 0; done < longest; done += kChunkBytes) {
    std::span<const std::byte> chunk;
    if (done < mine) chunk = bytes.subspan(done, std::min(kChunkBytes, mine - done));
    MEGALITH_RETURN_IF_ERROR(Exchange(chunk, Flow::kAll));
    for (std::uint32_t source = 0; source < num_ranks(); ++source) {
      const std::span<const std::byte> got = host_->Data(0, source, sequence_);
      if (got.data() == nullptr) return tl::unexpected(status().error());
      all[source].insert(all[source].end(), got.begin(), got.end());
    }
  }
  return all;
}

Status Fabric::AllOrNone(const Status& mine) {
  // First byte: the code plus one.
  Bytes report;
  if (!mine) {
    report = ToBytes(fmt::format("{}{}", static_cast<char>(static_cast<int>(mine.error().code) + 1),
                                 mine.error().message));
  }
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<Bytes> reports, AllGather(report));
  for (std::uint32_t source = 0; source < num_ranks(); ++source) {
    if (reports[source].empty()) continue;
    const auto code = static_cast<ErrorCode>(static_cast<int>(reports[source][0]) - 1);
    return Fail(code, "rank {}: {}", source, ToText(std::span(reports[source]).subspan(1)));
  }
  return {};
}

Result<std::unique_ptr<Mailboxes>> Fabric::CreateMailboxes(const MailboxLayout& layout) {
  Bytes of_rank0 = ToBytes(DescribeLayout(layout));
  const std::string mine = ToText(of_rank0);
  MEGALITH_RETURN_IF_ERROR(Broadcast(&of_rank0));
  auto plan = SlotPlan::Make(layout, num_ranks());
  Status fits;
  if (!plan) {
    fits = tl::unexpected(plan.error());
  } else if (mine != ToText(of_rank0)) {
    // Thousands of mailboxes do not help anybody.
    constexpr std::size_t kShown = 200;
    fits =
        Fail(ErrorCode::kUsage, "mailboxes differ from those of rank 0: {:.{}} here, {:.{}} there",
             mine, kShown, ToText(of_rank0), kShown);
  }
  MEGALITH_RETURN_IF_ERROR(AllOrNone(fits));
  auto memory = AllocateMailboxes(*plan);
  MEGALITH_RETURN_IF_ERROR(AllOrNone(memory ? Status() : tl::unexpected(memory.error())));
  return std::make_unique<Mailboxes>(*plan, std::move(*memory), control_, rank_, max_spins_);
}

}  // namespace megalith::fabric
