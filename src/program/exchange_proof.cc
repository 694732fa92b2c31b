// V6: mailboxes are reused safely.
//
// A rank may publish exchange n of a mailbox only when all others have finished reading its n - 2.
// Here a stronger, purely local order is shown: nothing of exchange n is filled in before all of
// this rank's receives of n - 1 are over (the slots are a buffer to the race proof, order_proof.cc
// follows the numbers). Every rank of the mailbox keeps it and receives from all others, so who has
// received n - 1 of a rank knows that this rank had finished n - 2 before it published. The same
// order rules out deadlock: what is published as n depends on receives up to n - 1 alone, so by
// induction every publication happens. That all ranks agree on what is exchanged is shown across
// their Programs (rank_proof.h) and compared when a job starts (ExchangeSignature).

#include <algorithm>
#include <map>
#include <set>

#include "program/exchange.h"
#include "program/proofs.h"

namespace megalith::program {
namespace {

template <typename... Args>
tl::unexpected<Error> Violation(const Segment& segment, fmt::format_string<Args...> format,
                                Args&&... args) {
  return Fail(ErrorCode::kBadProgram, "V6: segment {}: {}", segment.name,
              fmt::format(format, std::forward<Args>(args)...));
}

/// The instructions of one exchange.
struct Exchange {
  std::vector<const Instruction*> fills;
  std::vector<const Instruction*> publishes;
  std::map<std::int32_t, std::vector<const Instruction*>> receives;  // by source rank
};
using Key = std::pair<std::int32_t, std::int32_t>;  // mailbox, number within the visit

/// Instructions that share out rows: alike but for the share, and all shares there.
Status CheckShares(const Segment& segment, const std::vector<const Instruction*>& shares,
                   std::string_view what) {
  std::set<std::int32_t> firsts;
  const Instruction& first = *shares.front();
  for (const Instruction* share : shares) {
    const bool alike = std::equal(share->operands.begin(), share->operands.end(),
                                  first.operands.begin(), SameOperand) &&
                       share->imm == first.imm && share->trip == first.trip &&
                       share->rows.step == first.rows.step;
    if (!alike || !firsts.insert(share->rows.first).second) {
      return Violation(segment, "the shares of {} {} of mailbox {} do not belong together", what,
                       first.imm[1], first.imm[0]);
    }
  }
  if (static_cast<std::int32_t>(firsts.size()) != first.rows.step) {
    return Violation(segment, "{} of {} row shares of {} {} of mailbox {}", firsts.size(),
                     first.rows.step, what, first.imm[1], first.imm[0]);
  }
  return {};
}

/// Columns of one buffer, of the pairs of some experts or of all rows.
struct Region {
  std::uint32_t buffer;
  std::int32_t first_expert, last_expert;
  std::int64_t begin, end;
};

/// No element of a buffer comes from two ranks.
Status CheckRegions(const Program& program, const Segment& segment, const Exchange& exchange) {
  std::vector<Region> regions;
  const auto add = [&](const Instruction& instruction) {
    for (std::size_t part = kFirstExchangePart; part < kMaxOperands; ++part) {
      const Operand& operand = instruction.operands[part];
      if (operand.buffer == kNone) continue;
      const bool pairs = program.buffers[operand.buffer].kind == BufferKind::kPairs;
      regions.push_back({operand.buffer, pairs ? instruction.imm[3] : 0,
                         pairs ? instruction.imm[4] : 1, operand.begin, operand.end});
    }
  };
  add(*exchange.fills.front());
  for (const auto& [source, receives] : exchange.receives) add(*receives.front());
  for (std::size_t i = 0; i < regions.size(); ++i) {
    for (std::size_t j = i + 1; j < regions.size(); ++j) {
      const Region& a = regions[i];
      const Region& b = regions[j];
      if (a.buffer == b.buffer && a.begin < b.end && b.begin < a.end &&
          a.first_expert < b.last_expert && b.first_expert < a.last_expert) {
        const Instruction& fill = *exchange.fills.front();
        return Violation(segment, "exchange {} of mailbox {}: two ranks give column {} of {}",
                         fill.imm[1], fill.imm[0], std::max(a.begin, b.begin),
                         program.buffers[a.buffer].name);
      }
    }
  }
  return {};
}

Status CheckExchange(const Program& program, const Segment& segment, const Key& key,
                     const Exchange& exchange) {
  const Mailbox& mailbox = program.mailboxes[static_cast<std::size_t>(key.first)];
  if (exchange.fills.empty() || exchange.publishes.size() != 1) {
    return Violation(segment, "exchange {} of mailbox {} is filled {} times and published {} times",
                     key.second, key.first, exchange.fills.size(), exchange.publishes.size());
  }
  MEGALITH_RETURN_IF_ERROR(CheckShares(segment, exchange.fills, "fill"));
  const Instruction& fill = *exchange.fills.front();
  const Instruction& publish = *exchange.publishes.front();
  if (publish.trip != fill.trip || publish.imm != fill.imm ||
      !std::equal(publish.operands.begin(), publish.operands.end(), fill.operands.begin(),
                  SameOperand)) {
    return Violation(segment, "exchange {} of mailbox {} publishes other columns than it fills in",
                     key.second, key.first);
  }
  for (std::int32_t source = mailbox.first_rank; source < mailbox.first_rank + mailbox.num_ranks;
       ++source) {
    if (source == program.sharding.rank) continue;
    const auto receives = exchange.receives.find(source);
    if (receives == exchange.receives.end()) {
      return Violation(segment, "exchange {} of mailbox {}: nothing is received from rank {}",
                       key.second, key.first, source);
    }
    MEGALITH_RETURN_IF_ERROR(CheckShares(segment, receives->second, "receive"));
  }
  if (static_cast<std::int32_t>(exchange.receives.size()) != mailbox.num_ranks - 1) {
    return Violation(segment, "exchange {} of mailbox {} has receives from {} ranks, {} expected",
                     key.second, key.first, exchange.receives.size(), mailbox.num_ranks - 1);
  }
  return CheckRegions(program, segment, exchange);
}

Status CheckSegment(const Program& program, const Segment& segment) {
  std::map<Key, Exchange> exchanges;
  for (const Stream& stream : segment.streams) {
    for (const Instruction& instruction : stream.instructions) {
      const Key key{instruction.imm[0], instruction.imm[1]};
      switch (instruction.opcode) {
        case Opcode::kExchangeFill:
          exchanges[key].fills.push_back(&instruction);
          break;
        case Opcode::kExchangePublish:
          exchanges[key].publishes.push_back(&instruction);
          break;
        case Opcode::kExchangeReceive:
          exchanges[key].receives[instruction.imm[2]].push_back(&instruction);
          break;
        default:
          break;
      }
    }
  }
  std::map<std::int32_t, std::int32_t> next;  // per mailbox
  for (const auto& [key, exchange] : exchanges) {
    if (key.second != next[key.first]++) {
      return Violation(segment, "exchange {} of mailbox {} does not follow the one before",
                       key.second, key.first);
    }
    MEGALITH_RETURN_IF_ERROR(CheckExchange(program, segment, key, exchange));
  }
  return {};
}

}  // namespace

Status ProveExchanges(const Program& program) {
  for (const Segment& segment : program.segments) {
    MEGALITH_RETURN_IF_ERROR(CheckSegment(program, segment));
  }
  std::vector<std::int64_t> next(program.mailboxes.size(), 0);
  for (std::size_t i = 0; i < program.visits.size(); ++i) {
    const Visit& visit = program.visits[i];
    if (visit.first_exchange != next) {
      return Fail(ErrorCode::kBadProgram,
                  "V6: visit {}: its exchanges are numbered from {}, not {}", i,
                  fmt::join(visit.first_exchange, ", "), fmt::join(next, ", "));
    }
    for (std::size_t mailbox = 0; mailbox < next.size(); ++mailbox) {
      next[mailbox] +=
          CountExchanges(program.segments[visit.segment], static_cast<std::int64_t>(mailbox));
    }
  }
  return {};
}

}  // namespace megalith::program
