#include "bench/exchange.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/clock.h"
#include "fabric/mpi.h"

namespace megalith::bench {
namespace {

using fabric::Fabric;
using fabric::Mailboxes;

/// Bytes that all ranks together put in the exchanges of one size and round.
constexpr double kMaxBytesInRound = 5e8;
constexpr int kMinExchanges = 20;
constexpr int kWarmUps = 20;

/// The exchanges of one size.
class Exchange {
 public:
  Exchange(Fabric& fabric, Mailboxes& mailboxes, std::size_t bytes)
      : fabric_(fabric),
        mailboxes_(mailboxes),
        mine_(bytes / sizeof(float)),
        sum_(mine_.size()),
        all_(mine_.size() * fabric.num_ranks()) {
    // Small whole numbers: every order of adding gives the same sum.
    std::iota(mine_.begin(), mine_.end(), static_cast<float>(fabric.rank()));
  }

  Status Run(ExchangeOp op) {
    switch (op) {
      case ExchangeOp::kAllGather:
      case ExchangeOp::kReduce:
        return RunOwn(op);
      case ExchangeOp::kMpiAllGather:
        return RunMpi(fabric::MpiAllGather(fabric_, std::as_bytes(std::span(mine_)),
                                           std::as_writable_bytes(std::span(all_))));
      case ExchangeOp::kMpiAllReduce:
        return RunMpi(fabric::MpiAllReduce(fabric_, mine_, sum_));
    }
    return {};
  }

  /// Of the last exchange.
  Status Check(ExchangeOp op) const {
    const bool gathers = op == ExchangeOp::kAllGather || op == ExchangeOp::kMpiAllGather;
    const auto num_ranks = static_cast<float>(fabric_.num_ranks());
    for (std::size_t i = 0; i < mine_.size(); ++i) {
      const auto first = static_cast<float>(i);
      bool right = gathers || sum_[i] == first * num_ranks + num_ranks * (num_ranks - 1) / 2;
      for (std::uint32_t rank = 0; gathers && rank < fabric_.num_ranks(); ++rank) {
        right = right && all_[rank * mine_.size() + i] == first + static_cast<float>(rank);
      }
      if (!right) {
        return Fail(ErrorCode::kInternal, "{} of {} bytes: element {} is wrong", ExchangeOpName(op),
                    mine_.size() * sizeof(float), i);
      }
    }
    return {};
  }

 private:
  Status RunMpi(bool done) const {
    if (done) return {};
    return Fail(ErrorCode::kUsage, "MPI's collectives can be measured in an MPI job only");
  }

  Status RunOwn(ExchangeOp op) {
    const std::uint64_t sequence = ++sequence_;
    if (!mailboxes_.Put(0, sequence, std::as_bytes(std::span(mine_)))) return fabric_.status();
    for (std::uint32_t source = 0; source < fabric_.num_ranks(); ++source) {
      const auto got = mailboxes_.Wait(0, source, sequence);
      if (got.data() == nullptr) return fabric_.status();
      if (op == ExchangeOp::kAllGather) {
        std::memcpy(all_.data() + source * mine_.size(), got.data(), got.size());
        continue;
      }
      const auto* values = reinterpret_cast<const float*>(got.data());
      if (source == 0) {
        std::copy_n(values, sum_.size(), sum_.begin());
      } else {
        for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += values[i];
      }
    }
    return {};
  }

  Fabric& fabric_;
  Mailboxes& mailboxes_;
  std::vector<float> mine_;
  std::vector<float> sum_;
  std::vector<float> all_;
  std::uint64_t sequence_ = 0;
};

ExchangeCost Summarize(ExchangeOp op, std::size_t bytes, std::vector<double> us) {
  std::sort(us.begin(), us.end());
  const auto at = [&us](double share) {
    return us[std::min(us.size() - 1,
                       static_cast<std::size_t>(share * static_cast<double>(us.size())))];
  };
  return {op, bytes, static_cast<int>(us.size()), at(0.5), at(0.99), us.front()};
}

Status MeasureSize(Fabric& fabric, const ExchangeOptions& options, std::size_t bytes,
                   std::vector<ExchangeCost>* costs) {
  MEGALITH_ASSIGN_OR_RETURN(const auto mailboxes, fabric.CreateMailboxes({{bytes}}));
  Exchange exchange(fabric, *mailboxes, bytes);
  std::vector<ExchangeOp> ops = {ExchangeOp::kAllGather, ExchangeOp::kReduce};
  if (options.with_mpi) {
    ops.insert(ops.end(), {ExchangeOp::kMpiAllGather, ExchangeOp::kMpiAllReduce});
  }
  const double most = kMaxBytesInRound / static_cast<double>(bytes) /
                      std::pow(static_cast<double>(fabric.num_ranks()), 2);
  const int count =
      std::clamp(static_cast<int>(most), std::min(kMinExchanges, options.num_exchanges),
                 options.num_exchanges);
  std::vector<std::vector<double>> us(ops.size());
  for (int round = 0; round < options.num_rounds; ++round) {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      MEGALITH_RETURN_IF_ERROR(fabric.Barrier());
      for (int n = -kWarmUps; n < count; ++n) {
        const std::int64_t start_ns = NowNs();
        MEGALITH_RETURN_IF_ERROR(exchange.Run(ops[i]));
        if (n >= 0) us[i].push_back(static_cast<double>(NowNs() - start_ns) * 1e-3);
        if (n == -kWarmUps) MEGALITH_RETURN_IF_ERROR(exchange.Check(ops[i]));
      }
    }
  }
  for (std::size_t i = 0; i < ops.size(); ++i) {
    costs->push_back(Summarize(ops[i], bytes, std::move(us[i])));
  }
  return {};
}

}  // namespace

const char* ExchangeOpName(ExchangeOp op) {
  switch (op) {
    case ExchangeOp::kAllGather:
      return "all-gather";
    case ExchangeOp::kReduce:
      return "reduce";
    case ExchangeOp::kMpiAllGather:
      return "MPI_Allgather";
    case ExchangeOp::kMpiAllReduce:
      return "MPI_Allreduce";
  }
  return "";
}

Result<std::vector<ExchangeCost>> MeasureExchange(Fabric& fabric, const ExchangeOptions& options) {
  std::vector<ExchangeCost> costs;
  for (const std::size_t bytes : options.bytes) {
    if (bytes == 0 || bytes % sizeof(float) != 0) {
      return Fail(ErrorCode::kUsage, "exchanges of {} bytes; a multiple of 4 expected", bytes);
    }
    MEGALITH_RETURN_IF_ERROR(MeasureSize(fabric, options, bytes, &costs));
  }
  return costs;
}

}  // namespace megalith::bench
