#include "serve/api/completion_job.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "text/utf8.h"

namespace megalith::serve {
namespace {

std::size_t CountCharacters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<std::uint8_t>(byte) & 0xC0) != 0x80;
  }));
}

// A token as a key of the API: its text, or its bytes if they are no text by themselves.
std::string TokenText(const text::Tokenizer& tokenizer, text::TokenId id) {
  const std::string_view bytes = tokenizer.TokenBytes(id);
  if (!text::FindInvalidUtf8(bytes)) return std::string(bytes);
  std::string spelled = "bytes:";
  for (const char byte : bytes)
    spelled += fmt::format("\\x{:02x}", static_cast<std::uint8_t>(byte));
  return spelled;
}

}  // namespace

CompletionJob::CompletionJob(std::shared_ptr<http::Exchange> exchange, JobContext context,
                             const text::Tokenizer& tokenizer, const CompletionCall& call,
                             AnswerHead head, std::vector<text::StopStringFilter> stop_filters,
                             std::vector<text::TokenId> stop_ids)
    : GenerationJob(std::move(exchange), context, call.generation.stream, ErrorStyle::kOpenAi),
      tokenizer_(tokenizer),
      head_(std::move(head)),
      stop_ids_(std::move(stop_ids)),
      n_(call.generation.n),
      generates_(call.generation.max_tokens != 0),
      logprobs_(call.num_logprobs.has_value()),
      include_usage_(call.generation.include_usage),
      return_progress_(call.generation.return_progress) {
  for (text::StopStringFilter& filter : stop_filters) {
    choices_.push_back({text::StreamDecoder(tokenizer), std::move(filter)});
  }
  usage_.prompt_tokens = head_.num_prompt_tokens;
  // With log probabilities the prompt comes back token by token.
  if (!call.echo || logprobs_) return;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    EchoText(choices_[i], call.prompts[i / static_cast<std::size_t>(n_)]);
  }
}

void CompletionJob::EchoText(Choice& choice, const std::vector<text::TokenId>& prompt) {
  for (const text::TokenId id : prompt) {
    if (const auto piece = choice.decoder.Push(id)) choice.text += *piece;
  }
  choice.num_characters = CountCharacters(choice.text);
}

void CompletionJob::OnStreamBegin() {
  for (std::size_t i = 0; i < choices_.size(); ++i) SendNew(i);
}

void CompletionJob::OnPromptProgress(std::size_t idx, const engine::PromptProgress& progress) {
  if (!return_progress_) return;
  std::vector<JsonMember> members = Head(JsonArray());
  members.push_back({"prompt_progress", ProgressJson(idx, progress, SecondsSince(arrival_ns()))});
  stream().Data(JsonObject(std::move(members)));
}

void CompletionJob::OnPromptToken(std::size_t idx, const engine::GeneratedToken& token) {
  Choice& choice = choices_[idx];
  AddLogprob(choice, token);
  if (const auto piece = choice.decoder.Push(token.token)) {
    choice.text += *piece;
    choice.num_characters += CountCharacters(*piece);
  }
  if (streams()) SendNew(idx);
}

bool CompletionJob::OnToken(std::size_t idx, const engine::GeneratedToken& token) {
  if (!generates_) return false;
  Choice& choice = choices_[idx];
  ++choice.num_tokens;
  if (IsStopId(token.token)) {
    choice.finish_reason = "stop";
    return false;
  }
  AddLogprob(choice, token);
  const auto piece = choice.decoder.Push(token.token);
  if (!piece) return false;
  choice.num_characters += CountCharacters(*piece);
  choice.stop_filter.Push(*piece, choice.text);
  if (choice.stop_filter.stopped()) choice.finish_reason = "stop";
  if (streams()) SendNew(idx);
  return !choice.stop_filter.stopped();
}

void CompletionJob::OnFinish(std::size_t idx, const engine::GenerationSummary& summary) {
  Choice& choice = choices_[idx];
  choice.stop_filter.Push(choice.decoder.Finish(), choice.text);
  if (!choice.stop_filter.stopped()) choice.stop_filter.Flush(choice.text);
  if (choice.finish_reason.empty()) {
    const bool by_model = summary.finish_reason == engine::FinishReason::kStop && generates_;
    choice.finish_reason = by_model ? "stop" : "length";
  }
  usage_.completion_tokens += choice.num_tokens;
  if (static_cast<std::int64_t>(idx) % n_ == 0) {
    usage_.cached_tokens += static_cast<std::int64_t>(summary.prompt.cached);
  }
  timings_.Add(summary);
  if (streams()) {
    stream().Data(JsonObject(Head(JsonArray({ChoiceJson(idx, Json(choice.finish_reason))}))));
  }
}

void CompletionJob::OnComplete() {
  std::vector<JsonMember> members;
  if (!streams()) {
    std::vector<JsonValue> choices;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      choices.push_back(ChoiceJson(i, Json(choices_[i].finish_reason)));
    }
    members = Head(JsonArray(std::move(choices)));
    members.push_back({"usage", UsageJson(usage_)});
    members.push_back({"timings", TimingsJson(timings_)});
    http::Response response;
    response.body = WriteCompactJson(JsonObject(std::move(members)));
    Respond(std::move(response));
    return;
  }
  if (include_usage_) {
    members = Head(JsonArray());
    members.back() = {"usage", UsageJson(usage_)};  // instead of the null of other chunks
    members.push_back({"timings", TimingsJson(timings_)});
    stream().Data(JsonObject(std::move(members)));
  }
  stream().Done();
}

void CompletionJob::OnStreamError(const ApiError& error) {
  stream().Data(ErrorBody(error, ErrorStyle::kOpenAi));
}

void CompletionJob::AddLogprob(Choice& choice, const engine::GeneratedToken& token) const {
  if (!logprobs_) return;
  Logprobs& logprobs = choice.logprobs;
  logprobs.tokens.push_back(Json(TokenText(tokenizer_, token.token)));
  // The first token of a prompt has none.
  logprobs.token_logprobs.push_back(token.logprob ? Json(FiniteLogprob(*token.logprob))
                                                  : JsonValue());
  std::vector<JsonMember> top;
  for (const engine::TokenLogprob& other : token.top) {
    top.push_back({TokenText(tokenizer_, other.token), Json(FiniteLogprob(other.logprob))});
  }
  logprobs.top_logprobs.push_back(token.logprob ? JsonObject(std::move(top)) : JsonValue());
  logprobs.text_offset.push_back(Json(choice.num_characters));
}

bool CompletionJob::IsStopId(text::TokenId id) const {
  return std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end();
}

// Takes what was not yet sent.
JsonValue CompletionJob::ChoiceJson(std::size_t idx, JsonValue finish_reason) {
  Choice& choice = choices_[idx];
  JsonValue logprobs;
  if (logprobs_) {
    Logprobs lists = std::exchange(choice.logprobs, {});
    logprobs = JsonObject({{"tokens", JsonArray(std::move(lists.tokens))},
                           {"token_logprobs", JsonArray(std::move(lists.token_logprobs))},
                           {"top_logprobs", JsonArray(std::move(lists.top_logprobs))},
                           {"text_offset", JsonArray(std::move(lists.text_offset))}});
  }
  return JsonObject({{"text", Json(std::exchange(choice.text, {}))},
                     {"index", Json(idx)},
                     {"logprobs", std::move(logprobs)},
                     {"finish_reason", std::move(finish_reason)}});
}

std::vector<JsonMember> CompletionJob::Head(JsonValue choices) {
  std::vector<JsonMember> members = {{"id", Json("cmpl-" + head_.id)},
                                     {"object", Json("text_completion")},
                                     {"created", Json(head_.created)},
                                     {"model", Json(head_.model)},
                                     {"choices", std::move(choices)}};
  if (!head_.warnings.empty() && !std::exchange(warned_, true)) {
    members.push_back({"warnings", Json(head_.warnings)});
  }
  if (streams() && include_usage_) members.push_back({"usage", JsonValue()});
  return members;
}

void CompletionJob::SendNew(std::size_t idx) {
  Choice& choice = choices_[idx];
  if (choice.text.empty() && choice.logprobs.tokens.empty()) return;
  stream().Data(JsonObject(Head(JsonArray({ChoiceJson(idx, JsonValue())}))));
}

}  // namespace megalith::serve
