#include "serve/api/token_endpoints.h"

#include <algorithm>

#include "serve/api/chat_endpoint.h"
#include "serve/api/completion_call.h"
#include "serve/api/field_policy.h"
#include "serve/api/json_build.h"
#include "text/stream_decoder.h"
#include "text/utf8.h"

namespace megalith::serve {
namespace {

JsonValue IdsJson(const std::vector<text::TokenId>& ids) {
  std::vector<JsonValue> items;
  items.reserve(ids.size());
  for (const text::TokenId id : ids) items.push_back(Json(id));
  return JsonArray(std::move(items));
}

JsonValue PiecesJson(const text::Tokenizer& tokenizer, const std::vector<text::TokenId>& ids) {
  std::vector<JsonValue> items;
  for (const text::TokenId id : ids) {
    items.push_back(Json(text::RepairUtf8(tokenizer.TokenBytes(id))));
  }
  return JsonArray(std::move(items));
}

// Members of every answer that lists tokens.
std::vector<JsonMember> TokenMembers(const EndpointContext& context,
                                     const std::vector<text::TokenId>& ids) {
  const auto num_control = std::count_if(ids.begin(), ids.end(), [&context](text::TokenId id) {
    return context.model.tokenizer.IsSpecial(id);
  });
  return {{"tokens", IdsJson(ids)},
          {"count", Json(ids.size())},
          {"control_tokens", Json(static_cast<std::int64_t>(num_control))},
          {"max_model_len", Json(context.rules().max_positions)}};
}

// Finishes reading: unknown members and the model's name.
EndpointResult CheckRest(const EndpointContext& context, const std::vector<std::string>& unread,
                         const std::string& model) {
  std::vector<std::string> warnings;
  if (auto error = ApplyFieldPolicy(unread, context.options.accept_unknown_fields, warnings)) {
    return error;
  }
  return CheckModelName(context.options, model);
}

struct TokenizeCall {
  std::string model;
  std::string content;
  bool parse_special = false;
  bool with_pieces = false;
  std::vector<std::string> unread;
};

Result<TokenizeCall> ReadTokenize(const JsonValue& body) {
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(body, ""));
  TokenizeCall call;
  std::optional<std::string> content;
  MEGALITH_RETURN_IF_ERROR(reader.String("model", call.model));
  MEGALITH_RETURN_IF_ERROR(reader.String("prompt", content));
  MEGALITH_RETURN_IF_ERROR(reader.String("content", content));
  if (!content) return Fail(ErrorCode::kUsage, "content: string expected, nothing found");
  call.content = std::move(*content);
  MEGALITH_RETURN_IF_ERROR(reader.Boolean("parse_special", call.parse_special));
  MEGALITH_RETURN_IF_ERROR(reader.Boolean("with_pieces", call.with_pieces));
  call.unread = reader.Unread();
  return call;
}

struct DetokenizeCall {
  std::string model;
  std::vector<text::TokenId> tokens;
  bool skip_special = false;
  std::vector<std::string> unread;
};

Result<DetokenizeCall> ReadDetokenize(const JsonValue& body, const text::Tokenizer& tokenizer) {
  MEGALITH_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(body, ""));
  DetokenizeCall call;
  MEGALITH_RETURN_IF_ERROR(reader.String("model", call.model));
  MEGALITH_ASSIGN_OR_RETURN(const JsonValue* tokens, reader.Require("tokens", "array"));
  MEGALITH_ASSIGN_OR_RETURN(call.tokens, ReadTokenIds(*tokens, "tokens", tokenizer));
  MEGALITH_RETURN_IF_ERROR(reader.Boolean("skip_special_tokens", call.skip_special));
  call.unread = reader.Unread();
  return call;
}

}  // namespace

EndpointResult PostTokenize(const EndpointContext& context, ExchangePtr exchange) {
  const auto body = ParseBody(exchange->request());
  if (!body) return body.error();
  const auto call = ReadTokenize(*body);
  if (!call) return ToApiError(call.error());
  if (auto error = CheckRest(context, call->unread, call->model)) return error;
  const text::Tokenizer& tokenizer = context.model.tokenizer;
  const auto ids = call->parse_special ? tokenizer.EncodeWithSpecials(call->content)
                                       : tokenizer.Encode(call->content);
  if (!ids) return ToApiError(ids.error());
  std::vector<JsonMember> members = TokenMembers(context, *ids);
  if (call->with_pieces) members.push_back({"pieces", PiecesJson(tokenizer, *ids)});
  RespondJson(*exchange, JsonObject(std::move(members)));
  return std::nullopt;
}

EndpointResult PostDetokenize(const EndpointContext& context, ExchangePtr exchange) {
  const auto body = ParseBody(exchange->request());
  if (!body) return body.error();
  const auto call = ReadDetokenize(*body, context.model.tokenizer);
  if (!call) return ToApiError(call.error());
  if (auto error = CheckRest(context, call->unread, call->model)) return error;
  const auto text =
      text::DecodeText(context.model.tokenizer, call->tokens,
                       call->skip_special ? text::SpecialText::kSkip : text::SpecialText::kShow);
  if (!text) return ToApiError(text.error());
  RespondJson(*exchange, JsonObject({{"content", Json(*text)}}));
  return std::nullopt;
}

EndpointResult PostApplyTemplate(const EndpointContext& context, ExchangePtr exchange) {
  const auto body = ParseBody(exchange->request());
  if (!body) return body.error();
  const auto call = ReadChatCompletion(*body, context.model.tokenizer, context.options.defaults);
  if (!call) return ToApiError(call.error());
  if (auto error = CheckRest(context, call->unread, call->model)) return error;
  const auto prompt = RenderCall(context, *call);
  if (!prompt) return ToApiError(prompt.error());
  const auto text =
      text::DecodeText(context.model.tokenizer, prompt->ids, text::SpecialText::kShow);
  if (!text) return ToApiError(text.error());
  std::vector<JsonMember> members = TokenMembers(context, prompt->ids);
  members.insert(members.begin(), {"prompt", Json(*text)});
  std::vector<JsonValue> boundaries;
  for (const std::size_t length : prompt->boundaries) boundaries.push_back(Json(length));
  members.push_back({"boundaries", JsonArray(std::move(boundaries))});
  members.push_back({"replayed_turns", Json(prompt->num_replayed_turns)});
  RespondJson(*exchange, JsonObject(std::move(members)));
  return std::nullopt;
}

}  // namespace megalith::serve
