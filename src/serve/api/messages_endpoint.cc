#include "serve/api/messages_endpoint.h"

#include "serve/api/chat_endpoint.h"
#include "serve/api/field_policy.h"
#include "serve/api/messages_call.h"
#include "serve/api/messages_format.h"

namespace megalith::serve {

EndpointResult PostMessages(const EndpointContext& context, ExchangePtr exchange) {
  const auto body = ParseBody(exchange->request());
  if (!body) return body.error();
  auto call = ReadMessagesCall(*body, context.model.tokenizer);
  if (!call) return ToApiError(call.error());
  return StartChat(context, std::move(exchange), std::move(*call), MakeMessagesFormat);
}

EndpointResult PostCountTokens(const EndpointContext& context, ExchangePtr exchange) {
  const auto body = ParseBody(exchange->request());
  if (!body) return body.error();
  const auto call = ReadMessagesCall(*body, context.model.tokenizer);
  if (!call) return ToApiError(call.error());
  std::vector<std::string> warnings;
  if (auto error =
          ApplyFieldPolicy(call->unread, context.options.accept_unknown_fields, warnings)) {
    return error;
  }
  if (auto error = CheckModelName(context.options, call->model)) return error;
  const auto prompt = RenderCall(context, *call);
  if (!prompt) return ToApiError(prompt.error());
  RespondJson(*exchange, JsonObject({{"input_tokens", Json(prompt->ids.size())}}));
  return std::nullopt;
}

}  // namespace megalith::serve
