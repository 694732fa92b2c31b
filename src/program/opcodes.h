#pragma once

// The one table of instructions. Everything that knows about opcodes (dump, verifier, compiler,
// executors, docs) reads this table; adding an instruction means one line here, its effect in the
// reference interpreter, and its kernel in the engines.
//
// X(enumerator, text name, operands, scope, meaning)
//   operands: names in the order of Instruction::operands, each `name:access` with access r
//             (read), w (written) or u (read, then updated in place).
//   scope:    which rows the instruction touches: kAllRows (every row of its trip register),
//             kOwnRows (rows first, first + step, ... of Instruction::rows) or kNoRows.
//
// Rounding: "round" below means to the Program's activation type (bf16, or no rounding for f32).
// `dot` is the canonical dot product of kernels/numerics.h. H etc. as in docs/program.md.

#define MEGALITH_OPCODES(X)                                                                        \
  X(kWait, "wait", "", kNoRows, "only waits: for instructions that depend on two counters")        \
  X(kStepBegin, "step_begin", "step_input:r", kNoRows,                                             \
    "wait for the host to publish the step's rows, runs and registers")                            \
  X(kStepEnd, "step_end", "", kNoRows, "tell the host that this worker has finished the step")     \
  X(kFetch, "fetch", "", kNoRows, "request the head of weight tile `tile` into store slot `slot`") \
  X(kFetchNext, "fetch_next", "", kNoRows,                                                         \
    "request entry imm[0] of the next visit's prologue (its first tiles) into its slot")           \
  X(kEmbed, "embed", "step_input:r prefix:w", kOwnRows,                                            \
    "prefix[r] = row token[r] of table imm[0]")                                                    \
  X(kAttnResNorm, "attn_res_norm", "prefix:r blocks:r out:w step_input:r", kOwnRows,               \
    "h = softmax mix over the visit's blocks and prefix (scores from RMS-normalised values times " \
    "vector 0, the fold), round; out = round(h * rsqrt(mean(h^2) + eps) * vector 1). Without "     \
    "blocks h = prefix. Blocks are the visit's num_blocks; with imm[0] = 0 also the one this "     \
    "visit "                                                                                       \
    "has pushed. imm[1] = 1: source row is the step's logit row list, output rows are compact. "   \
    "scalar[0] = eps")                                                                             \
  X(kPushBlock, "push_block", "prefix:r blocks:w", kOwnRows,                                       \
    "if the visit pushes a block: blocks[num_blocks] = prefix")                                    \
  X(kCaptureResidual, "capture_residual", "prefix:r captured:w", kOwnRows,                         \
    "if the visit captures: captured[capture_index] = prefix")                                     \
  X(kRmsNorm, "rms_norm", "in:r out:w", kOwnRows,                                                  \
    "out = round(in * rsqrt(mean(in^2) + eps) * vector 0); scalar[0] = eps")                       \
  X(kMatmul, "matmul", "in:r out:w aux:r residual:r panels:w", kAllRows,                           \
    "acc[n] = dot(tile row n, in); out = epilogue(acc), see Epilogue. imm[1] = 1: not in the "     \
    "rows "                                                                                        \
    "of fast runs (kFastRunRows); for these panels = the packed tile")                             \
  X(kKda, "kda", "q:r k:r v:r gate:r decay:r beta:r out:w state:u conv:u step_input:r", kAllRows,  \
    "heads imm[0]..imm[1] of every run: short convolution + SiLU, L2 norm of q and k, decay, "     \
    "delta rule row by row, output norm, sigmoid gate. Vectors: q, k, v taps, A_log, dt_bias, "    \
    "o_norm. A run that starts at position 0 starts from zero state. scalar[0] = eps of the "      \
    "output norm, scalar[1] = gate lower bound (0: softplus form). imm[2] = 1: fast runs in "      \
    "chunk form")                                                                                  \
  X(kMlaAppend, "mla_append", "in:r cache:w step_input:r", kOwnRows,                               \
    "cache row at the row's position = round(RMS norm of in[0..rank) * vector 0), in[rank..end); " \
    "scalar[0] = eps, imm[0] = rank")                                                              \
  X(kMlaAttention, "mla_attention", "query:r latent_query:r cache:r out:w step_input:r", kAllRows, \
    "heads imm[0]..imm[1]: softmax over all positions <= the row's own of (latent_query . latent " \
    "+ extra query . extra key) * scalar[0]; out = probabilities . latents (float). Context is "   \
    "split every kAttentionSplit positions; parts are merged in ascending order within chunks of " \
    "kAttentionChunk, then chunks are. imm[2] = 1: not in the rows of fast runs")                  \
  X(kMlaPartial, "mla_partial", "query:r latent_query:r cache:r partials:w step_input:r",          \
    kAllRows,                                                                                      \
    "heads imm[0]..imm[1] of mla_attention, share imm[3] of imm[4] of every run's chunks and "     \
    "heads (attention_division.h): the rows' sums over a chunk, undivided, their largest score "   \
    "and their total. scalar[0] as mla_attention")                                                 \
  X(kMlaMerge, "mla_merge", "partials:r out:w step_input:r", kAllRows,                             \
    "heads imm[0]..imm[1]: what the imm[4] shares of mla_partial for heads imm[2]..imm[3] have "   \
    "computed, merged over the chunks in ascending order and divided: out as of mla_attention")    \
  X(kMlaExpanded, "mla_expanded",                                                                  \
    "query:r key_panels:r value_panels:r cache:r gate:r out:u step_input:r", kAllRows,             \
    "heads imm[0]..imm[1], rows of fast runs: keys and values of the head from the cached "        \
    "latents, "                                                                                    \
    "then the same attention; out = round(probabilities . values), times the sigmoid of gate. "    \
    "imm[2] = rank, scalar[0] as mla_attention. Panels: kv_b as packed for the absorbed form")     \
  X(kRouterTopK, "router_top_k", "scores:r ids:w weights:w", kOwnRows,                             \
    "s = sigmoid(scores) (or softmax: imm[2] = 1); the imm[0] largest of s + vector 0 (lowest id " \
    "on ties), ids ascending; weight = s / (sum of the selected s + 1e-20) * scalar[0] if "        \
    "imm[1] = 1 else s * scalar[0]; groups: imm[3] = num_expert_group, imm[4] = topk_group")       \
  X(kRoutePlan, "route_plan", "ids:r weights:r plan:w", kNoRows,                                   \
    "lists of rows per expert: writes the plan and the register active_experts; imm[0] = "         \
    "experts, "                                                                                    \
    "imm[1] = experts per row")                                                                    \
  X(kExpertGateUp, "expert_gate_up", "in:r plan:r out:w", kNoRows,                                 \
    "for every active expert e of imm[3]..imm[4] and each of its pairs (row): g, u = dot(w1 / w3 " \
    "rows of the tile, in[row]), rounded; out[pair] = round(gated activation)")                    \
  X(kExpertDown, "expert_down", "in:r plan:r out:w", kNoRows,                                      \
    "y_e = round(dot(w2 rows of the tile, in[pair])); out[row] = round(sum over the row's "        \
    "experts, "                                                                                    \
    "ascending, of weight * y_e). imm[2] = 1: out[pair] = y_e, of experts imm[3]..imm[4]")         \
  X(kExpertSum, "expert_sum", "ids:r plan:r in:r out:w", kOwnRows,                                 \
    "out[row] = round(sum over the row's experts, ascending, of weight * in[pair]); imm[0] = "     \
    "experts, imm[1] = experts per row")                                                           \
  X(kExchangeFill, "exchange_fill", "mailbox:w plan:r a:r b:r c:r d:r", kOwnRows,                  \
    "copies this rank's columns of a, b, ... into its slot for exchange imm[1] of the visit in "   \
    "mailbox imm[0]. Of a buffer of pairs the pairs of experts imm[3]..imm[4], which the plan "    \
    "lists; else every row")                                                                       \
  X(kExchangePublish, "exchange_publish", "mailbox:u plan:r a:r b:r c:r d:r", kOwnRows,            \
    "lets the other ranks read what has been filled in for exchange imm[1] in mailbox imm[0]; "    \
    "operands are those of the fill")                                                              \
  X(kExchangeReceive, "exchange_receive", "mailbox:r plan:r a:w b:w c:w d:w", kOwnRows,            \
    "waits for rank imm[2] to publish exchange imm[1] in mailbox imm[0] and copies its columns; "  \
    "of a buffer of pairs those of experts imm[3]..imm[4]")                                        \
  X(kSample, "sample", "logits:r tokens:w step_input:r", kOwnRows,                                 \
    "tokens[r] = the token that the run's sampling options choose from logits[r] for the "         \
    "position "                                                                                    \
    "after the row's; -1 if the logits are no distribution; untouched for rows that want no "      \
    "token")                                                                                       \
  X(kDraftAppend, "draft_append", "k:r v:r cache:w step_input:r", kOwnRows,                        \
    "cache row at the row's position = rotate(RMS norm of each of imm[0] heads of k, vector 0), "  \
    "v; "                                                                                          \
    "rows too old for the ring are skipped; scalar[0] = eps, scalar[1] = theta")                   \
  X(kDraftEmbed, "draft_embed", "tokens:r out:w step_input:r", kOwnRows,                           \
    "slot 0 of a block: row of table imm[0] of the run's anchor, the last token accepted or "      \
    "chosen "                                                                                      \
    "in its place; other slots: row of the mask token")                                            \
  X(kDraftAttention, "draft_attention", "q:r k:r v:r cache:r tokens:r out:w step_input:r",         \
    kAllRows,                                                                                      \
    "key heads imm[0]..imm[1], imm[2] query heads each: q and k normed (vectors 0, 1) and "        \
    "rotated, "                                                                                    \
    "attention over the cached positions before the anchor (the latest imm[3]; 0: all) and the "   \
    "block (imm[4] = 1: up to the own slot). scalar[0] = eps, scalar[1] = theta")                  \
  X(kMarkovEmbed, "markov_embed", "tokens:r drafts:r out:w step_input:r state:r", kOwnRows,        \
    "row of table imm[0] of the token before the visit's draft slot: the anchor or a draft. With " \
    "state out = state, then that row; in draft slot 0, which reads no state, zeros before it")    \
  X(kDraftChoose, "draft_choose",                                                                  \
    "logits:r hidden:r embedding:r drafts:w confidence:w tokens:r step_input:r", kOwnRows,         \
    "drafts[draft_slot] = the token that the run's sampling options choose from the logits; "      \
    "confidence[draft_slot] = dot of vector 0 and (hidden, embedding) + vector 1")                 \
  X(kMarkovGate, "markov_gate", "projected:r embedding:r out:w", kOwnRows,                         \
    "out = round(sigmoid(round(projected + vector 0)) * embedding)")                               \
  X(kMarkovRnn, "markov_rnn", "projected:r inputs:r out:w state:w", kOwnRows,                      \
    "g, c, o = round(projected + vector 0), each as wide as out; state = round(sigmoid(g) * s + "  \
    "(1 - sigmoid(g)) * tanh(c)), where s is the beginning of inputs; out = round(tanh(o))")
