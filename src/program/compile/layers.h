#pragma once

// One function per part of a layer; each appends its phases to the segment. Tensor and buffer names
// are those of the checkpoint and of docs/program.md.

#include "program/compile/builder.h"

namespace megalith::program {

/// Buffers that carry values between the parts of a step. Indices into Program::buffers.
struct SharedBuffers {
  std::uint32_t step_input = kNone;
  std::uint32_t prefix = kNone;      ///< residual stream between layers, [rows, hidden]
  std::uint32_t prefix_mid = kNone;  ///< after the mixer
  std::uint32_t blocks = kNone;      ///< finished AttnRes blocks, [rows, blocks * hidden]
  std::uint32_t mixer_in = kNone;    ///< normed input of the mixer
  std::uint32_t ffn_in = kNone;
};

struct KdaBuffers {
  std::uint32_t q, k, v, gate, gate_a, decay_a, decay, beta, out, state, conv;
};
struct MlaBuffers {
  std::uint32_t q_a, q_a_norm, kv_a, q, gate, latent_query, latent_out, out, cache;
};
struct DenseBuffers {
  std::uint32_t activated;
};
struct MoeBuffers {
  std::uint32_t scores, ids, weights, plan, latent, expert_activated, routed, routed_norm,
      shared_activated, shared_out;
};

/// Everything the emitters share.
struct LayerBuffers {
  SharedBuffers shared;
  KdaBuffers kda{};
  MlaBuffers mla{};
  DenseBuffers dense{};
  MoeBuffers moe{};
};

/// Names of one residual norm: its phase and its weights.
struct ResidualNorm {
  std::string phase;
  std::string mix;   ///< `<mix>_norm.weight` and `<mix>_proj.weight` score the sources
  std::string norm;  ///< RMS norm weight
};

/// Phase: softmax mix of the residual sources + RMS norm, rows shared out. `before_push`: the block
/// that the visit may push is not there yet.
void EmitResidualNorm(SegmentBuilder& segment, const LayerBuffers& buffers,
                      const ResidualNorm& names, std::uint32_t in, std::uint32_t out,
                      bool before_push, Register trip = Register::kRows);

/// Phase: the prefix becomes a block, in visits that push one. To be called where every worker has
/// read the blocks before and all will wait before they read them again, so that it costs no join.
void EmitPushBlock(SegmentBuilder& segment, const LayerBuffers& buffers);

void EmitKda(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitMla(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitDenseFeedForward(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitMoe(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitEmbedding(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitHead(SegmentBuilder& segment, const LayerBuffers& buffers);

/// Adds all buffers the model needs. Mixers never run at the same time, nor do feed-forwards of two
/// layers: KDA and MLA buffers share memory, and so do dense and MoE buffers.
LayerBuffers AddLayerBuffers(ProgramBuilder& builder);

}  // namespace megalith::program
