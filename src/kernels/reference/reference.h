#pragma once

// Plain scalar forms of every kernel of kernel_table.h, straight from the definitions of
// numerics.h: the oracle that the vector kernels are compared with bit by bit, and what the
// reference interpreter runs. Act is Bf16 or float. Scratch members of the arguments are used where
// a value per element must be kept; the caller provides them as for the fast kernels.

#include <cstdint>

#include "kernels/kernel_table.h"

namespace megalith::kernels::reference {

/// X is Bf16 (rule 1 of numerics.h as `numerics` says) or float (multiply then add, always
/// kSplitPairs in float; `numerics` is ignored). Uses no scratch.
template <typename X>
void Matmul(const MatmulArgs<X>& args, PanelFormat format, DotNumerics numerics);

template <typename Act>
void AttnResNorm(const AttnResNormArgs<Act>& args);
template <typename Act>
void RmsNorm(const RmsNormArgs<Act>& args);
template <typename Act>
void HeadNormRotary(const HeadNormRotaryArgs<Act>& args);

template <typename Act>
void GatedPair(const GatedPairArgs<Act>& args);
template <typename Act>
void Store(const float* in, std::int64_t count, Act* out);
template <typename Act>
void AddResidual(const float* acc, const Act* residual, std::int64_t count, Act* out);
template <typename Act>
void AddSharedResidual(const float* acc, const float* aux, const Act* residual, std::int64_t count,
                       Act* out);
template <typename Act>
void SigmoidGate(const float* acc, const Act* gate, std::int64_t count, Act* out);
template <typename Act>
void WeightedAdd(const float* acc, float weight, std::int64_t count, float* sum);

template <typename Act>
void KdaHead(const KdaHeadArgs<Act>& args);
template <typename Act>
void KdaChunks(const KdaHeadArgs<Act>& args);
template <typename Act>
void MlaAttention(const MlaAttentionArgs<Act>& args);
template <typename Act>
void MlaPartial(const MlaAttentionArgs<Act>& args, std::int64_t chunk);
void MlaMerge(const MlaMergeArgs& args);
/// `numerics`: of the products; args.matmul and the scratch are not used.
void MlaExpanded(const MlaExpandedArgs& args, DotNumerics numerics);
template <typename Act>
void DraftAttention(const DraftAttentionArgs<Act>& args);

void RouterTopK(const RouterTopKArgs& args);

}  // namespace megalith::kernels::reference
