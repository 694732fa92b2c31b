#include "serve/api/chat_endpoint.h"

#include "base/log.h"
#include "serve/api/chat_job.h"
#include "serve/api/field_policy.h"
#include "serve/api/reply_constraint.h"

namespace megalith::serve {
namespace {

Result<std::vector<text::ChatParser>> MakeParsers(const EndpointContext& context,
                                                  const ChatCall& call,
                                                  const std::vector<text::TokenId>& prompt) {
  const text::Tokenizer& tokenizer = context.model.tokenizer;
  MEGALITH_ASSIGN_OR_RETURN(const text::ControlTokens control, tokenizer.FindControlTokens());
  std::vector<text::ChatParser> parsers;
  for (std::int64_t i = 0; i < call.generation.n; ++i) {
    text::ChatParserOptions options;
    options.start = text::FindOpenChannel(tokenizer, control, prompt);
    options.stop_ids = context.model.stop_ids;
    options.stop_strings = call.generation.stop;
    options.tool_call_ids.Exclude(call.conversation);
    MEGALITH_ASSIGN_OR_RETURN(text::ChatParser parser,
                              text::ChatParser::Create(tokenizer, std::move(options)));
    parsers.push_back(std::move(parser));
  }
  return parsers;
}

Result<std::vector<engine::GenerationRequest>> MakeChatRequests(const EndpointContext& context,
                                                                const ChatCall& call,
                                                                text::RenderedChat prompt) {
  const text::Tokenizer& tokenizer = context.model.tokenizer;
  MEGALITH_ASSIGN_OR_RETURN(const text::ControlTokens control, tokenizer.FindControlTokens());
  const text::Channel start = text::FindOpenChannel(tokenizer, control, prompt.ids);
  MEGALITH_ASSIGN_OR_RETURN(
      const ReplyGrammarPtr form,
      CompileReplyForm(context.model, call.options, call.parallel_tool_calls));
  if (form != nullptr && call.generation.ignore_eos) {
    return Fail(ErrorCode::kUsage,
                "ignore_eos: expected only where the reply is free; response_format, tools or "
                "tool_choice ask for a form, behind which nothing may come but the end");
  }
  engine::GenerationRequest request;
  request.prompt = std::move(prompt.ids);
  request.boundaries = std::move(prompt.boundaries);
  request.num_logprobs = call.num_logprobs;
  std::vector<engine::GenerationRequest> requests = MakeRequests(
      call.generation, context.rules(), !call.options.tools.items().empty(), std::move(request));
  for (engine::GenerationRequest& one : requests) {
    MEGALITH_ASSIGN_OR_RETURN(one.constraint, MakeConstraint(form, start));
  }
  return requests;
}

AnswerHead MakeHead(const EndpointContext& context, const http::Exchange& exchange,
                    const ChatCall& call, std::size_t num_prompt_tokens,
                    std::vector<std::string> warnings) {
  AnswerHead head;
  head.id = exchange.request().id;
  head.model = context.options.model;
  head.created = UnixSeconds();
  head.num_prompt_tokens = static_cast<std::int64_t>(num_prompt_tokens);
  head.num_choices = static_cast<std::size_t>(call.generation.n);
  head.warnings = std::move(warnings);
  return head;
}

}  // namespace

Result<text::RenderedChat> RenderCall(const EndpointContext& context, const ChatCall& call) {
  std::optional<std::vector<text::TokenId>> turn;  // alive until the next call
  const text::ReplayTurn replay = [&](const text::Message& message) {
    turn = context.replay.Find(message, call.options.thinking);
    context.metrics.CountReplay(turn.has_value());
    return turn ? &*turn : nullptr;
  };
  return text::RenderChat(context.model.tokenizer, call.conversation, call.options, replay);
}

EndpointResult StartChat(const EndpointContext& context, ExchangePtr exchange, ChatCall call,
                         const FormatFactory& make_format) {
  std::vector<std::string> warnings = std::move(call.warnings);
  if (auto error = ApplyFieldPolicy(call.unread, context.options.accept_unknown_fields, warnings)) {
    return error;
  }
  if (auto error = CheckModelName(context.options, call.model)) return error;
  auto prompt = RenderCall(context, call);
  if (!prompt) return ToApiError(prompt.error());
  const std::size_t num_prompt_tokens = prompt->ids.size();
  if (auto error = CheckPromptLength(num_prompt_tokens, context.rules().max_positions)) {
    return error;
  }
  if (prompt->num_turns_without_reasoning > 0) {
    LogFormat(LogLevel::kDebug,
              "request {}: {} assistant turns came back without reasoning; the model expects it",
              exchange->request().id, prompt->num_turns_without_reasoning);
  }

  auto parsers = MakeParsers(context, call, prompt->ids);
  if (!parsers) return ToApiError(parsers.error());
  auto requests = MakeChatRequests(context, call, std::move(*prompt));
  if (!requests) return ToApiError(requests.error());

  ChatJobParts parts{context.model.tokenizer, std::move(*parsers)};
  parts.format =
      make_format(MakeHead(context, *exchange, call, num_prompt_tokens, std::move(warnings)));
  parts.replay = &context.replay;
  parts.stops = call.generation.stop;
  parts.num_prompt_tokens = static_cast<std::int64_t>(num_prompt_tokens);
  parts.stream = call.generation.stream;
  parts.return_progress = call.generation.return_progress;
  parts.logprobs = call.num_logprobs.has_value();
  parts.thinking = call.options.thinking;
  parts.ends_with_message = !call.generation.ignore_eos;
  parts.parallel_tool_calls = call.parallel_tool_calls;
  const auto job = std::make_shared<ChatJob>(std::move(exchange), context.job(), std::move(parts));
  if (call.generation.stream) context.pings.Add(job);
  job->Start(std::move(*requests));
  return std::nullopt;
}

EndpointResult PostChatCompletions(const EndpointContext& context, ExchangePtr exchange) {
  const auto body = ParseBody(exchange->request());
  if (!body) return body.error();
  auto call = ReadChatCompletion(*body, context.model.tokenizer, context.options.defaults);
  if (!call) return ToApiError(call.error());
  OpenAiChatOptions options;
  options.logprobs = call->num_logprobs.has_value();
  options.include_usage = call->generation.include_usage;
  return StartChat(context, std::move(exchange), std::move(*call), [options](AnswerHead head) {
    return MakeOpenAiChatFormat(std::move(head), options);
  });
}

}  // namespace megalith::serve
