#include "kernels/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "base/align.h"
#include "base/check.h"
#include "kernels/numerics.h"

namespace megalith::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// With its inverse a normal float; lower ones are greedy.
constexpr float kLeastTemperature = 0x1p-126f;
/// Tokens that are passed over together if none of them matters.
constexpr std::int64_t kChunk = 64;

/// SplitMix64: every bit of the input changes every bit of the output.
std::uint64_t Mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

/// Random numbers by index. The state goes up by a constant per index; both halves of a 128-bit
/// product of it are the output (as in wyrand), which takes one multiplication.
class RandomStream {
 public:
  static constexpr std::uint64_t kStep = 0xa0761d6478bd642fu;
  explicit RandomStream(std::uint64_t start) : start_(start) {}
  std::uint64_t State(std::int64_t index) const {
    return start_ + static_cast<std::uint64_t>(index) * kStep;
  }
  static std::uint64_t Output(std::uint64_t state) {
    const auto product = static_cast<unsigned __int128>(state) * (state ^ 0xe7037ed1a0b428dbu);
    return static_cast<std::uint64_t>(product >> 64) ^ static_cast<std::uint64_t>(product);
  }

 private:
  std::uint64_t start_;
};

/// The noise of every token at one position, 52 bits each. Two tokens share a random number for the
/// high 32 bits, which are nearly always enough to see that a token loses; the low 20 have their
/// own.
class Noise {
 public:
  Noise(std::uint64_t seed, std::int64_t position) : Noise(Mix(Mix(seed) ^ AsBits(position))) {}

  double Of(std::int64_t token) const {
    const std::uint64_t pair = pairs_.Output(pairs_.State(token / 2));
    const auto half = static_cast<std::uint32_t>(pair >> (32 * (token % 2)));
    const std::uint64_t high = half ^ 0x80000000u;
    const std::uint64_t low = singles_.Output(singles_.State(token)) >> 44;
    return (static_cast<double>(high << 20 | low) + 0.5) * 0x1p-52;
  }

  /// noise * 2^32 - 2^31, rounded down, of the tokens from `begin` on, an even one.
  void HighBits(std::int64_t begin, std::int32_t (&high)[kChunk]) const {
    std::uint64_t outputs[kChunk / 2];
    std::uint64_t state = pairs_.State(begin / 2);
    for (std::uint64_t& output : outputs) {
      output = RandomStream::Output(state);
      state += RandomStream::kStep;
    }
    static_assert(std::endian::native == std::endian::little && sizeof(high) == sizeof(outputs));
    std::memcpy(high, outputs, sizeof(high));
  }

 private:
  explicit Noise(std::uint64_t key) : pairs_(key), singles_(Mix(key)) {}
  static std::uint64_t AsBits(std::int64_t position) {
    return static_cast<std::uint64_t>(position);
  }

  RandomStream pairs_;
  RandomStream singles_;
};

/// Place in the order of likelihood, larger first: the logit, then the lower id.
std::uint64_t OrderKey(float logit, std::int64_t token) {
  const auto bits = std::bit_cast<std::uint32_t>(logit + 0.0f);  // + 0: both zeros are equal
  const std::uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(ordered) << 32 | ~static_cast<std::uint32_t>(token);
}
std::int32_t TokenOfKey(std::uint64_t key) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(key));
}

// A register of every x86-64; for loops that GCC would leave scalar.
typedef float Floats __attribute__((vector_size(16)));
typedef std::int32_t Ints __attribute__((vector_size(16)));
typedef double Doubles __attribute__((vector_size(32)));  // two registers
constexpr std::int64_t kVector = 4;

template <typename Vector, typename T>
Vector LoadVector(const T* p) {
  Vector result;
  std::memcpy(&result, p, sizeof(result));
  return result;
}

/// Whether one of the values is at most `limit`.
bool AnyUpTo(const std::int32_t (&values)[kChunk], std::int32_t limit) {
  Ints any = {};
  for (std::int64_t i = 0; i < kChunk; i += kVector) any |= LoadVector<Ints>(values + i) <= limit;
  return (any[0] | any[1] | any[2] | any[3]) != 0;
}

/// Largest of kChunk logits; sets *is_nan if one is NaN, which does not count.
float LargestOf(const float* logits, bool* is_nan) {
  Floats largest[2] = {LoadVector<Floats>(logits), LoadVector<Floats>(logits + kVector)};
  auto nan = largest[0] != largest[0];
  for (std::int64_t i = 0; i < kChunk; i += 2 * kVector) {
    for (std::int64_t j = 0; j < 2; ++j) {
      const Floats x = LoadVector<Floats>(logits + i + j * kVector);
      largest[j] = x > largest[j] ? x : largest[j];
      nan |= x != x;
    }
  }
  const Floats all = largest[1] > largest[0] ? largest[1] : largest[0];
  float result = -kInfinity;
  for (std::int64_t j = 0; j < kVector; ++j) {
    result = all[j] > result ? all[j] : result;
    *is_nan |= nan[j] != 0;
  }
  return result;
}

}  // namespace

/// One call of Sample.
class Sampling {
 public:
  Sampling(std::span<const float> logits, const SamplingOptions& options, std::int64_t position,
           SamplingScratch& scratch)
      : logits_(logits.data()),
        count_(static_cast<std::int64_t>(logits.size())),
        options_(options),
        noise_(options.seed, position),
        chunk_largest_(scratch.chunk_largest_.get()),
        keys_(scratch.keys_.get()),
        // So that neither it nor its inverse leaves the range of normal floats.
        inverse_temperature_(
            1.0f / std::clamp(options.temperature, kLeastTemperature, 1.0f / kLeastTemperature)) {}

  SampledToken Run() {
    FindLargest();
    // Written so that NaN fails.
    if (!(largest_ < kInfinity)) return {-1, FirstBadLogit()};
    if (largest_ == -kInfinity) return {-1, -1};
    first_ = FindFirst();
    if (options_.temperature < kLeastTemperature) return {first_, -1};
    cut_ = {-kInfinity, count_ - 1};
    if (options_.top_k > 0 && options_.top_k < count_) CutToTopK();
    if (options_.top_p < 1.0f) return {RaceInNucleus(), -1};
    return {Race(), -1};
  }

 private:
  /// The last token in order that is kept.
  struct Cut {
    float logit;
    std::int64_t token;
    bool Keeps(float other_logit, std::int64_t other) const {
      return other_logit > logit || (other_logit == logit && other <= token);
    }
  };

  /// Calls visit(begin) for every chunk with a logit that reaches `bar`.
  template <typename Visit>
  void ForEachChunk(float bar, Visit visit) const {
    for (std::int64_t begin = 0; begin < count_; begin += kChunk) {
      if (chunk_largest_[begin / kChunk] >= bar) visit(begin);
    }
  }

  /// The kChunk logits from `begin` on, in `padded` with impossible ones if there are fewer.
  const float* PaddedChunk(std::int64_t begin, float (&padded)[kChunk]) const {
    if (begin + kChunk <= count_) return logits_ + begin;
    std::fill_n(padded, kChunk, -kInfinity);
    std::copy(logits_ + begin, logits_ + count_, padded);
    return padded;
  }

  /// largest_ = the largest logit, NaN if one is; also that of every chunk.
  void FindLargest() {
    bool is_nan = false;
    for (std::int64_t begin = 0; begin < count_; begin += kChunk) {
      float padded[kChunk];
      const float largest = LargestOf(PaddedChunk(begin, padded), &is_nan);
      chunk_largest_[begin / kChunk] = largest;
      largest_ = largest > largest_ ? largest : largest_;
    }
    if (is_nan) largest_ = std::numeric_limits<float>::quiet_NaN();
  }

  std::int64_t FirstBadLogit() const {
    return std::find_if(logits_, logits_ + count_, [](float x) { return !(x < kInfinity); }) -
           logits_;
  }

  std::int32_t FindFirst() const {
    std::int64_t chunk = 0;
    while (chunk_largest_[chunk] != largest_) ++chunk;
    return static_cast<std::int32_t>(
        std::find(logits_ + chunk * kChunk, logits_ + count_, largest_) - logits_);
  }

  /// The logarithm of the weight: 0 for the largest logit.
  float Scaled(float logit) const { return (logit - largest_) * inverse_temperature_; }
  /// Exp(Scaled(logit)).
  float Weight(float logit) const {
    const float scaled = Scaled(logit);
    return scaled < constants::kExpMin ? 0.0f : ExpInRange(scaled);
  }

  /// Cuts after the top_k-th token in order. Collects tokens that may be among the first, and
  /// whenever there are many finds the top_k-th of these, which sets the bar for the others.
  void CutToTopK() {
    const auto top_k = static_cast<std::int64_t>(options_.top_k);
    const std::int64_t capacity = std::min(count_, std::max<std::int64_t>(2 * top_k, 256));
    std::int64_t collected = 0;
    float bar = -kInfinity;
    const auto keep_top_k = [&] {
      std::nth_element(keys_, keys_ + top_k - 1, keys_ + collected, std::greater<>());
      collected = top_k;
      bar = logits_[TokenOfKey(keys_[top_k - 1])];
    };
    for (std::int64_t i = 0; i < count_; ++i) {
      // A later token with the logit of the bar comes after it in order.
      if (i % kChunk == 0 && !(chunk_largest_[i / kChunk] > bar)) {
        i += kChunk - 1;
      } else if (logits_[i] > bar) {
        if (collected == capacity) keep_top_k();
        if (logits_[i] > bar) keys_[collected++] = OrderKey(logits_[i], i);
      }
    }
    if (collected < top_k) return;  // all others are impossible
    keep_top_k();
    cut_ = {bar, TokenOfKey(keys_[top_k - 1])};
  }

  /// The race among what the nucleus keeps, without looking for its end: who wins a race among more
  /// and is in the nucleus has won in the nucleus. If the winner is not, neither is what comes
  /// after it.
  std::int32_t RaceInNucleus() {
    std::int32_t winner = Race();
    double limit = -1.0;
    while (winner != first_) {
      const Cut before{logits_[winner], winner - 1};
      const Masses masses = SumMasses(before);
      if (limit < 0.0) limit = static_cast<double>(options_.top_p) * masses.kept;
      if (masses.before < limit) break;
      cut_ = before;
      winner = Race();
    }
    return winner;
  }

  struct Masses {
    double kept = 0.0;    ///< up to cut_
    double before = 0.0;  ///< up to another cut, which is before it
  };

  /// The mass of a token is its weight to a multiple of 2^-34. Sums of up to 2^18 of them are exact
  /// in double, so that a nucleus does not depend on the order of additions.
  Masses SumMasses(const Cut& before) const {
    constexpr float kUlpIsUnit = 0x1p-11f;  // adding it rounds to 2^-34, or 2^-24 of the weight
    Masses sums;
    ForEachChunk(cut_.logit, [&](std::int64_t begin) {
      float padded[kChunk];
      const float* logits = PaddedChunk(begin, padded);
      float masses[kChunk];
      for (std::int64_t j = 0; j < kChunk; ++j) {
        masses[j] = (Weight(logits[j]) + kUlpIsUnit) - kUlpIsUnit;
      }
      sums.kept += SumIfKept(logits, masses, begin, cut_);
      if (chunk_largest_[begin / kChunk] >= before.logit) {
        sums.before += SumIfKept(logits, masses, begin, before);
      }
    });
    return sums;
  }

  /// Of a chunk. The id decides among equal logits, and does so in the same way for a whole chunk
  /// but one.
  static double SumIfKept(const float* logits, const float (&masses)[kChunk], std::int64_t begin,
                          const Cut& cut) {
    const float bar = cut.logit;
    if (begin + kChunk <= cut.token + 1) {
      return SumIf(logits, masses, [bar](const Floats& x) { return x >= bar; });
    }
    if (begin > cut.token) {
      return SumIf(logits, masses, [bar](const Floats& x) { return x > bar; });
    }
    double sum = 0.0;
    for (std::int64_t j = 0; j < kChunk; ++j) {
      if (cut.Keeps(logits[j], begin + j)) sum += static_cast<double>(masses[j]);
    }
    return sum;
  }

  template <typename Test>
  static double SumIf(const float* logits, const float (&masses)[kChunk], Test test) {
    Doubles sum = {};
    for (std::int64_t j = 0; j < kChunk; j += kVector) {
      const Floats mass = LoadVector<Floats>(masses + j);
      sum +=
          __builtin_convertvector(test(LoadVector<Floats>(logits + j)) ? mass : Floats{}, Doubles);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }

  struct Runner {
    std::int32_t token;
    double time;
    bool Beats(const Runner& other) const {
      return time < other.time || (time == other.time && token < other.token);
    }
  };

  /// The token with the smallest time among those that are kept. Few tokens need a logarithm, or
  /// even their own weight: a time is at least noise / weight, and both have cheap bounds.
  std::int32_t Race() const {
    Runner winner{first_, Time(first_)};
    ForEachChunk(cut_.logit, [&](std::int64_t begin) {
      const float weight = WeightAtMost(chunk_largest_[begin / kChunk]);
      if (weight < options_.min_p) return;
      std::int32_t high[kChunk];
      noise_.HighBits(begin, high);
      if (!AnyUpTo(high, HighLimit(winner.time, weight))) return;
      const std::int64_t end = std::min(begin + kChunk, count_);
      for (std::int64_t i = begin; i < end; ++i) {
        if (high[i - begin] > HighLimit(winner.time, WeightAtMost(logits_[i]))) continue;
        const Runner runner{static_cast<std::int32_t>(i), Time(i)};
        if (cut_.Keeps(logits_[i], i) && runner.Beats(winner)) winner = runner;
      }
    });
    return winner.token;
  }

  /// Infinite if min-p drops the token or its weight is 0.
  double Time(std::int64_t token) const {
    const float weight = Weight(logits_[token]);
    if (weight < options_.min_p) return std::numeric_limits<double>::infinity();
    return -std::log1p(-noise_.Of(token)) / static_cast<double>(weight);
  }

  /// The high bits of a token that beats `time` are at most this, because noise <= -log(1 - noise).
  /// The margin is for the rounding in WeightAtMost.
  static std::int32_t HighLimit(double time, float weight) {
    const double limit = 0x1.01p+32 * time * static_cast<double>(weight) - 0x1p+31;
    return static_cast<std::int32_t>(std::min(limit, 0x1p+31 - 1.0));
  }

  /// At most 6 % above the weight: 2^n (1 + f) >= 2^(n + f) for 0 <= f < 1, and a float is made of
  /// n and f.
  float WeightAtMost(float logit) const {
    constexpr float kOne = 127.0f * 0x1p+23f;
    const float fields = Scaled(logit) * (constants::kLog2E * 0x1p+23f) + kOne;
    return std::bit_cast<float>(static_cast<std::int32_t>(fields > 0.0f ? fields : 0.0f));
  }

  const float* logits_;
  std::int64_t count_;
  const SamplingOptions& options_;
  Noise noise_;
  float* chunk_largest_;  ///< [count / kChunk, rounded up]
  std::uint64_t* keys_;   ///< [count]
  float inverse_temperature_;
  float largest_ = -kInfinity;
  std::int32_t first_ = -1;  ///< in order
  Cut cut_;
};

Status CheckSampling(const SamplingOptions& options) {
  const auto refuse = [](const char* field, const char* expected, double found) {
    return Fail(ErrorCode::kUsage, "{}: {} expected, {:.6g} given", field, expected, found);
  };
  // Written so that NaN fails every test.
  if (!(options.temperature >= 0.0f && options.temperature < HUGE_VALF)) {
    return refuse("temperature", "a finite number >= 0", options.temperature);
  }
  if (!(options.top_p > 0.0f && options.top_p <= 1.0f)) {
    return refuse("top_p", "a number above 0 and at most 1", options.top_p);
  }
  if (!(options.min_p >= 0.0f && options.min_p <= 1.0f)) {
    return refuse("min_p", "a number from 0 to 1", options.min_p);
  }
  if (options.top_k < 0) return refuse("top_k", "a number >= 0", options.top_k);
  return {};
}

SamplingScratch::SamplingScratch(std::int64_t vocab_size)
    : vocab_size_(vocab_size),
      chunk_largest_(std::make_unique_for_overwrite<float[]>(
          static_cast<std::size_t>(CeilDiv(vocab_size, kChunk)))),
      keys_(std::make_unique_for_overwrite<std::uint64_t[]>(static_cast<std::size_t>(vocab_size))),
      adjusted_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(vocab_size))) {}

Status CheckAdjustment(const LogitAdjustment& adjustment, std::int64_t vocab_size) {
  const auto words = static_cast<std::size_t>(CeilDiv(vocab_size, std::int64_t{64}));
  if (!adjustment.allowed.empty() && adjustment.allowed.size() != words) {
    return Fail(ErrorCode::kUsage, "allowed tokens: {} words for a vocabulary of {}, {} expected",
                adjustment.allowed.size(), vocab_size, words);
  }
  for (const LogitChange& change : adjustment.changes) {
    if (change.token < 0 || change.token >= vocab_size) {
      return Fail(ErrorCode::kOutOfRange, "logit change: token {} is outside the vocabulary of {}",
                  change.token, vocab_size);
    }
    // Written so that NaN fails.
    if (!(change.divisor > 0.0f && change.divisor < kInfinity && change.addend < kInfinity)) {
      return Fail(ErrorCode::kUsage,
                  "logit change of token {}: a divisor above 0 and a finite addend expected, {} "
                  "and {} given",
                  change.token, change.divisor, change.addend);
    }
  }
  return {};
}

namespace {

/// Bad logits stay what they are, so that they are noticed.
void Adjust(std::span<float> logits, const LogitAdjustment& adjustment) {
  for (const LogitChange& change : adjustment.changes) {
    float& logit = logits[static_cast<std::size_t>(change.token)];
    if (!(logit < kInfinity)) continue;
    logit = (logit > 0.0f ? logit / change.divisor : logit * change.divisor) + change.addend;
  }
  if (adjustment.allowed.empty()) return;
  for (std::size_t word = 0; word < adjustment.allowed.size(); ++word) {
    const std::uint64_t allowed = adjustment.allowed[word];
    if (allowed == ~std::uint64_t{0}) continue;
    const std::size_t begin = word * 64;
    const std::size_t end = std::min(begin + 64, logits.size());
    for (std::size_t i = begin; i < end; ++i) {
      const bool forbidden = (allowed >> (i - begin) & 1) == 0;
      if (forbidden && logits[i] < kInfinity) logits[i] = -kInfinity;
    }
  }
}

}  // namespace

SampledToken Sample(std::span<const float> logits, const SamplingOptions& options,
                    std::int64_t position, SamplingScratch& scratch,
                    const LogitAdjustment& adjustment) {
  MEGALITH_CHECK(static_cast<std::int64_t>(logits.size()) <= scratch.vocab_size());
  if (!adjustment.empty()) {
    const std::span<float> adjusted(scratch.adjusted_.get(), logits.size());
    std::copy(logits.begin(), logits.end(), adjusted.begin());
    Adjust(adjusted, adjustment);
    logits = adjusted;
  }
  return Sampling(logits, options, position, scratch).Run();
}

Result<std::int32_t> TokenOrError(const SampledToken& sampled, std::span<const float> logits,
                                  std::int64_t position) {
  if (sampled.token >= 0) return sampled.token;
  if (sampled.bad_logit >= 0) {
    return Fail(ErrorCode::kNumeric,
                "logits for position {}: token {} has {}, a finite number expected", position,
                sampled.bad_logit, logits[static_cast<std::size_t>(sampled.bad_logit)]);
  }
  return Fail(ErrorCode::kNumeric, "logits for position {}: all {} tokens are impossible", position,
              logits.size());
}

double SamplingNoise(std::uint64_t seed, std::int64_t position, std::int32_t token) {
  return Noise(seed, position).Of(token);
}

}  // namespace megalith::kernels
