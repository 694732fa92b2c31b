#pragma once

// The fields of every Program structure, in declaration order with their names: the one place that
// serialisation, hashing and the JSON dump share.

#include "program/program.h"

namespace megalith::program {

template <typename Archive>
void Fields(Archive& ar, RegisterBound& v) {
  ar("max_value", v.max_value);
}

template <typename Archive>
void Fields(Archive& ar, Buffer& v) {
  ar("name", v.name);
  ar("kind", v.kind);
  ar("dtype", v.dtype);
  ar("columns", v.columns);
  ar("row_stride", v.row_stride);
  ar("rows", v.rows);
  ar("offset", v.offset);
}

template <typename Archive>
void Fields(Archive& ar, Counter& v) {
  ar("name", v.name);
  ar("scope", v.scope);
  ar("segment", v.segment);
  ar("signals_per_visit", v.signals_per_visit);
}

template <typename Archive>
void Fields(Archive& ar, Tensor& v) {
  ar("name", v.name);
  ar("format", v.format);
  ar("outputs", v.outputs);
  ar("inputs", v.inputs);
  ar("num_experts", v.num_experts);
  ar("first_row", v.first_row);
  ar("num_rows", v.num_rows);
  ar("first_expert", v.first_expert);
  ar("own_experts", v.own_experts);
}

template <typename Archive>
void Fields(Archive& ar, Sharding& v) {
  ar("rank", v.rank);
  ar("num_ranks", v.num_ranks);
  ar("expert_groups", v.expert_groups);
  ar("first_kda_head", v.first_kda_head);
  ar("first_draft_head", v.first_draft_head);
}

template <typename Archive>
void Fields(Archive& ar, Mailbox& v) {
  ar("buffer", v.buffer);
  ar("first_rank", v.first_rank);
  ar("num_ranks", v.num_ranks);
}

template <typename Archive>
void Fields(Archive& ar, Tile& v) {
  ar("tensor", v.tensor);
  ar("pair_tensor", v.pair_tensor);
  ar("transposed", v.transposed);
  ar("first_output", v.first_output);
  ar("num_outputs", v.num_outputs);
  ar("first_input", v.first_input);
  ar("num_inputs", v.num_inputs);
  ar("num_panels", v.num_panels);
  ar("offset", v.offset);
  ar("bytes", v.bytes);
  ar("source_bytes", v.source_bytes);
}

template <typename Archive>
void Fields(Archive& ar, Vector& v) {
  ar("name", v.name);
  ar("second_name", v.second_name);
  ar("layout", v.layout);
  ar("dtype", v.dtype);
  ar("count", v.count);
  ar("stored_count", v.stored_count);
  ar("taps", v.taps);
  ar("offset", v.offset);
  ar("source_bytes", v.source_bytes);
}

template <typename Archive>
void Fields(Archive& ar, Operand& v) {
  ar("buffer", v.buffer);
  ar("begin", v.begin);
  ar("end", v.end);
}

template <typename Archive>
void Fields(Archive& ar, RowSet& v) {
  ar("first", v.first);
  ar("step", v.step);
}

template <typename Archive>
void Fields(Archive& ar, Instruction& v) {
  ar("opcode", v.opcode);
  ar("epilogue", v.epilogue);
  ar("activation", v.activation);
  ar("trip", v.trip);
  ar("releases_slot", v.releases_slot);
  ar("wait_counter", v.wait_counter);
  ar("wait_amount", v.wait_amount);
  ar("signal_counter", v.signal_counter);
  ar("signal_amount", v.signal_amount);
  ar("tile", v.tile);
  ar("slot", v.slot);
  ar("rows", v.rows);
  ar("vectors", v.vectors);
  ar("operands", v.operands);
  ar("imm", v.imm);
  ar("scalar", v.scalar);
}

template <typename Archive>
void Fields(Archive& ar, PrologueEntry& v) {
  ar("tile", v.tile);
  ar("slot", v.slot);
}

template <typename Archive>
void Fields(Archive& ar, Stream& v) {
  ar("instructions", v.instructions);
  ar("tiles", v.tiles);
  ar("prologue", v.prologue);
  ar("weight_bytes", v.weight_bytes);
  ar("expert_stride_bytes", v.expert_stride_bytes);
}

template <typename Archive>
void Fields(Archive& ar, Segment& v) {
  ar("name", v.name);
  ar("streams", v.streams);
  ar("vectors", v.vectors);
  ar("vector_bytes", v.vector_bytes);
}

template <typename Archive>
void Fields(Archive& ar, program::Visit& v) {
  ar("segment", v.segment);
  ar("layer", v.layer);
  ar("ordinal", v.ordinal);
  ar("num_blocks", v.num_blocks);
  ar("pushes_block", v.pushes_block);
  ar("state_index", v.state_index);
  ar("capture_index", v.capture_index);
  ar("draft_slot", v.draft_slot);
  ar("shares_weights", v.shares_weights);
  ar("weight_base", v.weight_base);
  ar("expert_base", v.expert_base);
  ar("vector_base", v.vector_base);
  ar("first_exchange", v.first_exchange);
}

template <typename Archive>
void Fields(Archive& ar, StateLayout& v) {
  ar("num_slots", v.num_slots);
  ar("num_kda_layers", v.num_kda_layers);
  ar("num_mla_layers", v.num_mla_layers);
  ar("page_tokens", v.page_tokens);
  ar("num_pages", v.num_pages);
  ar("max_positions", v.max_positions);
  ar("states_per_slot", v.states_per_slot);
  ar("draft_positions", v.draft_positions);
}

template <typename Archive>
void Fields(Archive& ar, DraftShape& v) {
  ar("max_runs", v.max_runs);
  ar("num_drafts", v.num_drafts);
  ar("block_rows", v.block_rows);
  ar("first_slot", v.first_slot);
  ar("mask_token", v.mask_token);
  ar("num_captures", v.num_captures);
}

template <typename Archive>
void Fields(Archive& ar, Table& v) {
  ar("name", v.name);
  ar("rows", v.rows);
  ar("columns", v.columns);
}

template <typename Archive>
void Fields(Archive& ar, Store& v) {
  ar("num_slots", v.num_slots);
  ar("slot_bytes", v.slot_bytes);
}

template <typename Archive>
void Fields(Archive& ar, Program& v) {
  ar("model_name", v.model_name);
  ar("num_workers", v.num_workers);
  ar("max_rows", v.max_rows);
  ar("max_logit_rows", v.max_logit_rows);
  ar("vocab_size", v.vocab_size);
  ar("activation_dtype", v.activation_dtype);
  ar("situ_beta", v.situ_beta);
  ar("situ_linear_beta", v.situ_linear_beta);
  ar("registers", v.registers);
  ar("buffers", v.buffers);
  ar("counters", v.counters);
  ar("tensors", v.tensors);
  ar("segments", v.segments);
  ar("visits", v.visits);
  ar("weight_arena_bytes", v.weight_arena_bytes);
  ar("vector_arena_bytes", v.vector_arena_bytes);
  ar("activation_arena_bytes", v.activation_arena_bytes);
  ar("state", v.state);
  ar("store", v.store);
  ar("draft", v.draft);
  ar("tables", v.tables);
  ar("hidden_size", v.hidden_size);
  ar("sharding", v.sharding);
  ar("mailboxes", v.mailboxes);
}

}  // namespace megalith::program
