#include "fabric/mpi_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "fabric/send_queue.h"
#include "fabric/wait.h"

namespace megalith::fabric {
namespace {

/// Put sequence and number of bytes, which travel in front of the data.
constexpr std::size_t kEnvelopeBytes = 2 * sizeof(std::uint64_t);
constexpr std::size_t kMaxMailboxBytes = std::size_t{1} << 30;
/// Receptions begun before looking at the rest.
constexpr int kMaxReceptions = 64;

}  // namespace

/// The transport of one set of mailboxes.
class MpiMailboxes : public Transport {
 public:
  MpiMailboxes(MpiEngine* engine, const SlotPlan& plan, const MailboxMemory& memory, int first_tag,
               std::uint32_t num_ranks)
      : engine_(engine),
        plan_(plan),
        sections_(memory.sections),
        regions_(memory.regions),
        first_tag_(first_tag),
        in_flight_(CountSlots(num_ranks)),
        queue_(in_flight_.size()) {}

  bool Sending(std::uint32_t mailbox, std::uint32_t reader, std::uint64_t sequence) override {
    // Acquire: the message has been read out of the slot.
    return InFlight(mailbox, reader, sequence).load(std::memory_order_acquire) != 0;
  }

  void Send(std::uint32_t mailbox, std::uint32_t reader, std::uint64_t sequence) override {
    const bool all = reader == kAllRemote;
    const auto count = all ? static_cast<std::uint32_t>(engine_->remote_ranks_.size()) : 1;
    InFlight(mailbox, all ? 0 : reader, sequence).store(count, std::memory_order_relaxed);
    queue_.Push({mailbox, reader, sequence});
    // Sequentially consistent with busy_: either this thread finds the engine free, or who holds it
    // sees the number after letting go.
    engine_->num_queued_.fetch_add(1, std::memory_order_seq_cst);
    engine_->Progress();
  }

  void Progress() override { engine_->Progress(); }

  /// By the engine: begins to send what has been put.
  void StartSends() {
    Item item{};
    while (queue_.Pop(&item)) {
      engine_->num_queued_.fetch_sub(1, std::memory_order_relaxed);
      if (item.reader == kAllRemote) {
        for (const std::uint32_t reader : engine_->remote_ranks_) SendTo(reader, 0, item);
      } else {
        SendTo(item.reader, item.reader, item);
      }
    }
  }

  bool HasTag(int tag) const {
    return tag >= first_tag_ && tag < first_tag_ + 2 * static_cast<int>(plan_.num_mailboxes());
  }
  std::uint32_t MailboxOf(int tag) const {
    return static_cast<std::uint32_t>(tag - first_tag_) / 2;
  }
  std::size_t MaxBytesOf(int tag) const { return plan_.MaxBytes(MailboxOf(tag)); }
  SlotHeader* IncomingSlot(std::uint32_t source, std::uint32_t reader, int tag) const {
    return Slot(source, MailboxOf(tag), reader, static_cast<std::uint64_t>(tag - first_tag_) & 1);
  }
  int end_tag() const { return first_tag_ + 2 * static_cast<int>(plan_.num_mailboxes()); }
  std::size_t num_slots() const { return in_flight_.size(); }

 private:
  struct Item {
    std::uint32_t mailbox;
    std::uint32_t reader;
    std::uint64_t sequence;
  };

  std::size_t CountSlots(std::uint32_t num_ranks) {
    std::size_t count = 0;
    for (std::uint32_t mailbox = 0; mailbox < plan_.num_mailboxes(); ++mailbox) {
      first_in_flight_.push_back(count);
      count += plan_.ForEachPeer(mailbox) ? std::size_t{2} * num_ranks : 2;
    }
    return count;
  }

  SlotHeader* Slot(std::uint32_t writer, std::uint32_t mailbox, std::uint32_t reader,
                   std::uint64_t sequence) const {
    return reinterpret_cast<SlotHeader*>(sections_[writer] +
                                         plan_.Offset(mailbox, reader, sequence));
  }

  std::atomic<std::uint32_t>& InFlight(std::uint32_t mailbox, std::uint32_t reader,
                                       std::uint64_t sequence) {
    const std::size_t pair = plan_.ForEachPeer(mailbox) ? reader : 0;
    return in_flight_[first_in_flight_[mailbox] + 2 * pair + (sequence & 1)];
  }

  void SendTo(std::uint32_t to, std::uint32_t reader, const Item& item) {
    SlotHeader* slot = Slot(engine_->rank_, item.mailbox, reader, item.sequence);
    const int tag =
        first_tag_ + 2 * static_cast<int>(item.mailbox) + static_cast<int>(item.sequence & 1);
    engine_->Send(&slot->put_sequence, kEnvelopeBytes + slot->put_bytes, to, tag,
                  &InFlight(item.mailbox, reader, item.sequence));
  }

  MpiEngine* engine_;
  SlotPlan plan_;
  std::vector<std::byte*> sections_;  // by writing rank
  /// The slots outlive the Mailboxes: messages may still be on their way, out of them and into
  /// them.
  std::vector<std::shared_ptr<MemoryRegion>> regions_;
  int first_tag_;
  std::vector<std::size_t> first_in_flight_;  // by mailbox
  /// Messages out of each slot that are still being sent. A slot is written again only at 0, so at
  /// most one item of each is in the queue.
  std::vector<std::atomic<std::uint32_t>> in_flight_;
  SendQueue<Item> queue_;
};

MpiEngine::MpiEngine(MPI_Comm world, const JobControl& control, std::uint32_t rank,
                     std::vector<std::uint32_t> remote_ranks)
    : world_(world),
      control_(control),
      rank_(rank),
      remote_ranks_(std::move(remote_ranks)),
      heartbeats_(remote_ranks_.size()),
      heartbeat_flight_(remote_ranks_.size()),
      leaving_(control.num_ranks(), false) {
  int* limit = nullptr;
  int found = 0;
  MPI_Comm_get_attr(world_, MPI_TAG_UB, &limit, &found);
  max_tag_ = found != 0 ? *limit : 32767;  // what the standard promises
}

MpiEngine::~MpiEngine() = default;

Result<std::shared_ptr<Transport>> MpiEngine::Attach(const SlotPlan& plan,
                                                     const MailboxMemory& memory) {
  const int first_tag = sets_.empty() ? kFirstMailboxTag : sets_.back()->end_tag();
  if (plan.num_mailboxes() > static_cast<std::size_t>(max_tag_ - first_tag) / 2) {
    return Fail(ErrorCode::kUsage, "{} mailboxes: MPI has tags for {} more", plan.num_mailboxes(),
                (max_tag_ - first_tag) / 2);
  }
  for (std::uint32_t mailbox = 0; mailbox < plan.num_mailboxes(); ++mailbox) {
    if (plan.MaxBytes(mailbox) > kMaxMailboxBytes) {
      return Fail(ErrorCode::kUsage, "mailbox {} of {} bytes: MPI messages may have {}", mailbox,
                  plan.MaxBytes(mailbox), kMaxMailboxBytes);
    }
  }
  auto set = std::make_shared<MpiMailboxes>(this, plan, memory, first_tag, control_.num_ranks());
  Exclusively([&] {
    sets_.push_back(set);
    // As many as there can be, so that a step never allocates. Farewell, failure and heartbeat too.
    std::size_t num_slots = 0;
    for (const auto& each : sets_) num_slots += each->num_slots();
    const std::size_t most = (num_slots + 3) * remote_ranks_.size();
    for (auto* list : {&send_requests_, &receive_requests_}) list->reserve(most);
    sends_.reserve(most);
    receives_.reserve(most);
    completed_.resize(most);
  });
  return set;
}

void MpiEngine::Acquire() {
  PatientWait turn(0);
  while (busy_.exchange(true, std::memory_order_seq_cst)) turn.Once();
}

void MpiEngine::Progress() {
  do {
    if (busy_.exchange(true, std::memory_order_seq_cst)) return;
    Work();
    Release();
  } while (num_queued_.load(std::memory_order_seq_cst) != 0);
}

void MpiEngine::Tick() {
  Exclusively([this] {
    SendHeartbeats();
    SendFailure();
  });
  Progress();
}

void MpiEngine::SayFarewell() {
  Progress();
  Exclusively([this] {
    said_farewell_ = true;
    for (const std::uint32_t to : remote_ranks_) Send(nullptr, 0, to, kFarewellTag, nullptr);
  });
}

bool MpiEngine::Finished() {
  bool finished = false;
  Exclusively([&] {
    Work();
    finished = num_left_ == remote_ranks_.size() && sends_.empty() && receives_.empty();
  });
  return finished;
}

void MpiEngine::Work() {
  for (const auto& set : sets_) set->StartSends();
  if (!sends_.empty()) CompleteSends();
  for (int i = 0; i < kMaxReceptions && ReceiveOne(); ++i) {
  }
  if (!receives_.empty()) CompleteReceives();
  NoteFarewells();
}

void MpiEngine::Send(const void* data, std::size_t bytes, std::uint32_t to, int tag,
                     std::atomic<std::uint32_t>* in_flight) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (!Fine(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(to), tag, world_,
                      &request),
            "MPI_Isend")) {
    return;
  }
  send_requests_.push_back(request);
  sends_.push_back({in_flight});
}

void MpiEngine::CompleteSends() {
  int count = 0;
  if (!Fine(MPI_Testsome(static_cast<int>(sends_.size()), send_requests_.data(), &count,
                         completed_.data(), MPI_STATUSES_IGNORE),
            "MPI_Testsome")) {
    return;
  }
  // From the back, so that the last one, which takes a free place, is never one of them.
  std::sort(completed_.begin(), completed_.begin() + std::max(count, 0), std::greater<>());
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(completed_[static_cast<std::size_t>(i)]);
    if (sends_[at].in_flight != nullptr) {
      sends_[at].in_flight->fetch_sub(1, std::memory_order_release);
    }
    sends_[at] = sends_.back();
    send_requests_[at] = send_requests_.back();
    sends_.pop_back();
    send_requests_.pop_back();
  }
}

/// False if there is nothing to receive.
bool MpiEngine::ReceiveOne() {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  if (!Fine(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, world_, &found, &message, &status),
            "MPI_Improbe") ||
      found == 0) {
    return false;
  }
  if (status.MPI_TAG < kFirstMailboxTag) {
    ReceiveControl(&message, status);
  } else {
    ReceivePut(&message, status);
  }
  return true;
}

void MpiEngine::ReceiveControl(MPI_Message* message, const MPI_Status& status) {
  // Small messages, which have come as a whole: receiving does not block.
  char bytes[1024];
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  if (count < 0 || count > static_cast<int>(sizeof bytes)) count = sizeof bytes;
  if (!Fine(MPI_Mrecv(bytes, count, MPI_BYTE, message, MPI_STATUS_IGNORE), "MPI_Mrecv")) return;
  const auto source = static_cast<std::uint32_t>(status.MPI_SOURCE);
  RankLine& line = control_.line(source);
  if (status.MPI_TAG == kFailureTag) {
    control_.Fail({bytes, static_cast<std::size_t>(count)});
  } else if (status.MPI_TAG == kFarewellTag) {
    leaving_[source] = true;
  } else if (count == static_cast<int>(sizeof(Heartbeat))) {
    Heartbeat heartbeat;
    std::memcpy(&heartbeat, bytes, sizeof heartbeat);
    line.action.store(heartbeat.action, std::memory_order_relaxed);
    line.action_sequence.store(heartbeat.action_sequence, std::memory_order_relaxed);
    line.pid.store(static_cast<std::uint32_t>(heartbeat.pid), std::memory_order_relaxed);
    for (std::size_t i = 0; i < std::size(heartbeat.label); ++i) {
      line.label[i].store(heartbeat.label[i], std::memory_order_relaxed);
    }
    line.heartbeat.store(heartbeat.heartbeat, std::memory_order_relaxed);
  }
}

void MpiEngine::ReceivePut(MPI_Message* message, const MPI_Status& status) {
  const int tag = status.MPI_TAG;
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  const auto set = std::find_if(sets_.begin(), sets_.end(),
                                [tag](const auto& each) { return each->HasTag(tag); });
  if (set == sets_.end() || count < static_cast<int>(kEnvelopeBytes) ||
      static_cast<std::size_t>(count) - kEnvelopeBytes > (*set)->MaxBytesOf(tag)) {
    control_.Fail(
        fmt::format("rank {}: message of {} bytes with tag {} from rank {} fits no "
                    "mailbox",
                    rank_, count, tag, status.MPI_SOURCE));
    return;
  }
  const auto source = static_cast<std::uint32_t>(status.MPI_SOURCE);
  SlotHeader* slot = (*set)->IncomingSlot(source, rank_, tag);
  MPI_Request request = MPI_REQUEST_NULL;
  if (!Fine(MPI_Imrecv(&slot->put_sequence, count, MPI_BYTE, message, &request), "MPI_Imrecv")) {
    return;
  }
  receive_requests_.push_back(request);
  receives_.push_back({slot, source});
}

void MpiEngine::CompleteReceives() {
  int count = 0;
  if (!Fine(MPI_Testsome(static_cast<int>(receives_.size()), receive_requests_.data(), &count,
                         completed_.data(), MPI_STATUSES_IGNORE),
            "MPI_Testsome")) {
    return;
  }
  std::sort(completed_.begin(), completed_.begin() + std::max(count, 0), std::greater<>());
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(completed_[static_cast<std::size_t>(i)]);
    SlotHeader* slot = receives_[at].slot;
    slot->sequence.store(slot->put_sequence, std::memory_order_release);
    receives_[at] = receives_.back();
    receive_requests_[at] = receive_requests_.back();
    receives_.pop_back();
    receive_requests_.pop_back();
  }
}

/// A rank has left once everything it put before its farewell is in its slots. Messages of one rank
/// are met in order, but large ones may be complete later.
void MpiEngine::NoteFarewells() {
  for (const std::uint32_t source : remote_ranks_) {
    if (!leaving_[source]) continue;
    const bool pending =
        std::any_of(receives_.begin(), receives_.end(),
                    [source](const Receiving& each) { return each.source == source; });
    if (pending) continue;
    leaving_[source] = false;
    ++num_left_;
    control_.line(source).state.store(RankState::kLeft, std::memory_order_release);
  }
}

void MpiEngine::SendHeartbeats() {
  // The farewell is the last message to anybody.
  if (said_farewell_) return;
  const RankLine& line = control_.line(rank_);
  for (std::size_t i = 0; i < remote_ranks_.size(); ++i) {
    // One who does not receive gets no more.
    if (heartbeat_flight_[i].load(std::memory_order_relaxed) != 0) continue;
    Heartbeat& heartbeat = heartbeats_[i];
    heartbeat.heartbeat = line.heartbeat.load(std::memory_order_relaxed);
    heartbeat.action = line.action.load(std::memory_order_relaxed);
    heartbeat.action_sequence = line.action_sequence.load(std::memory_order_relaxed);
    heartbeat.pid = line.pid.load(std::memory_order_relaxed);
    for (std::size_t k = 0; k < std::size(heartbeat.label); ++k) {
      heartbeat.label[k] = line.label[k].load(std::memory_order_relaxed);
    }
    heartbeat_flight_[i].store(1, std::memory_order_relaxed);
    Send(&heartbeat, sizeof heartbeat, remote_ranks_[i], kHeartbeatTag, &heartbeat_flight_[i]);
  }
}

void MpiEngine::SendFailure() {
  if (failure_sent_ || !control_.failed()) return;
  failure_sent_ = true;
  failure_ = control_.FailureMessage();
  failure_.resize(std::min<std::size_t>(failure_.size(), 1000));
  for (const std::uint32_t to : remote_ranks_) {
    Send(failure_.data(), failure_.size(), to, kFailureTag, nullptr);
  }
}

bool MpiEngine::Fine(int result, const char* call) {
  if (result == MPI_SUCCESS) return true;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, text, &length);
  control_.Fail(fmt::format("rank {}: {}: {}", rank_, call, text));
  return false;
}

}  // namespace megalith::fabric
