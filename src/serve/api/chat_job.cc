#include "serve/api/chat_job.h"

#include <utility>

#include "base/clock.h"

namespace megalith::serve {

ChatJob::ChatJob(std::shared_ptr<http::Exchange> exchange, JobContext context, ChatJobParts parts)
    : GenerationJob(std::move(exchange), context, parts.stream, parts.format->error_style()),
      parts_(std::move(parts)) {
  for (text::ChatParser& parser : parts_.parsers) choices_.push_back({std::move(parser)});
  usage_.prompt_tokens = parts_.num_prompt_tokens;
}

void ChatJob::OnStreamBegin() { parts_.format->Begin(stream()); }

void ChatJob::OnPromptProgress(std::size_t idx, const engine::PromptProgress& progress) {
  if (!parts_.stream || !parts_.return_progress) return;
  parts_.format->Progress(stream(), idx, progress, SecondsSince(arrival_ns()));
}

bool ChatJob::OnToken(std::size_t idx, const engine::GeneratedToken& token) {
  Choice& choice = choices_[idx];
  CountAndScore(choice, token);
  std::vector<text::ChatEvent> events;
  // Fails only for ids outside the vocabulary, which a model of this vocabulary has none of.
  if (!choice.parser.Push(token.token, events)) return false;
  TakeEvents(idx, events);
  return !AtEnd(choice);
}

bool ChatJob::AtEnd(const Choice& choice) const {
  return choice.parser.finished() || choice.call_ends_it ||
         (choice.parser.message_closed() && parts_.ends_with_message);
}

bool ChatJob::IsTextOf(const Choice& choice, text::Channel channel, text::TokenId id) const {
  return choice.parser.channel() == channel && !choice.parser.in_tag() &&
         !parts_.tokenizer.IsSpecial(id);
}

void ChatJob::CountAndScore(Choice& choice, const engine::GeneratedToken& token) {
  choice.ids.push_back(token.token);
  const bool is_reasoning = IsTextOf(choice, text::Channel::kThink, token.token);
  if (is_reasoning) ++choice.num_reasoning_tokens;
  if (!parts_.logprobs || !token.logprob) return;
  if (is_reasoning) {
    choice.new_logprobs.reasoning.push_back(ChatLogprobJson(parts_.tokenizer, token));
  } else if (IsTextOf(choice, text::Channel::kResponse, token.token)) {
    choice.new_logprobs.content.push_back(ChatLogprobJson(parts_.tokenizer, token));
  }
}

void ChatJob::TakeEvents(std::size_t idx, const std::vector<text::ChatEvent>& events) {
  Choice& choice = choices_[idx];
  for (const text::ChatEvent& event : events) {
    choice.builder.Add(event);
    if (parts_.stream) {
      parts_.format->Delta(stream(), idx, event, std::exchange(choice.new_logprobs, {}));
    }
    if (event.kind == text::ChatEvent::Kind::kToolCallEnd && !parts_.parallel_tool_calls) {
      choice.call_ends_it = true;
    }
  }
}

void ChatJob::OnFinish(std::size_t idx, const engine::GenerationSummary& summary) {
  Choice& choice = choices_[idx];
  const bool has_stop_id = choice.parser.finished();  // a closed message has no stop string
  const bool hit_limit = summary.finish_reason == engine::FinishReason::kLength && !AtEnd(choice);
  std::vector<text::ChatEvent> events;
  const text::FinishReason reason = choice.parser.Finish(hit_limit, events);
  TakeEvents(idx, events);

  if (idx == 0) usage_.cached_tokens = static_cast<std::int64_t>(summary.prompt.cached);
  usage_.completion_tokens += static_cast<std::int64_t>(choice.ids.size());
  usage_.reasoning_tokens += choice.num_reasoning_tokens;
  timings_.Add(summary);

  choice.result.reply = std::move(choice.builder).Build(reason);
  if (const auto stop = choice.parser.matched_stop_string()) {
    choice.result.matched_stop = parts_.stops[*stop];
  }
  KeepForReplay(choice, has_stop_id, hit_limit);
  if (parts_.stream) {
    parts_.format->ChoiceEnd(stream(), idx, choice.result, std::move(choice.new_logprobs));
  } else {
    choice.result.content_logprobs = std::move(choice.new_logprobs.content);
    choice.result.reasoning_logprobs = std::move(choice.new_logprobs.reasoning);
  }
}

// What ends with a stop string is not kept: its ids say more than the client has seen. What was
// cancelled is not either: nobody knows how much of it the client has seen.
void ChatJob::KeepForReplay(const Choice& choice, bool has_stop_id, bool hit_limit) {
  if (parts_.replay == nullptr || !(choice.parser.message_closed() || hit_limit)) return;
  std::vector<text::TokenId> ids = choice.ids;
  if (has_stop_id) ids.pop_back();
  parts_.replay->Put(choice.result.reply.ToMessage(), parts_.thinking, std::move(ids));
}

void ChatJob::OnComplete() {
  ChatResult result;
  for (Choice& choice : choices_) result.choices.push_back(std::move(choice.result));
  result.usage = usage_;
  result.timings = timings_;
  if (parts_.stream) {
    parts_.format->End(stream(), result);
    return;
  }
  http::Response response;
  response.body = WriteCompactJson(parts_.format->Whole(result));
  Respond(std::move(response));
}

void ChatJob::OnStreamError(const ApiError& error) { parts_.format->Error(stream(), error); }

void ChatJob::OnPing() { parts_.format->Ping(stream()); }

}  // namespace megalith::serve
