#pragma once

// One function per part of a layer; each appends its phases to the segment. Tensor and buffer names
// are those of the checkpoint and of docs/program.md.

#include <array>

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
  std::uint32_t partials = kNone;  ///< where the context is divided: columns of each worker
  // Of Programs with fast runs: kv_b as packed, one head after the other.
  std::uint32_t key_panels = kNone, value_panels = kNone;
};
struct DenseBuffers {
  std::uint32_t activated;
};
struct MoeBuffers {
  std::uint32_t scores, ids, weights, plan, latent, expert_activated, routed, routed_norm;
  std::uint32_t expert_out = kNone;  ///< before the sum over experts of several groups
  std::uint32_t shared_activated = kNone, shared_out = kNone;
};

/// Of the drafter: its context, and, if runs draft, its block.
struct DraftBuffers {
  std::uint32_t captured = kNone;  ///< residuals of the target, [rows, captures * hidden]
  std::uint32_t fused = kNone;
  std::uint32_t context = kNone;
  std::vector<std::uint32_t> context_k, context_v, cache;  ///< per draft layer
  /// Residual stream, [block rows, hidden]: layer i reads i mod 2 and writes the other.
  std::array<std::uint32_t, 2> x{kNone, kNone};
  std::uint32_t x_mid = kNone;
  std::uint32_t attention_in = kNone, mlp_in = kNone;
  std::uint32_t q = kNone, k = kNone, v = kNone, attended = kNone;
  std::uint32_t activated = kNone;
  std::uint32_t hidden = kNone;
  std::uint32_t base_logits = kNone;  ///< [block rows, vocabulary] f32
  std::uint32_t markov = kNone;       ///< [runs, rank]; of a recurrent head the state before it
  // Of Markov heads that project their inputs.
  std::uint32_t markov_base = kNone;       ///< what hidden rows add, [block rows, outputs] f32
  std::uint32_t markov_projected = kNone;  ///< without bias, [runs, outputs] f32
  std::uint32_t markov_out = kNone;        ///< input of the second matrix, [runs, rank]
  std::uint32_t markov_state = kNone;      ///< of a recurrent head after the slot, [runs, rank]
  std::uint32_t logits = kNone;            ///< [runs, vocabulary] f32
  std::uint32_t tokens = kNone;            ///< [runs, drafts] i32
  std::uint32_t confidence = kNone;        ///< [runs, drafts] f32
};

/// Everything the emitters share.
struct LayerBuffers {
  SharedBuffers shared;
  KdaBuffers kda{};
  MlaBuffers mla{};
  DenseBuffers dense{};
  MoeBuffers moe{};
  DraftBuffers draft{};
  std::uint32_t tokens = kNone;  ///< chosen for the logit rows, i32
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

/// Phases: the prefix becomes a block, in visits that push one, and part of the drafter's input, in
/// visits that capture. To be called where every worker has read the blocks before and all will
/// wait before they read them again, so that it costs no join.
void EmitCopiesOfPrefix(SegmentBuilder& segment, const LayerBuffers& buffers);

void EmitKda(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitMla(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitDenseFeedForward(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitMoe(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitEmbedding(SegmentBuilder& segment, const LayerBuffers& buffers);
/// Logits, the tokens chosen from them, and the drafter's context.
void EmitHead(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitStepEnd(SegmentBuilder& segment);

// The drafter (emit_draft.cc; docs/design/drafting.md). Context: in every step. The others:
// segments of their own, for runs that draft.
void EmitDraftFusion(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitDraftContext(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitDraftAppend(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitDraftLayer(SegmentBuilder& segment, const LayerBuffers& buffers, std::size_t layer);
void EmitDraftHead(SegmentBuilder& segment, const LayerBuffers& buffers);
void EmitDraftToken(SegmentBuilder& segment, const LayerBuffers& buffers);
void AddDraftBuffers(ProgramBuilder& builder, LayerBuffers& buffers);

/// Adds all buffers the model needs. Mixers never run at the same time, nor do feed-forwards of two
/// layers: KDA and MLA buffers share memory, and so do dense and MoE buffers.
LayerBuffers AddLayerBuffers(ProgramBuilder& builder);

}  // namespace megalith::program
