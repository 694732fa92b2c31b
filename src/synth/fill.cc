#include "synth/fill.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "synth/random_bits.h"

namespace megalith::synth {
namespace {

using Kind = Distribution::Kind;

// Root mean squares of what output projections get from their branch, for normed inputs and
// matrices that keep the scale: silu(g) u for normal g and u; a normed head times sigmoid(g); a
// value averaged by a fairly sharp softmax, times sigmoid(g).
constexpr double kGluRms = 0.6;
constexpr double kGatedHeadRms = 0.65;
constexpr double kAttendedRms = 0.25;
/// Of a finished residual block, and of the stream without blocks.
constexpr double kBlockRms = 2.0;
/// Of logits over the vocabulary, about what trained models have.
constexpr double kLogitSpread = 2.5;
/// Of router logits: chosen and rejected scores differ clearly.
constexpr double kRouterSpread = 1.2;
/// Of attention scores, by longer queries: some tokens matter more than others.
constexpr double kQueryGain = 2.0;
/// Of the scores that mix residual blocks.
constexpr double kMixSpread = 1.0;
/// Of what the previous token adds to a drafter's logits: less than the logits themselves.
constexpr double kMarkovSpread = 1.0;
/// Of the biases in front of a Markov head's sigmoids and hyperbolic tangents.
constexpr double kMarkovBiasSpread = 0.5;

// Trained ranges: A_log of layer 12 of Kimi K3, dt_bias and conv taps of k3-nano.
constexpr float kALogMean = 0.3f;
constexpr float kALogSpread = 0.7f;
constexpr float kDtBiasMean = -3.5f;
constexpr float kDtBiasSpread = 2.9f;
constexpr float kLastTap = 1.1f;
constexpr float kTapSpread = 0.15f;
constexpr float kNormSpread = 0.07f;
constexpr float kRouterBiasSpread = 0.02f;

/// Standard deviation of what one attention or feed-forward of so many layers adds to the residual
/// stream.
double BranchRms(std::int64_t num_layers) {
  return kBlockRms / std::sqrt(2.0 * static_cast<double>(num_layers));
}

double BranchRms(const model::Model& model) {
  return BranchRms(model.attn_res_block_size > 0 ? model.attn_res_block_size
                                                 : static_cast<std::int64_t>(model.layers.size()));
}

Distribution Normal(double mean, double spread) {
  return {Kind::kNormal, static_cast<float>(mean), static_cast<float>(spread)};
}

/// Root mean square of the sum of the chosen experts' outputs, each of 1.
double ExpertSumRms(const model::MoeConfig& moe) {
  const double scale = static_cast<double>(moe.routed_scaling_factor);
  return scale / std::sqrt(static_cast<double>(moe.num_experts_per_token));
}

/// What a matrix multiplies its input's scale by.
double MatrixGain(const model::Model& model, const model::TensorRule& rule) {
  const std::string_view name = rule.name;
  const double branch = BranchRms(model);
  // The two paths of a mixture of experts share one branch.
  const double path = branch / (model.moe.num_shared_experts > 0 ? std::sqrt(2.0) : 1.0);
  switch (rule.part) {
    case model::Part::kKda:
      return name.ends_with("o_proj") ? branch / kGatedHeadRms : 1.0;
    case model::Part::kMla:
      if (name.ends_with("q_b_proj") || name.ends_with("self_attn.q_proj")) return kQueryGain;
      return name.ends_with("o_proj") ? branch / kAttendedRms : 1.0;
    case model::Part::kDenseFfn:
      return name.ends_with("down_proj") ? branch / kGluRms : 1.0;
    case model::Part::kSharedExperts:
      return name.ends_with("down_proj") ? path / kGluRms : 1.0;
    case model::Part::kExperts: {
      if (!name.ends_with("w2")) return 1.0;
      const bool into_stream = !model.moe.routed_expert_hidden_size.has_value();
      return (into_stream ? path / ExpertSumRms(model.moe) : 1.0) / kGluRms;
    }
    case model::Part::kLatent:
      if (!name.ends_with("up_proj")) return 1.0;
      return model.moe.latent_moe_use_norm ? path : path / ExpertSumRms(model.moe);
    case model::Part::kRouter:
      return kRouterSpread;
    case model::Part::kHead:
      return kLogitSpread;
    case model::Part::kEmbedding:
    case model::Part::kNorms:
    case model::Part::kAttention:
    case model::Part::kFusion:
      return 1.0;
  }
  return 1.0;
}

Distribution VectorDistribution(const model::Model& model, const model::TensorRule& rule) {
  const std::string_view name = rule.name;
  if (rule.kind == model::TensorKind::kConvTaps) {
    return {Kind::kConvTaps, kLastTap, kTapSpread, rule.shape.back()};
  }
  if (name.ends_with("A_log")) return {Kind::kUniform, kALogMean, kALogSpread, 0, rule.shape[0]};
  if (name.ends_with("dt_bias")) return {Kind::kUniform, kDtBiasMean, kDtBiasSpread};
  if (name.ends_with("e_score_correction_bias")) return Normal(0.0, kRouterBiasSpread);
  if (name.ends_with("res_proj.weight")) {
    return Normal(0.0, kMixSpread / std::sqrt(static_cast<double>(model.hidden_size)));
  }
  if (name == "embed_tokens.weight") {
    // A tied table is also the head and takes its scale.
    return Normal(0.0, model.tie_word_embeddings
                           ? kLogitSpread / std::sqrt(static_cast<double>(model.hidden_size))
                           : 1.0);
  }
  return Normal(1.0, kNormSpread);
}

// Codes: 64 equally likely normal values, in the scale in which the largest of a group of 32 just
// fits, rounded to E2M1.
constexpr int kCodeBits = kNormalBits / 2;
constexpr int kNumCodes = 1 << kCodeBits;
constexpr double kCodeSpread = 2.5;
constexpr std::array<double, 8> kMagnitudes = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};

struct CodeTable {
  std::array<std::uint8_t, kNormalCount> pairs = {};  ///< low nibble: first element
  double rms = 0.0;                                   ///< of one element, scale 1
};

const CodeTable& Codes() {
  static const CodeTable table = [] {
    std::array<std::uint8_t, kNumCodes> codes = {};
    CodeTable result;
    double squares = 0.0;
    for (int i = 0; i < kNumCodes; ++i) {
      const double z = kCodeSpread * NormalQuantile((i + 0.5) / kNumCodes);
      std::size_t best = 0;
      for (std::size_t m = 1; m < kMagnitudes.size(); ++m) {
        if (std::abs(std::abs(z) - kMagnitudes[m]) < std::abs(std::abs(z) - kMagnitudes[best])) {
          best = m;
        }
      }
      codes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(best | (z < 0.0 ? 8u : 0u));
      squares += kMagnitudes[best] * kMagnitudes[best];
    }
    for (std::size_t i = 0; i < result.pairs.size(); ++i) {
      result.pairs[i] = static_cast<std::uint8_t>(codes[i % kNumCodes] | codes[i / kNumCodes] << 4);
    }
    result.rms = std::sqrt(squares / kNumCodes);
    return result;
  }();
  return table;
}

/// Two neighbouring powers of two, mixed so that the mean square is the wanted one.
struct ScaleChoice {
  std::uint8_t low = 0;             ///< E8M0; the other is one more
  std::uint32_t high_of_65536 = 0;  ///< how often the other is taken
};

ScaleChoice ChooseScales(double spread) {
  // The format's ends are not used: files hold 1..254.
  const double exponent = std::clamp(std::log2(spread / Codes().rms), -120.0, 120.0);
  const double low = std::floor(exponent);
  const double share = (std::exp2(2.0 * (exponent - low)) - 1.0) / 3.0;
  return {static_cast<std::uint8_t>(127 + static_cast<int>(low)),
          static_cast<std::uint32_t>(share * 65536.0)};
}

std::size_t NormalIndex(std::uint64_t bits) { return (bits & 0xffffu) >> (16 - kNormalBits); }

}  // namespace

Distribution DistributionOf(const model::Model& model, const model::TensorRule& rule) {
  if (rule.kind != model::TensorKind::kMatrix) return VectorDistribution(model, rule);
  const auto inputs = static_cast<double>(rule.shape[1]);
  return Normal(0.0, MatrixGain(model, rule) / std::sqrt(inputs));
}

Distribution DistributionOf(const model::Drafter& drafter, const model::TensorRule& rule) {
  const std::string_view name = rule.name;
  const double branch = BranchRms(static_cast<std::int64_t>(drafter.layers.size()));
  const auto keeping = [&](double gain) {  // for inputs of size 1
    return Normal(0.0, gain / std::sqrt(static_cast<double>(rule.shape[1])));
  };
  if (name == "embed_tokens.weight") {
    // A tied table is also the head and takes its scale.
    return drafter.tie_word_embeddings ? keeping(kLogitSpread) : Normal(0.0, 1.0);
  }
  if (name == "markov_head.markov_w1.weight") return Normal(0.0, 1.0);
  if (name == "markov_head.markov_w2") return keeping(kMarkovSpread);
  if (name.starts_with("markov_head.") && name.ends_with(".bias")) {
    return Normal(0.0, kMarkovBiasSpread);
  }
  if (name == "lm_head") return keeping(kLogitSpread);
  if (name == "confidence_head.proj.weight") return keeping(1.0);
  if (name.ends_with("o_proj")) return keeping(branch / kAttendedRms);
  if (name.ends_with("down_proj")) return keeping(branch / kGluRms);
  // Queries and keys are normed by the head, so the norm makes the queries longer.
  if (name.ends_with("q_norm.weight")) return Normal(kQueryGain, kNormSpread);
  return rule.kind == model::TensorKind::kMatrix ? keeping(1.0) : Normal(1.0, kNormSpread);
}

TensorFill::TensorFill(const Distribution& distribution, DType dtype, std::uint64_t stream_key)
    : distribution_(distribution), dtype_(dtype), key_(stream_key) {}

/// Four elements come from one draw of bits; `make_block` turns it into their bytes. Ranges may
/// begin and end inside a block.
template <int kBlockBytes, typename MakeBlock>
void TensorFill::WriteBlocks(std::uint64_t first_byte, std::span<std::byte> out,
                             const MakeBlock& make_block) const {
  std::uint64_t block = first_byte / kBlockBytes;
  std::size_t skip = first_byte % kBlockBytes;
  std::byte* to = out.data();
  std::size_t left = out.size();
  std::array<std::byte, kBlockBytes> bytes;
  while (left > 0) {
    if (skip == 0 && left >= kBlockBytes) {
      for (; left >= kBlockBytes; left -= kBlockBytes, to += kBlockBytes) {
        make_block(RandomBits(key_, block), block, bytes.data());
        ++block;
        std::memcpy(to, bytes.data(), kBlockBytes);
      }
      continue;
    }
    make_block(RandomBits(key_, block), block, bytes.data());
    ++block;
    const std::size_t count = std::min<std::size_t>(kBlockBytes - skip, left);
    std::memcpy(to, bytes.data() + skip, count);
    to += count;
    left -= count;
    skip = 0;
  }
}

void TensorFill::Write(std::uint64_t first_byte, std::span<std::byte> out) const {
  const Distribution& distribution = distribution_;
  if (distribution.kind == Kind::kMxfp4Codes) {
    const std::uint8_t* pairs = Codes().pairs.data();
    WriteBlocks<4>(first_byte, out, [pairs](std::uint64_t bits, std::uint64_t, std::byte* bytes) {
      for (int i = 0; i < 4; ++i) bytes[i] = std::byte{pairs[NormalIndex(bits >> (16 * i))]};
    });
    return;
  }
  if (distribution.kind == Kind::kMxfp4Scales) {
    const ScaleChoice choice = ChooseScales(static_cast<double>(distribution.spread));
    WriteBlocks<4>(first_byte, out, [choice](std::uint64_t bits, std::uint64_t, std::byte* bytes) {
      for (int i = 0; i < 4; ++i) {
        const bool high = ((bits >> (16 * i)) & 0xffffu) < choice.high_of_65536;
        bytes[i] = std::byte{static_cast<std::uint8_t>(choice.low + (high ? 1 : 0))};
      }
    });
    return;
  }
  const float* quantiles = NormalQuantiles();
  if (dtype_ == DType::kBf16) {
    // Every bf16 tensor is normal, so its values are a table of the quantiles in its scale.
    std::vector<Bf16> values(kNormalCount);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = ToBf16(distribution.mean + distribution.spread * quantiles[i]);
    }
    const Bf16* table = values.data();
    WriteBlocks<8>(first_byte, out, [table](std::uint64_t bits, std::uint64_t, std::byte* bytes) {
      std::uint64_t packed = 0;
      for (int i = 0; i < 4; ++i) {
        const std::uint64_t value = table[NormalIndex(bits >> (16 * i))].bits;
        packed |= value << (16 * i);
      }
      std::memcpy(bytes, &packed, sizeof(packed));
    });
    return;
  }
  WriteBlocks<16>(first_byte, out, [&](std::uint64_t bits, std::uint64_t block, std::byte* bytes) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      const std::uint64_t element = 4 * block + i;
      const std::uint64_t draw = bits >> (16 * i);
      float value = 0.0f;
      if (distribution.kind == Kind::kUniform) {
        const float unit = static_cast<float>(draw & 0xffffu) / 32768.0f - 1.0f;  // [-1, 1)
        value = distribution.mean + distribution.spread * unit;
      } else {
        const bool has_mean = distribution.kind != Kind::kConvTaps ||
                              element % static_cast<std::uint64_t>(distribution.period) ==
                                  static_cast<std::uint64_t>(distribution.period - 1);
        value = (has_mean ? distribution.mean : 0.0f) +
                distribution.spread * quantiles[NormalIndex(draw)];
      }
      if (distribution.num_meant > 0 &&
          element >= static_cast<std::uint64_t>(distribution.num_meant)) {
        value = 0.0f;
      }
      std::memcpy(bytes + 4 * i, &value, sizeof(value));
    }
  });
}

}  // namespace megalith::synth
