#include "serve/api/responses_endpoint.h"

#include "serve/api/chat_endpoint.h"
#include "serve/api/responses_call.h"
#include "serve/api/responses_format.h"

namespace megalith::serve {

EndpointResult PostResponses(const EndpointContext& context, ExchangePtr exchange) {
  const auto body = ParseBody(exchange->request());
  if (!body) return body.error();
  auto call = ReadResponsesCall(*body, context.model.tokenizer);
  if (!call) return ToApiError(call.error());
  ResponsesFormatOptions options{call->include_encrypted_reasoning, call->chat.parallel_tool_calls,
                                 call->tools, call->tool_choice};
  return StartChat(context, std::move(exchange), std::move(call->chat),
                   [options = std::move(options)](AnswerHead head) {
                     return MakeResponsesFormat(std::move(head), options);
                   });
}

}  // namespace megalith::serve
