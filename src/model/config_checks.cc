#include "model/config_checks.h"

#include <array>

namespace megalith::model {
namespace {

constexpr std::uint64_t kMaxTensors = std::uint64_t{1} << 24;
constexpr std::uint64_t kMaxStoredBytes = std::uint64_t{1} << 60;

constexpr std::array kInertKeys = std::to_array<std::string_view>({
    // how the file was made and how it was trained
    "_name_or_path",
    "transformers_version",
    "auto_map",
    "initializer_range",
    "use_cache",
    "torchscript",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "return_dict_in_generate",
    "use_bfloat16",
    "tf_legacy_loss",
    "pruned_heads",
    "chunk_size_feed_forward",
    "problem_type",
    "finetuning_task",
    "id2label",
    "label2id",
    "task_specific_params",
    "tokenizer_class",
    "attention_dropout",
    "aux_loss_alpha",
    "seq_aux",
    "moe_aux_loss_coeff",
    "is_decoder",
    "is_encoder_decoder",
    "add_cross_attention",
    "cross_attention_hidden_size",
    "tie_encoder_decoder",
    "decoder_start_token_id",
    "prefix",
    "sep_token_id",
    "_attn_implementation_autoset",
    // generation defaults
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "do_sample",
    "max_length",
    "min_length",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "diversity_penalty",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "remove_invalid_values",
    "early_stopping",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
    "output_scores",
});

}  // namespace

void IgnoreInertKeys(JsonReader* reader) {
  for (const std::string_view key : kInertKeys) reader->Ignore(key);
}

void ExpectString(JsonReader* reader, std::string_view key, std::string_view expected) {
  if (!reader->Has(key)) return;
  const std::string_view found = reader->String(key);
  if (reader->status() && found != expected) {
    reader->FailAt(ErrorCode::kUnsupported, key,
                   fmt::format("'{}' expected, '{}' found", expected, found));
  }
}

void ExpectBool(JsonReader* reader, std::string_view key, bool expected) {
  if (!reader->Has(key)) return;
  if (reader->Bool(key) != expected) {
    reader->FailAt(ErrorCode::kUnsupported, key, fmt::format("{} expected", expected));
  }
}

void RequireString(JsonReader* reader, std::string_view key, std::string_view expected) {
  reader->String(key);
  ExpectString(reader, key, expected);
}

void RequireBool(JsonReader* reader, std::string_view key, bool expected) {
  reader->Bool(key);
  ExpectBool(reader, key, expected);
}

void ExpectNull(JsonReader* reader, std::string_view key, std::string_view reason) {
  reader->Ignore(key);
  if (reader->Has(key) && !reader->IsNull(key)) {
    reader->FailAt(ErrorCode::kUnsupported, key, fmt::format("null expected: {}", reason));
  }
}

float ReadEpsilon(JsonReader* reader, std::string_view key) {
  const float value = reader->Float(key);
  if (!(value > 0.0f && value < 1.0f)) {
    reader->FailAt(ErrorCode::kBadConfig, key,
                   fmt::format("a number in (0, 1) expected, {} found", value));
  }
  return value;
}

void CheckTotals(JsonReader* reader, const TensorRules& rules) {
  const StoredSize totals = Total(CountTensors(rules, false));
  if (totals.num_tensors > kMaxTensors || totals.num_bytes > kMaxStoredBytes) {
    reader->FailAt(ErrorCode::kBadConfig, "num_hidden_layers",
                   fmt::format("the sizes multiply to {} tensors and {} bytes; at most {} and {} "
                               "are accepted",
                               totals.num_tensors, totals.num_bytes, kMaxTensors, kMaxStoredBytes));
  }
}

}  // namespace megalith::model
