#include "program/compile/synchronize.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "program/effects.h"

namespace megalith::program {
namespace {

struct PastAccess {
  std::int32_t worker;
  std::int32_t phase;
  Effect effect;
};

/// clock[v]: the last phase of worker v that is known to be complete; -1 for none.
using Clock = std::vector<std::int32_t>;

class Synchronizer {
 public:
  Synchronizer(SegmentBuilder& builder, bool barriers)
      : builder_(builder),
        barriers_(barriers),
        num_workers_(static_cast<std::size_t>(builder.num_workers())),
        clocks_(num_workers_, Clock(num_workers_, -1)),
        signal_clocks_(builder.phase_names().size()),
        signallers_(builder.phase_names().size()) {}

  void Run() {
    const auto num_phases = static_cast<std::int32_t>(builder_.phase_names().size());
    std::vector<std::size_t> next(num_workers_, 0);
    std::vector<std::vector<PhasedInstruction>> ordered(num_workers_);
    for (std::int32_t phase = 0; phase < num_phases; ++phase) {
      for (std::size_t worker = 0; worker < num_workers_; ++worker) {
        const auto& source = builder_.streams[worker];
        bool took_part = false;
        const bool has_work = next[worker] < source.size() && source[next[worker]].phase == phase;
        if (barriers_ && (phase > 0 || !has_work)) {
          ordered[worker].push_back(Meet(phase));
          took_part = true;
        }
        while (next[worker] < source.size() && source[next[worker]].phase == phase) {
          if (barriers_) {
            ordered[worker].push_back(source[next[worker]]);
          } else {
            AddWaits(worker, source[next[worker]], ordered[worker]);
          }
          ++next[worker];
          took_part = true;
        }
        clocks_[worker][worker] = phase;
        if (took_part) signallers_[static_cast<std::size_t>(phase)].push_back(worker);
      }
      FinishPhase(static_cast<std::size_t>(phase));
    }
    builder_.streams = std::move(ordered);
    AddSignals();
  }

 private:
  /// Takes part in `phase` with nothing but the wait for everybody's previous one.
  PhasedInstruction Meet(std::int32_t phase) {
    PhasedInstruction meet{phase, {}};
    if (phase > 0) {
      meet.instruction.wait_counter = static_cast<std::uint32_t>(phase - 1);
      awaited_.insert(phase - 1);
    }
    return meet;
  }

  /// Phases of other workers that must be complete before `item` starts.
  std::set<std::int32_t, std::greater<>> Dependencies(std::size_t worker,
                                                      const std::vector<Effect>& effects) const {
    std::set<std::int32_t, std::greater<>> phases;
    for (const Effect& effect : effects) {
      const auto group = past_.find(effect.buffer);
      if (group == past_.end()) continue;
      for (const PastAccess& past : group->second) {
        if (static_cast<std::size_t>(past.worker) == worker) continue;
        if (clocks_[worker][static_cast<std::size_t>(past.worker)] >= past.phase) continue;
        if (Conflict(past.effect, effect)) phases.insert(past.phase);
      }
    }
    return phases;
  }

  void AddWaits(std::size_t worker, const PhasedInstruction& item,
                std::vector<PhasedInstruction>& ordered) {
    const std::vector<Effect> effects = Effects(builder_.builder.program, item.instruction);
    std::vector<std::int32_t> waits;
    // The latest phase first: joining it usually implies the earlier ones.
    for (auto phases = Dependencies(worker, effects); !phases.empty();
         phases = Dependencies(worker, effects)) {
      const std::int32_t phase = *phases.begin();
      waits.push_back(phase);
      awaited_.insert(phase);
      const Clock& learned = signal_clocks_[static_cast<std::size_t>(phase)];
      for (std::size_t v = 0; v < num_workers_; ++v) {
        clocks_[worker][v] = std::max(clocks_[worker][v], learned[v]);
      }
    }
    for (std::size_t i = 0; i + 1 < waits.size(); ++i) {
      PhasedInstruction wait{item.phase, {}};
      wait.instruction.wait_counter = static_cast<std::uint32_t>(waits[i]);
      ordered.push_back(wait);
    }
    ordered.push_back(item);
    if (!waits.empty()) {
      ordered.back().instruction.wait_counter = static_cast<std::uint32_t>(waits.back());
    }
    for (const Effect& effect : effects) {
      past_[effect.buffer].push_back({static_cast<std::int32_t>(worker), item.phase, effect});
    }
  }

  /// What somebody learns who waits for all signals of the phase.
  void FinishPhase(std::size_t phase) {
    Clock& learned = signal_clocks_[phase];
    learned.assign(num_workers_, -1);
    for (std::size_t worker : signallers_[phase]) {
      for (std::size_t v = 0; v < num_workers_; ++v) {
        learned[v] = std::max(learned[v], clocks_[worker][v]);
      }
    }
  }

  /// Gives awaited phases their counters and turns phase numbers in wait_counter into counter ids.
  void AddSignals() {
    std::map<std::int32_t, std::uint32_t> counters;
    Program& program = builder_.builder.program;
    for (std::int32_t phase : awaited_) {
      const auto index = static_cast<std::size_t>(phase);
      counters[phase] = static_cast<std::uint32_t>(program.counters.size());
      program.counters.push_back({builder_.segment.name + "." + builder_.phase_names()[index],
                                  CounterScope::kSegment,
                                  static_cast<std::uint32_t>(program.segments.size()),
                                  static_cast<std::int32_t>(signallers_[index].size())});
    }
    for (auto& stream : builder_.streams) {
      for (std::size_t i = 0; i < stream.size(); ++i) {
        Instruction& instruction = stream[i].instruction;
        if (instruction.wait_counter != kNone) {
          instruction.wait_counter =
              counters.at(static_cast<std::int32_t>(instruction.wait_counter));
          instruction.wait_amount = program.counters[instruction.wait_counter].signals_per_visit;
        }
        const bool last_of_phase = i + 1 == stream.size() || stream[i + 1].phase != stream[i].phase;
        if (last_of_phase && awaited_.count(stream[i].phase) != 0) {
          instruction.signal_counter = counters.at(stream[i].phase);
          instruction.signal_amount = 1;
        }
      }
    }
  }

  SegmentBuilder& builder_;
  bool barriers_;
  std::size_t num_workers_;
  std::vector<Clock> clocks_;                              // per worker
  std::vector<Clock> signal_clocks_;                       // per phase
  std::vector<std::vector<std::size_t>> signallers_;       // per phase
  std::map<std::uint32_t, std::vector<PastAccess>> past_;  // by buffer
  std::set<std::int32_t> awaited_;
};

}  // namespace

void Synchronize(SegmentBuilder& builder) { Synchronizer(builder, false).Run(); }

void SynchronizeWithBarriers(SegmentBuilder& builder) { Synchronizer(builder, true).Run(); }

}  // namespace megalith::program
