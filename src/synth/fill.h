#pragma once

// What random tensors hold. Sizes of the values are chosen so that the model computes something
// like a trained one: every matrix keeps the scale of what it multiplies, each residual block ends
// with a few units whatever the depth, decays and gates lie in their trained ranges, and router
// scores spread so that all experts are used.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "model/drafter.h"
#include "model/model.h"
#include "model/tensors.h"

namespace megalith::synth {

/// How the elements of a tensor are distributed.
struct Distribution {
  enum class Kind : std::uint8_t {
    kNormal,       ///< mean, spread: standard deviation
    kUniform,      ///< mean +- spread
    kConvTaps,     ///< normal; the mean belongs to the last of `period` taps, the others have 0
    kMxfp4Codes,   ///< two E2M1 codes a byte, as rounding of normal values gives them
    kMxfp4Scales,  ///< E8M0 bytes; with the codes the elements have standard deviation `spread`
  };
  Kind kind = Kind::kNormal;
  float mean = 0.0f;
  float spread = 0.0f;
  std::int64_t period = 0;
  /// Elements from here on are zero (padded vectors); 0: none.
  std::int64_t num_meant = 0;
};

/// The distribution of a tensor of `model` made from `rule`; codes and scales of an MXFP4 matrix
/// (`mxfp4`) have their own, kMxfp4Codes and kMxfp4Scales, with this one's spread.
Distribution DistributionOf(const model::Model& model, const model::TensorRule& rule);
/// The same of a drafter, whose tensors are all BF16.
Distribution DistributionOf(const model::Drafter& drafter, const model::TensorRule& rule);

/// Bytes of a tensor, any part of it.
class TensorFill {
 public:
  /// `dtype`: BF16, F32, or U8 for codes and scales.
  TensorFill(const Distribution& distribution, DType dtype, std::uint64_t stream_key);

  /// Writes bytes [first_byte, first_byte + out.size()) of the tensor. Depends on the position
  /// only.
  void Write(std::uint64_t first_byte, std::span<std::byte> out) const;

 private:
  template <int kBlockBytes, typename MakeBlock>
  void WriteBlocks(std::uint64_t first_byte, std::span<std::byte> out,
                   const MakeBlock& make_block) const;

  Distribution distribution_;
  DType dtype_;
  std::uint64_t key_;
};

}  // namespace megalith::synth
