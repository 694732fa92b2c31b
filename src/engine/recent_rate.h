#pragma once

namespace megalith::engine {

/// Tokens per plain step of about the last 32 rounds, older ones fading. Begins with eight plain
/// steps, so that the first rounds do not decide alone.
class RecentRate {
 public:
  /// A round that brought `tokens` at `cost` plain steps.
  void Add(double tokens, double cost) {
    tokens_ += tokens - tokens_ / kMemory;
    cost_ += cost - cost_ / kMemory;
  }
  double value() const { return tokens_ / cost_; }

 private:
  static constexpr double kMemory = 32;
  static constexpr double kFirstSteps = 8;

  double tokens_ = kFirstSteps;
  double cost_ = kFirstSteps;
};

}  // namespace megalith::engine
