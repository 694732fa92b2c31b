#pragma once

// How likely drafts are accepted, learnt from one sequence.
//
// Without confidences the chance of draft k, given that those before it were accepted, is
//
//     a[k] = (s[k] + w * a[k-1]) / (n[k] + w),       a[-1] = a prior,
//
// of n[k] drafts seen at position k, s[k] accepted: a position never reached is as good as the one
// before it. With a confidence logit z the chance is that of drafts with logits like it,
//
//     c(z) = (s[b] + w * sigmoid(z)) / (n[b] + w),   b = the bin of z,
//
// which trusts the drafter until it is seen to be wrong, whatever it is wrong by. The two are mixed
// as their predictions have deserved: the weight of c is sigmoid(merit), where every draft judged
// adds log(what c gave to the outcome / what a gave to it) to merit. All of this fades slowly;
// where the text changes, a run of first drafts all accepted or all rejected that was unlikely by
// the above makes the counts fade at once.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace megalith::engine {

class DraftAcceptance {
 public:
  explicit DraftAcceptance(std::int32_t max_drafts);

  /// Fills chances[k], in [0, 1], for every k < chances.size() <= max_drafts. `confidence` may be
  /// shorter or hold NaN: such drafts are judged by their position.
  void Chances(std::span<const float> confidence, std::span<double> chances) const;

  /// Learns from a step that verified `num_drafts` drafts, proposed with `confidence` (as above),
  /// and accepted the first `num_accepted`.
  void Record(std::span<const float> confidence, std::int32_t num_drafts,
              std::int32_t num_accepted);

  /// First drafts that were judged, as far as they are remembered.
  double num_judged() const { return positions_.empty() ? 0.0 : positions_.front().seen; }

  /// Fades all that was learnt to the weight of at most one draft each, so that the next few
  /// decide.
  void Doubt();

 private:
  struct Count {
    double seen = 0.0;
    double accepted = 0.0;
    void Fade(double factor) { seen *= factor, accepted *= factor; }
    void Add(bool was_accepted);
    double Share(double prior) const;
  };
  static constexpr int kNumBins = 8;
  static std::size_t BinOf(float confidence);
  double ByConfidence(float confidence) const;
  void NoticeChange(std::span<const float> confidence, bool accepted);

  std::vector<Count> positions_;  // [max_drafts]
  std::array<Count, kNumBins> bins_;
  double merit_;                 ///< of confidences over positions
  bool last_accepted_ = false;   ///< the first draft of the last round that had one
  double run_likelihood_ = 1.0;  ///< of the run of such outcomes, as they were expected
};

}  // namespace megalith::engine
