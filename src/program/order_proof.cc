// V2, V3, V5: no deadlock, exact waits, no races.
//
// For every pair of consecutive visits the streams of all workers (and the host between steps) are
// run symbolically. Counters only grow, so if one greedy order lets everybody finish, every order
// does (V2). Each signal carries what its worker knows: a vector clock with, per worker, how many
// of its instructions are complete. Waits need all signals of their visit (V3), so a wait learns
// the join of them. Two conflicting accesses are ordered if the later one's clock covers the
// earlier (V5). That a pair's second visit ends knowing everything of the first makes the step
// follow by induction: visits that are not neighbours are always ordered.
//
// The exchanges of each mailbox take turns (V6, exchange_proof.cc): fill, publish, receive, fill,
// ... A receive counts as possible once this rank has published the same exchange. The slots are a
// buffer, so V5 orders all accesses to them, and one order that was run stands for every other.

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "program/dump.h"
#include "program/effects.h"
#include "program/exchange.h"
#include "program/proofs.h"

namespace megalith::program {
namespace {

/// Per worker: number of instructions (of the pair's concatenated stream) known to be complete.
using Clock = std::vector<std::uint32_t>;

void Join(Clock& clock, const Clock& other) {
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

// ---- V3, counted once per program
// ----------------------------------------------------------------

Status CountSignals(const Program& program) {
  for (std::size_t index = 0; index < program.segments.size(); ++index) {
    const Segment& segment = program.segments[index];
    std::vector<std::int64_t> signals(program.counters.size(), 0);
    std::set<std::uint32_t> awaited;
    for (std::size_t worker = 0; worker < segment.streams.size(); ++worker) {
      const auto& instructions = segment.streams[worker].instructions;
      for (std::size_t i = 0; i < instructions.size(); ++i) {
        const Instruction& instruction = instructions[i];
        if (instruction.signal_counter != kNone) ++signals[instruction.signal_counter];
        if (instruction.wait_counter == kNone) continue;
        const Counter& counter = program.counters[instruction.wait_counter];
        if (counter.scope == CounterScope::kDone) {
          return Fail(ErrorCode::kBadProgram,
                      "V3: segment {} worker {} instruction {}: only the host waits for {}",
                      segment.name, worker, i, counter.name);
        }
        if (instruction.wait_amount != counter.signals_per_visit) {
          return Fail(ErrorCode::kBadProgram,
                      "V3: segment {} worker {} instruction {}: waits for {} signals of {}, all {} "
                      "expected",
                      segment.name, worker, i, instruction.wait_amount, counter.name,
                      counter.signals_per_visit);
        }
      }
    }
    for (std::size_t i = 0; i < program.counters.size(); ++i) {
      const Counter& counter = program.counters[i];
      std::int64_t expected = 0;
      if (counter.scope == CounterScope::kSegment && counter.segment == index) {
        expected = counter.signals_per_visit;
      }
      if (counter.scope == CounterScope::kProgram) expected = counter.signals_per_visit;
      if (counter.scope == CounterScope::kDone && index == program.visits.back().segment) {
        expected = counter.signals_per_visit;
      }
      if (signals[i] != expected) {
        return Fail(ErrorCode::kBadProgram,
                    "V3: segment {}: {} signals of {} per visit expected, {} found", segment.name,
                    expected, counter.name, signals[i]);
      }
    }
  }
  return {};
}

/// The step must begin in a segment that is visited once and waits for the host, and end in one
/// that is visited once and tells it.
Status CheckHandOver(const Program& program) {
  const auto visits_of = [&program](std::uint32_t segment) {
    return std::count_if(program.visits.begin(), program.visits.end(),
                         [segment](const Visit& visit) { return visit.segment == segment; });
  };
  std::size_t hosts = 0;
  std::size_t dones = 0;
  for (const Counter& counter : program.counters) {
    hosts += counter.scope == CounterScope::kHost ? 1 : 0;
    dones += counter.scope == CounterScope::kDone ? 1 : 0;
  }
  if (hosts != 1 || dones != 1 || visits_of(program.visits.front().segment) != 1 ||
      visits_of(program.visits.back().segment) != 1) {
    return Fail(ErrorCode::kBadProgram,
                "V3: one start counter, one done counter, and a first and last visit with segments "
                "of their own expected");
  }
  for (std::size_t index = 0; index < program.segments.size(); ++index) {
    const bool first = index == program.visits.front().segment;
    const bool last = index == program.visits.back().segment;
    for (std::size_t worker = 0; worker < program.segments[index].streams.size(); ++worker) {
      std::int64_t begins = 0;
      std::int64_t ends = 0;
      for (const Instruction& instruction : program.segments[index].streams[worker].instructions) {
        const bool waits_for_host =
            instruction.wait_counter != kNone &&
            program.counters[instruction.wait_counter].scope == CounterScope::kHost;
        const bool tells_host =
            instruction.signal_counter != kNone &&
            program.counters[instruction.signal_counter].scope == CounterScope::kDone;
        if (waits_for_host != (instruction.opcode == Opcode::kStepBegin) ||
            tells_host != (instruction.opcode == Opcode::kStepEnd)) {
          return Fail(ErrorCode::kBadProgram,
                      "V3: segment {} worker {}: exactly step_begin waits for the host, exactly "
                      "step_end tells it",
                      program.segments[index].name, worker);
        }
        begins += waits_for_host ? 1 : 0;
        ends += tells_host ? 1 : 0;
      }
      if (begins != (first ? 1 : 0) || ends != (last ? 1 : 0)) {
        return Fail(ErrorCode::kBadProgram,
                    "V3: segment {} worker {}: {} step_begin and {} step_end",
                    program.segments[index].name, worker, begins, ends);
      }
    }
  }
  return {};
}

// ---- one pair of visits ------------------------------------------------------------------------

class PairProof {
 public:
  PairProof(const Program& program, const SegmentPair& pair)
      : program_(program),
        pair_(pair),
        num_workers_(static_cast<std::size_t>(program.num_workers)),
        workers_(num_workers_),
        counters_(program.counters.size()),
        turns_(program.mailboxes.size()) {}

  Status Run() {
    MEGALITH_RETURN_IF_ERROR(Execute());
    MEGALITH_RETURN_IF_ERROR(CheckFirstVisitCovered());
    for (std::size_t mailbox = 0; mailbox < turns_.size(); ++mailbox) {
      if (turns_[mailbox].receives_left == 0) continue;
      return Fail(ErrorCode::kBadProgram, "V6: segment {} ends before mailbox {} is read",
                  segment(true).name, mailbox);
    }
    return CheckRaces();
  }

 private:
  /// An instruction's position: which worker, which instruction of the concatenated stream.
  struct Position {
    std::uint32_t worker;
    std::uint32_t index;
  };
  struct TimedAccess {
    Position position;
    std::uint32_t clock;  ///< index into clocks_: what the instruction knows when it starts
    bool second_visit;
    Effect effect;
  };
  struct Worker {
    std::uint32_t next = 0;
    Clock clock;
    std::uint32_t clock_index = 0;
  };
  struct Turn {
    std::int64_t published = 0;
    std::int64_t receives_left = 0;  ///< of the exchange published last
  };
  struct CounterState {
    // [0]: signals of the first visit, [1]: of the second.
    std::int64_t count[2] = {0, 0};
    Clock clock[2];
    std::vector<Position> first_visit_signals;
  };

  const Segment& segment(bool second) const {
    return program_.segments[second ? pair_.second : pair_.first];
  }
  std::size_t FirstLength(std::size_t worker) const {
    return segment(false).streams[worker].instructions.size();
  }
  std::size_t TotalLength(std::size_t worker) const {
    return FirstLength(worker) + segment(true).streams[worker].instructions.size();
  }
  const Instruction& At(Position position, bool* second) const {
    const std::size_t first = FirstLength(position.worker);
    *second = position.index >= first;
    return *second ? segment(true).streams[position.worker].instructions[position.index - first]
                   : segment(false).streams[position.worker].instructions[position.index];
  }
  std::string Where(Position position) const {
    bool second = false;
    const Instruction& instruction = At(position, &second);
    const Segment& owner = segment(second);
    return fmt::format("segment {} worker {} instruction {} ({})", owner.name, position.worker,
                       position.index - (second ? FirstLength(position.worker) : 0),
                       Describe(program_, owner, owner.streams[position.worker], instruction));
  }

  Status Execute() {
    for (Worker& worker : workers_) worker.clock.assign(num_workers_, 0);
    for (CounterState& counter : counters_) {
      counter.clock[0].assign(num_workers_, 0);
      counter.clock[1].assign(num_workers_, 0);
    }
    // Before the pair nothing is known, and nothing needs to be: what came before is ordered before
    // this pair by the previous one.
    clocks_.push_back(Clock(num_workers_, 0));
    for (bool progress = true; progress;) {
      progress = false;
      for (std::uint32_t worker = 0; worker < num_workers_; ++worker) {
        while (workers_[worker].next < TotalLength(worker)) {
          MEGALITH_ASSIGN_OR_RETURN(const bool advanced, TryStep(worker));
          if (!advanced) break;
          progress = true;
        }
      }
    }
    for (std::uint32_t worker = 0; worker < num_workers_; ++worker) {
      if (workers_[worker].next < TotalLength(worker)) {
        return Fail(ErrorCode::kBadProgram, "V2: deadlock: {} can never start",
                    Where({worker, workers_[worker].next}));
      }
    }
    return {};
  }

  /// Runs the worker's next instruction if its wait is satisfied.
  Result<bool> TryStep(std::uint32_t index) {
    Worker& worker = workers_[index];
    const Position position{index, worker.next};
    bool second = false;
    const Instruction& instruction = At(position, &second);
    if (instruction.wait_counter != kNone) {
      if (!Satisfied(instruction, second)) return false;
      Learn(worker, instruction, second);
    }
    for (const Effect& effect : Effects(program_, instruction)) {
      accesses_[effect.buffer].push_back({position, worker.clock_index, second, effect});
    }
    MEGALITH_RETURN_IF_ERROR(TakeTurn(position, instruction, second));
    worker.clock[index] = ++worker.next;
    if (instruction.signal_counter != kNone) {
      MEGALITH_RETURN_IF_ERROR(Signal(position, instruction, second));
    }
    return true;
  }

  /// Where an exchange instruction stands among those of its mailbox.
  Status TakeTurn(Position position, const Instruction& instruction, bool second) {
    if (!IsExchange(instruction.opcode)) return {};
    Turn& turn = turns_[static_cast<std::size_t>(instruction.imm[0])];
    // Exchanges of the pair are numbered on from the first visit to the second.
    const std::int64_t before = second ? CountExchanges(segment(false), instruction.imm[0]) : 0;
    const std::int64_t number = before + instruction.imm[1];
    const bool receives = instruction.opcode == Opcode::kExchangeReceive;
    const bool in_turn = receives ? turn.published == number + 1
                                  : turn.published == number && turn.receives_left == 0;
    if (!in_turn) {
      return Fail(ErrorCode::kBadProgram,
                  "V6: {}: exchange {} of mailbox {} is not its turn: {} published, {} receives of "
                  "the last one to come",
                  Where(position), number, instruction.imm[0], turn.published, turn.receives_left);
    }
    if (receives) --turn.receives_left;
    if (instruction.opcode == Opcode::kExchangePublish) {
      ++turn.published;
      turn.receives_left = CountReceives(segment(second), instruction);
    }
    return {};
  }

  /// Instructions that receive what `publish` publishes.
  static std::int64_t CountReceives(const Segment& segment, const Instruction& publish) {
    std::int64_t count = 0;
    for (const Stream& stream : segment.streams) {
      count += std::count_if(stream.instructions.begin(), stream.instructions.end(),
                             [&publish](const Instruction& other) {
                               return other.opcode == Opcode::kExchangeReceive &&
                                      other.imm[0] == publish.imm[0] &&
                                      other.imm[1] == publish.imm[1];
                             });
    }
    return count;
  }

  /// Where a wait's signals come from: the previous visit for hand-over counters (and the host),
  /// the same visit otherwise. Signals from before the pair are there by induction.
  bool Satisfied(const Instruction& instruction, bool second) const {
    const Counter& counter = program_.counters[instruction.wait_counter];
    const CounterState& state = counters_[instruction.wait_counter];
    switch (counter.scope) {
      case CounterScope::kSegment:
        return state.count[second] >= instruction.wait_amount;
      case CounterScope::kProgram:
        return !second || state.count[0] >= instruction.wait_amount;
      case CounterScope::kHost:
        return !second || HostHasStarted();
      case CounterScope::kDone:
        return false;
    }
    return false;
  }

  bool HostHasStarted() const {
    const std::uint32_t done = DoneCounter();
    return pair_.wraps && counters_[done].count[0] >= program_.counters[done].signals_per_visit;
  }
  std::uint32_t DoneCounter() const {
    for (std::uint32_t i = 0; i < program_.counters.size(); ++i) {
      if (program_.counters[i].scope == CounterScope::kDone) return i;
    }
    return kNone;
  }

  void Learn(Worker& worker, const Instruction& instruction, bool second) {
    const Counter& counter = program_.counters[instruction.wait_counter];
    const CounterState& state = counters_[instruction.wait_counter];
    switch (counter.scope) {
      case CounterScope::kSegment:
        Join(worker.clock, state.clock[second]);
        break;
      case CounterScope::kProgram:
        if (second) Join(worker.clock, state.clock[0]);
        break;
      case CounterScope::kHost:
        // The host waited for every worker's step_end before it started the next step.
        if (second) Join(worker.clock, counters_[DoneCounter()].clock[0]);
        break;
      case CounterScope::kDone:
        break;
    }
    worker.clock_index = static_cast<std::uint32_t>(clocks_.size());
    clocks_.push_back(worker.clock);
  }

  Status Signal(Position position, const Instruction& instruction, bool second) {
    CounterState& state = counters_[instruction.signal_counter];
    const Clock& clock = workers_[position.worker].clock;
    ++state.count[second];
    Join(state.clock[second], clock);
    if (!second) {
      state.first_visit_signals.push_back(position);
      return {};
    }
    // Counters are never zeroed: a signal of this visit that could arrive before one of the last
    // would satisfy a wait of the last visit too early.
    const Counter& counter = program_.counters[instruction.signal_counter];
    const bool in_both = counter.scope == CounterScope::kProgram || pair_.first == pair_.second;
    if (in_both && state.count[0] < counter.signals_per_visit) {
      return Fail(ErrorCode::kBadProgram, "V3: {} may signal {} before the visit before has",
                  Where(position), counter.name);
    }
    for (const Position& earlier : state.first_visit_signals) {
      if (clock[earlier.worker] <= earlier.index) {
        return Fail(ErrorCode::kBadProgram, "V3: {} may signal {} before {} has", Where(position),
                    counter.name, Where(earlier));
      }
    }
    return {};
  }

  Status CheckFirstVisitCovered() const {
    for (std::uint32_t worker = 0; worker < num_workers_; ++worker) {
      for (std::uint32_t other = 0; other < num_workers_; ++other) {
        if (workers_[worker].clock[other] < FirstLength(other)) {
          return Fail(ErrorCode::kBadProgram,
                      "V5: worker {} can finish segment {} while {} of the visit before is running",
                      worker, segment(true).name, Where({other, workers_[worker].clock[other]}));
        }
      }
    }
    return {};
  }

  // ---- races ----------------------------------------------------------------------------------

  bool Ordered(const TimedAccess& a, const TimedAccess& b) const {
    return clocks_[b.clock][a.position.worker] > a.position.index ||
           clocks_[a.clock][b.position.worker] > b.position.index;
  }

  Status CheckRaces() const {
    for (const auto& [buffer, accesses] : accesses_) {
      MEGALITH_RETURN_IF_ERROR(CheckPairs(accesses, accesses, true));
    }
    // Buffers that share memory: any access to one conflicts with any write to the other.
    for (auto a = accesses_.begin(); a != accesses_.end(); ++a) {
      for (auto b = std::next(a); b != accesses_.end(); ++b) {
        if (Aliased(a->first, b->first)) {
          MEGALITH_RETURN_IF_ERROR(CheckPairs(a->second, b->second, false));
        }
      }
    }
    return {};
  }

  bool Aliased(std::uint32_t a, std::uint32_t b) const {
    const Buffer& first = program_.buffers[a];
    const Buffer& second = program_.buffers[b];
    return BufferBytes(first) > 0 && BufferBytes(second) > 0 &&
           first.offset < second.offset + BufferBytes(second) &&
           second.offset < first.offset + BufferBytes(first);
  }

  Status CheckPairs(const std::vector<TimedAccess>& left, const std::vector<TimedAccess>& right,
                    bool same_buffer) const {
    for (const TimedAccess& a : left) {
      if (!a.effect.writes && same_buffer) continue;  // found from the writer's side
      const BufferKind kind = program_.buffers[a.effect.buffer].kind;
      for (const TimedAccess& b : right) {
        if (a.position.worker == b.position.worker) continue;
        if (!a.effect.writes && !b.effect.writes) continue;
        // Each visit has its own state (V1), so visits cannot disturb each other's.
        if (IsLayerState(kind) && a.second_visit != b.second_visit) continue;
        if (same_buffer && !Conflict(a.effect, b.effect)) continue;
        if (Ordered(a, b)) continue;
        return Fail(ErrorCode::kBadProgram, "V5: race on {}{}{}: {} and {} are not ordered",
                    program_.buffers[a.effect.buffer].name, same_buffer ? "" : " and ",
                    same_buffer ? "" : program_.buffers[b.effect.buffer].name, Where(a.position),
                    Where(b.position));
      }
    }
    return {};
  }

  const Program& program_;
  SegmentPair pair_;
  std::size_t num_workers_;
  std::vector<Worker> workers_;
  std::vector<CounterState> counters_;
  std::vector<Turn> turns_;  // per mailbox
  std::vector<Clock> clocks_;
  std::map<std::uint32_t, std::vector<TimedAccess>> accesses_;  // by buffer
};

}  // namespace

Status ProveOrder(const Program& program) {
  MEGALITH_RETURN_IF_ERROR(CheckHandOver(program));
  MEGALITH_RETURN_IF_ERROR(CountSignals(program));
  for (const SegmentPair& pair : ConsecutivePairs(program)) {
    MEGALITH_RETURN_IF_ERROR(PairProof(program, pair).Run());
  }
  return {};
}

}  // namespace megalith::program
