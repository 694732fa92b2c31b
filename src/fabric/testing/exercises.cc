#include "fabric/testing/exercises.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

namespace megalith::fabric {
namespace {

/// splitmix64: the same values everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::size_t Below(std::size_t limit) { return static_cast<std::size_t>(Next() % limit); }

 private:
  std::uint64_t state_;
};

void Delay(Random* random, int max_us) {
  if (max_us == 0 || random->Below(4) != 0) return;
  const auto us = random->Below(static_cast<std::size_t>(max_us) + 1);
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

/// What a part holds is a function of who made it, for whom, and when.
struct Part {
  std::uint64_t seed;
  std::uint32_t source, reader, worker;
  std::uint64_t sequence;

  Random Source() const {
    return Random(seed * 1'000'003 + sequence * 64'007 + source * 509 + reader * 31 + worker);
  }
  std::size_t Size(std::size_t max_bytes) const {
    // Often none, often all.
    Random random = Source();
    const std::size_t kind = random.Below(8);
    return kind == 0 ? 0 : kind == 1 ? max_bytes : random.Below(max_bytes + 1);
  }
  void Fill(std::span<std::byte> bytes) const {
    Random random = Source();
    for (std::size_t i = 0; i < bytes.size(); i += 8) {
      const std::uint64_t word = random.Next();
      std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, bytes.size() - i));
    }
  }
};

constexpr std::uint32_t kAll = 9999;  // stands for "for everybody" as a reader

/// One worker's side of an exercise.
class Worker {
 public:
  Worker(Mailboxes& mailboxes, const ExchangeExercise& exercise, std::uint32_t index)
      : mailboxes_(mailboxes),
        exercise_(exercise),
        index_(index),
        random_(exercise.seed * 7919 + mailboxes.rank() * 101 + index),
        expected_(exercise.max_bytes) {}

  Status PutParts(std::uint64_t sequence) {
    Delay(&random_, exercise_.max_delay_us);
    MEGALITH_RETURN_IF_ERROR(PutPart(kAll, sequence));
    for (const std::uint32_t reader : Shuffled()) {
      MEGALITH_RETURN_IF_ERROR(PutPart(reader, sequence));
    }
    return {};
  }

  Status CheckParts(std::uint64_t sequence) {
    const auto num_workers = static_cast<std::uint32_t>(exercise_.num_workers);
    for (const std::uint32_t source : Shuffled()) {
      for (std::uint32_t worker = 0; worker < num_workers; ++worker) {
        MEGALITH_RETURN_IF_ERROR(
            CheckPart({exercise_.seed, source, kAll, worker, sequence}, 2 * worker));
        MEGALITH_RETURN_IF_ERROR(CheckPart(
            {exercise_.seed, source, mailboxes_.rank(), worker, sequence}, 2 * worker + 1));
      }
    }
    Delay(&random_, exercise_.max_delay_us);
    return {};
  }

 private:
  Status Gone() const {
    return Fail(ErrorCode::kIo, "rank {} worker {}: the job has failed", mailboxes_.rank(), index_);
  }

  Status PutPart(std::uint32_t reader, std::uint64_t sequence) {
    const Part part{exercise_.seed, mailboxes_.rank(), reader, index_, sequence};
    const std::size_t size = part.Size(exercise_.max_bytes);
    const std::uint32_t mailbox = 2 * index_ + (reader == kAll ? 0 : 1);
    const bool in_place = random_.Below(2) == 0;
    if (in_place) {
      std::byte* slot = reader == kAll ? mailboxes_.Outgoing(mailbox, sequence)
                                       : mailboxes_.OutgoingTo(reader, mailbox, sequence);
      if (slot == nullptr) return Gone();
      part.Fill({slot, size});
      if (reader == kAll) {
        mailboxes_.Publish(mailbox, sequence, size);
      } else {
        mailboxes_.PublishTo(reader, mailbox, sequence, size);
      }
      return {};
    }
    const std::span<std::byte> bytes(expected_.data(), size);
    part.Fill(bytes);
    const bool fine = reader == kAll ? mailboxes_.Put(mailbox, sequence, bytes)
                                     : mailboxes_.PutTo(reader, mailbox, sequence, bytes);
    return fine ? Status() : Gone();
  }

  Status CheckPart(const Part& part, std::uint32_t mailbox) {
    const std::span<const std::byte> got = mailboxes_.Wait(mailbox, part.source, part.sequence);
    if (got.data() == nullptr) return Gone();
    const std::span<std::byte> expected(expected_.data(), part.Size(exercise_.max_bytes));
    part.Fill(expected);
    if (!std::equal(got.begin(), got.end(), expected.begin(), expected.end())) {
      return Fail(
          ErrorCode::kInternal,
          "rank {} worker {}: mailbox {} of rank {}, sequence {}: {} bytes, not the {} that "
          "were put",
          mailboxes_.rank(), index_, mailbox, part.source, part.sequence, got.size(),
          expected.size());
    }
    return {};
  }

  std::vector<std::uint32_t> Shuffled() {
    std::vector<std::uint32_t> ranks(mailboxes_.num_ranks());
    std::iota(ranks.begin(), ranks.end(), 0U);
    for (std::size_t i = ranks.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[random_.Below(i)]);
    return ranks;
  }

  Mailboxes& mailboxes_;
  const ExchangeExercise& exercise_;
  std::uint32_t index_;
  Random random_;
  Bytes expected_;
};

/// Workers of one rank wait for each other, as with the counters of a step.
class Join {
 public:
  explicit Join(std::uint64_t num_workers) : num_workers_(num_workers) {}
  /// False if the job has failed.
  bool Wait(std::uint64_t round, const Mailboxes& mailboxes) {
    const std::uint64_t wanted = round * num_workers_;
    count_.fetch_add(1, std::memory_order_acq_rel);
    PatientWait turn(0);
    while (count_.load(std::memory_order_acquire) < wanted) {
      if (turn.Once() && mailboxes.failed()) return false;
    }
    return true;
  }

 private:
  std::atomic<std::uint64_t> count_{0};
  std::uint64_t num_workers_;
};

}  // namespace

Status ExerciseExchanges(Fabric& fabric, const ExchangeExercise& exercise) {
  MailboxLayout layout;
  for (int worker = 0; worker < exercise.num_workers; ++worker) {
    layout.push_back({exercise.max_bytes, Audience::kAllPeers});
    layout.push_back({exercise.max_bytes, Audience::kEachPeer});
  }
  MEGALITH_ASSIGN_OR_RETURN(const std::unique_ptr<Mailboxes> mailboxes,
                            fabric.CreateMailboxes(layout));
  const auto num_workers = static_cast<std::size_t>(exercise.num_workers);
  Join join(num_workers);
  std::vector<Status> results(num_workers);
  const auto run = [&](std::size_t index) -> Status {
    Worker worker(*mailboxes, exercise, static_cast<std::uint32_t>(index));
    for (std::uint64_t n = 1; n <= static_cast<std::uint64_t>(exercise.num_exchanges); ++n) {
      MEGALITH_RETURN_IF_ERROR(worker.PutParts(n));
      MEGALITH_RETURN_IF_ERROR(worker.CheckParts(n));
      // A rank puts n + 1 only after all its workers have read n.
      if (!join.Wait(n, *mailboxes)) return fabric.status();
    }
    return {};
  };
  std::vector<std::thread> threads;
  for (std::size_t index = 1; index < num_workers; ++index) {
    threads.emplace_back([&, index] {
      results[index] = run(index);
      if (!results[index]) fabric.Abort(results[index].error().message);
    });
  }
  results[0] = run(0);
  if (!results[0]) fabric.Abort(results[0].error().message);
  for (std::thread& thread : threads) thread.join();
  for (Status& status : results) MEGALITH_RETURN_IF_ERROR(std::move(status));
  return fabric.Barrier();
}

Status ExerciseCollectives(Fabric& fabric, int count, int max_delay_us, std::uint64_t seed) {
  Random shared(seed);
  Random own(seed * 31 + fabric.rank());
  for (int i = 0; i < count; ++i) {
    const std::size_t kind = shared.Below(3);
    const std::size_t limit = shared.Below(4) == 0 ? 100'000 : 300;
    Delay(&own, max_delay_us);
    const auto part = [&](std::uint32_t source) {
      const Part what{seed, source, kAll, 0, static_cast<std::uint64_t>(i) + 1};
      Bytes bytes(what.Size(limit));
      what.Fill(bytes);
      return bytes;
    };
    const auto wrong = [&](std::uint32_t source) {
      return Fail(ErrorCode::kInternal, "rank {}, collective {}: wrong bytes of rank {}",
                  fabric.rank(), i, source);
    };
    if (kind == 0) {
      MEGALITH_RETURN_IF_ERROR(fabric.Barrier());
    } else if (kind == 1) {
      Bytes bytes = part(fabric.rank());
      MEGALITH_RETURN_IF_ERROR(fabric.Broadcast(&bytes));
      if (bytes != part(0)) return wrong(0);
    } else {
      MEGALITH_ASSIGN_OR_RETURN(const std::vector<Bytes> all,
                                fabric.AllGather(part(fabric.rank())));
      for (std::uint32_t source = 0; source < fabric.num_ranks(); ++source) {
        if (all[source] != part(source)) return wrong(source);
      }
    }
  }
  return {};
}

Status ExchangeUntilFailure(Fabric& fabric, const std::function<void()>& on_middle) {
  MEGALITH_ASSIGN_OR_RETURN(const std::unique_ptr<Mailboxes> mailboxes,
                            fabric.CreateMailboxes({{256, Audience::kAllPeers}}));
  const Bytes bytes(256);
  for (std::uint64_t n = 1;; ++n) {
    fabric.SetActivity(fmt::format("step {}", n));
    if (!mailboxes->Put(0, n, bytes)) return fabric.status();
    for (std::uint32_t source = 0; source < fabric.num_ranks(); ++source) {
      if (mailboxes->Wait(0, source, n).data() == nullptr) return fabric.status();
    }
    if (n == 2 && on_middle) on_middle();
  }
}

}  // namespace megalith::fabric
