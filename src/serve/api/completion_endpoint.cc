#include "serve/api/completion_endpoint.h"

#include "serve/api/completion_call.h"
#include "serve/api/completion_job.h"
#include "serve/api/field_policy.h"

namespace megalith::serve {
namespace {

std::vector<engine::GenerationRequest> MakeCompletionRequests(const EndpointContext& context,
                                                              const CompletionCall& call) {
  std::vector<engine::GenerationRequest> all;
  for (const std::vector<text::TokenId>& ids : call.prompts) {
    engine::GenerationRequest request;
    request.prompt = ids;
    request.num_logprobs = call.num_logprobs;
    request.prompt_logprobs = call.echo && call.num_logprobs.has_value();
    for (engine::GenerationRequest& one :
         MakeRequests(call.generation, context.rules(), false, std::move(request))) {
      all.push_back(std::move(one));
    }
  }
  return all;
}

Result<std::vector<text::StopStringFilter>> MakeFilters(const CompletionCall& call,
                                                        std::size_t count) {
  std::vector<text::StopStringFilter> filters;
  for (std::size_t i = 0; i < count; ++i) {
    MEGALITH_ASSIGN_OR_RETURN(text::StopStringFilter filter,
                              text::StopStringFilter::Create(call.generation.stop));
    filters.push_back(std::move(filter));
  }
  return filters;
}

}  // namespace

EndpointResult PostCompletions(const EndpointContext& context, ExchangePtr exchange) {
  const auto body = ParseBody(exchange->request());
  if (!body) return body.error();
  auto call = ReadCompletion(*body, context.model.tokenizer, context.options.defaults);
  if (!call) return ToApiError(call.error());
  AnswerHead head;
  if (auto error =
          ApplyFieldPolicy(call->unread, context.options.accept_unknown_fields, head.warnings)) {
    return error;
  }
  if (auto error = CheckModelName(context.options, call->model)) return error;
  for (const std::vector<text::TokenId>& prompt : call->prompts) {
    if (auto error = CheckPromptLength(prompt.size(), context.rules().max_positions)) return error;
    head.num_prompt_tokens += static_cast<std::int64_t>(prompt.size());
  }
  head.id = exchange->request().id;
  head.model = context.options.model;
  head.created = UnixSeconds();
  std::vector<engine::GenerationRequest> requests = MakeCompletionRequests(context, *call);
  auto filters = MakeFilters(*call, requests.size());
  if (!filters) return ToApiError(filters.error());
  const auto job = std::make_shared<CompletionJob>(
      std::move(exchange), context.job(), context.model.tokenizer, *call, std::move(head),
      std::move(*filters),
      call->generation.ignore_eos ? std::vector<text::TokenId>() : context.model.stop_ids);
  if (call->generation.stream) context.pings.Add(job);
  job->Start(std::move(requests));
  return std::nullopt;
}

}  // namespace megalith::serve
