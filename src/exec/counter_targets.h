#pragma once

// Counters are never zeroed; what a wait compares with grows with every step. This is the one place
// that knows how (design: target = epoch * per_epoch + visit * per_visit + static part).

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace megalith::exec {

/// Targets of one Program. `epoch` counts its steps from 0.
class CounterTargets {
 public:
  explicit CounterTargets(const program::Program& program);

  /// Value the instruction's wait counter must have reached. The instruction waits.
  std::int64_t Wait(const program::Instruction& instruction, std::int64_t visit_index,
                    std::int64_t epoch) const {
    const Rule& rule = rules_[instruction.wait_counter];
    const std::int64_t ordinal =
        rule.by_ordinal ? program_->visits[static_cast<std::size_t>(visit_index)].ordinal
                        : rule.visit_factor * visit_index;
    return epoch * rule.per_epoch + (ordinal + rule.visit_offset) * rule.per_visit +
           instruction.wait_amount;
  }

  /// The counters the host signals at the start of a step, each once.
  const std::vector<std::uint32_t>& host_counters() const { return host_counters_; }
  /// The counter the workers signal at the end of a step, or kNone.
  std::uint32_t done_counter() const { return done_counter_; }
  /// Its value when all workers have finished step `epoch`.
  std::int64_t Done(std::int64_t epoch) const { return (epoch + 1) * done_signals_; }

 private:
  /// target = epoch * per_epoch + (ordinal or visit index + visit_offset) * per_visit + amount
  struct Rule {
    bool by_ordinal = false;
    std::int64_t visit_factor = 0;
    std::int64_t visit_offset = 0;
    std::int64_t per_visit = 0;
    std::int64_t per_epoch = 0;
  };

  const program::Program* program_;
  std::vector<Rule> rules_;
  std::vector<std::uint32_t> host_counters_;
  std::uint32_t done_counter_ = program::kNone;
  std::int64_t done_signals_ = 0;
};

}  // namespace megalith::exec
