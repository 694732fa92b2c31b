#include "serve/service.h"

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "serve/access.h"
#include "serve/api/chat_endpoint.h"
#include "serve/api/completion_endpoint.h"
#include "serve/api/json_build.h"
#include "serve/api/messages_endpoint.h"
#include "serve/api/responses_endpoint.h"
#include "serve/api/token_endpoints.h"
#include "text/utf8.h"

namespace megalith::serve {

/// Adds the CORS headers of its request to the answer and counts it. Only the first answer goes
/// out: when a job has begun one, what failed behind it can no longer be told.
class Service::TrackedExchange : public http::Exchange {
 public:
  TrackedExchange(std::shared_ptr<http::Exchange> inner, std::vector<http::Header> headers,
                  std::string endpoint, Metrics& metrics)
      : inner_(std::move(inner)),
        headers_(std::move(headers)),
        endpoint_(std::move(endpoint)),
        metrics_(metrics) {}

  const http::Request& request() const override { return inner_->request(); }
  void Respond(http::Response response) override {
    if (answered_.exchange(true)) return;
    Complete(response);
    inner_->Respond(std::move(response));
  }
  void BeginStream(http::Response head) override {
    answered_ = true;
    Complete(head);
    inner_->BeginStream(std::move(head));
  }
  bool Write(std::string piece) override { return inner_->Write(std::move(piece)); }
  void EndStream() override { inner_->EndStream(); }
  void OnDisconnect(std::function<void()> callback) override {
    inner_->OnDisconnect(std::move(callback));
  }

 private:
  void Complete(http::Response& response) {
    metrics_.CountResponse(endpoint_, response.status);
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
  }

  const std::shared_ptr<http::Exchange> inner_;
  const std::vector<http::Header> headers_;
  const std::string endpoint_;
  Metrics& metrics_;
  std::atomic<bool> answered_ = false;
};

struct Service::Route {
  std::string_view method;
  std::string_view path;
  bool is_public = false;  ///< answered without a key
  ErrorStyle style = ErrorStyle::kOpenAi;
  /// One of the three: needs the model; needs none; takes the rest of the path.
  EndpointResult (*on_model)(const EndpointContext&, ExchangePtr) = nullptr;
  void (Service::*plain)(http::Exchange&) = nullptr;
  void (Service::*with_argument)(http::Exchange&, const std::string&) = nullptr;
};

const std::vector<Service::Route>& Service::Routes() {
  static const std::vector<Route> routes = {
      {.method = "POST", .path = "/v1/chat/completions", .on_model = PostChatCompletions},
      {.method = "POST", .path = "/v1/completions", .on_model = PostCompletions},
      {.method = "POST",
       .path = "/v1/messages",
       .style = ErrorStyle::kAnthropic,
       .on_model = PostMessages},
      {.method = "POST",
       .path = "/v1/messages/count_tokens",
       .style = ErrorStyle::kAnthropic,
       .on_model = PostCountTokens},
      {.method = "POST", .path = "/v1/responses", .on_model = PostResponses},
      {.method = "GET", .path = "/v1/models", .plain = &Service::GetModels},
      {.method = "GET", .path = "/v1/models/", .with_argument = &Service::GetModel},
      {.method = "POST", .path = "/v1/embeddings", .plain = &Service::RefuseEmbeddings},
      {.method = "POST", .path = "/tokenize", .on_model = PostTokenize},
      {.method = "POST", .path = "/detokenize", .on_model = PostDetokenize},
      {.method = "POST", .path = "/apply-template", .on_model = PostApplyTemplate},
      {.method = "GET", .path = "/", .is_public = true, .plain = &Service::GetIndexPage},
      {.method = "GET", .path = "/health", .is_public = true, .plain = &Service::GetHealth},
      {.method = "GET", .path = "/ready", .is_public = true, .plain = &Service::GetReady},
      {.method = "GET", .path = "/metrics", .plain = &Service::GetMetrics},
      {.method = "GET", .path = "/status", .plain = &Service::GetStatus},
  };
  return routes;
}

namespace {

// HEAD is answered like GET; the transport leaves the body out.
bool MethodMatches(std::string_view asked, std::string_view route) {
  return asked == route || (asked == "HEAD" && route == "GET");
}

http::Response Preflight(const std::string& methods) {
  http::Response response;
  response.status = 204;
  response.headers = {{"Access-Control-Allow-Methods", methods},
                      {"Access-Control-Allow-Headers",
                       "Authorization, Content-Type, X-Api-Key, Anthropic-Version, "
                       "Anthropic-Beta"},
                      {"Access-Control-Max-Age", "600"}};
  return response;
}

ApiError MakeError(ApiErrorCode code, std::string message) {
  ApiError error;
  error.code = code;
  error.message = std::move(message);
  return error;
}

}  // namespace

Service::Service(ServiceOptions options)
    : options_(std::move(options)),
      started_(UnixSeconds()),
      replay_(options_.replay_bytes),
      pings_(options_.ping_interval) {}

Service::~Service() = default;

void Service::SetLoadProgress(double fraction) { load_fraction_ = std::clamp(fraction, 0.0, 1.0); }

void Service::SetModel(ServedModel model) {
  // A vocabulary without the chat format's control tokens can still complete texts.
  if (auto trie = text::grammar::TokenTrie::Create(model.tokenizer)) model.token_trie = *trie;
  if (!model.replay_file.empty()) {
    if (const Status status = replay_.KeepIn(model.replay_file); !status) {
      LogFormat(LogLevel::kWarning, "replayed turns are not kept: {}", status.error().message);
    }
  }
  const std::lock_guard lock(model_mutex_);
  model_ = std::make_shared<const ServedModel>(std::move(model));
}

void Service::BeginDrain() { draining_ = true; }

std::shared_ptr<const ServedModel> Service::model() const {
  const std::lock_guard lock(model_mutex_);
  return model_;
}

ApiError Service::LoadingError() const {
  const double fraction = load_fraction_;
  ApiError error = MakeError(ApiErrorCode::kLoading,
                             fmt::format("the model is loading: {:.0f} %", fraction * 100.0));
  error.load_fraction = fraction;
  return error;
}

void Service::Handle(std::shared_ptr<http::Exchange> exchange) {
  const http::Request& request = exchange->request();
  const Route* found = nullptr;
  std::string argument;
  std::string methods;  // of the path
  for (const Route& route : Routes()) {
    const bool takes_rest = route.with_argument != nullptr;
    const bool matches =
        takes_rest ? request.path.starts_with(route.path) && request.path.size() > route.path.size()
                   : request.path == route.path;
    if (!matches) continue;
    if (takes_rest) argument = request.path.substr(route.path.size());
    if (!methods.empty()) methods += ", ";
    methods += route.method == "GET" ? "GET, HEAD" : std::string(route.method);
    if (MethodMatches(request.method, route.method)) found = &route;
  }
  const std::string endpoint = found != nullptr ? std::string(found->path) : "other";
  const auto tracked = std::make_shared<TrackedExchange>(
      std::move(exchange), CorsHeaders(request, options_.cors_origins), endpoint, metrics_);
  if (!methods.empty() && IsPreflight(request) && !options_.cors_origins.empty()) {
    tracked->Respond(Preflight(methods));
  } else if (methods.empty()) {
    tracked->Respond(ErrorResponse(MakeError(
        ApiErrorCode::kUnknownEndpoint,
        fmt::format("there is no endpoint {}", text::RepairUtf8(request.path.substr(0, 128))))));
  } else if (found == nullptr) {
    http::Response response = ErrorResponse(
        MakeError(ApiErrorCode::kMethodNotAllowed, fmt::format("{} expected", methods)));
    response.headers.push_back({"Allow", methods});
    tracked->Respond(std::move(response));
  } else {
    Dispatch(tracked, *found, argument);
  }
}

void Service::Dispatch(const std::shared_ptr<http::Exchange>& exchange, const Route& route,
                       const std::string& argument) {
  if (!route.is_public && !HasValidKey(exchange->request(), options_.api_keys)) {
    exchange->Respond(ErrorResponse(
        MakeError(ApiErrorCode::kInvalidApiKey,
                  "a valid API key expected: Authorization: Bearer KEY, or x-api-key: KEY"),
        route.style));
    return;
  }
  // Without this any page that a user of this machine opens could have answers computed.
  if (!route.is_public && exchange->request().method == "POST" &&
      IsForeignPage(exchange->request(), options_.cors_origins)) {
    exchange->Respond(ErrorResponse(
        MakeError(ApiErrorCode::kForeignOrigin,
                  "web pages of this origin may not ask this server; it can be allowed to"),
        route.style));
    return;
  }
  EndpointResult error;
  // Whatever a request sets off ends with that request.
  try {
    if (route.on_model != nullptr) {
      error = RunOnModel(route, exchange);
    } else if (route.plain != nullptr) {
      (this->*route.plain)(*exchange);
    } else {
      (this->*route.with_argument)(*exchange, argument);
    }
  } catch (const std::bad_alloc&) {
    error = MakeError(ApiErrorCode::kOutOfMemory, "the request needs more memory than there is");
  } catch (const std::exception& exception) {
    LogFormat(LogLevel::kError, "request {}: {}", exchange->request().id, exception.what());
    error = MakeError(ApiErrorCode::kInternal, "internal error; see the server's log");
  }
  if (error) exchange->Respond(ErrorResponse(*error, route.style));
}

EndpointResult Service::RunOnModel(const Route& route, std::shared_ptr<http::Exchange> exchange) {
  const auto served = model();
  if (served == nullptr) return LoadingError();
  if (draining_) {
    return MakeError(ApiErrorCode::kShuttingDown, "the server is shutting down");
  }
  const EndpointContext context{options_, *served, metrics_, pings_, replay_, NowNs()};
  return route.on_model(context, std::move(exchange));
}

std::optional<ApiError> Service::Failure() const {
  const auto status = GeneratorStatus();
  if (!status || !status->failure) return std::nullopt;
  return MakeError(ApiErrorCode::kShuttingDown,
                   "the server has failed: " + status->failure->message);
}

void Service::GetHealth(http::Exchange& exchange) {
  if (const auto failure = Failure()) return exchange.Respond(ErrorResponse(*failure));
  RespondJson(exchange, JsonObject({{"status", Json("ok")}}));
}

void Service::GetReady(http::Exchange& exchange) {
  if (model() == nullptr) {
    exchange.Respond(ErrorResponse(LoadingError()));
  } else if (draining_) {
    exchange.Respond(
        ErrorResponse(MakeError(ApiErrorCode::kShuttingDown, "the server is shutting down")));
  } else if (const auto failure = Failure()) {
    exchange.Respond(ErrorResponse(*failure));
  } else {
    RespondJson(exchange, JsonObject({{"status", Json("ready")}}));
  }
}

text::JsonValue Service::ModelJson(const std::string& name) const {
  const auto served = model();
  std::vector<JsonMember> members = {{"id", Json(name)},
                                     {"object", Json("model")},
                                     {"created", Json(started_)},
                                     {"owned_by", Json("megalith")}};
  if (name != options_.model) members.push_back({"parent", Json(options_.model)});
  if (served == nullptr) {
    members.push_back({"status", Json("loading")});
    members.push_back({"percent", Json(load_fraction_ * 100.0)});
    return JsonObject(std::move(members));
  }
  const std::int64_t context = served->generator->max_positions();
  members.push_back({"status", Json("ready")});
  members.push_back({"max_model_len", Json(context)});
  members.push_back({"context_length", Json(context)});
  members.push_back(
      {"capabilities", Json({"chat", "completion", "tools", "reasoning", "logprobs"})});
  return JsonObject(std::move(members));
}

void Service::GetModels(http::Exchange& exchange) {
  std::vector<JsonValue> models = {ModelJson(options_.model)};
  for (const std::string& alias : options_.aliases) models.push_back(ModelJson(alias));
  RespondJson(exchange,
              JsonObject({{"object", Json("list")}, {"data", JsonArray(std::move(models))}}));
}

void Service::GetModel(http::Exchange& exchange, const std::string& name) {
  if (const auto error = CheckModelName(options_, name)) {
    exchange.Respond(ErrorResponse(*error));
    return;
  }
  RespondJson(exchange, ModelJson(name));
}

std::optional<engine::GeneratorStatus> Service::GeneratorStatus() const {
  const auto served = model();
  if (served == nullptr) return std::nullopt;
  return served->generator->GetStatus();
}

/// Public: it asks for the key itself.
void Service::GetIndexPage(http::Exchange& exchange) {
  if (options_.index_page.empty()) {
    return exchange.Respond(
        ErrorResponse(MakeError(ApiErrorCode::kUnknownEndpoint, "this server has no page")));
  }
  http::Response response;
  response.content_type = "text/html; charset=utf-8";
  // The rest of the policy is in the page; this part counts in a header only.
  response.headers = {{"Content-Security-Policy", "frame-ancestors 'none'"},
                      {"Cache-Control", "no-cache"}};
  response.body = options_.index_page;
  exchange.Respond(std::move(response));
}

void Service::GetMetrics(http::Exchange& exchange) {
  http::Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_.Prometheus(GeneratorStatus(), ready());
  exchange.Respond(std::move(response));
}

void Service::GetStatus(http::Exchange& exchange) {
  std::vector<JsonMember> members = {{"model", Json(options_.model)},
                                     {"version", Json(options_.version)},
                                     {"ready", Json(ready())},
                                     {"draining", Json(draining_.load())}};
  const auto status = GeneratorStatus();
  if (!status) {
    members.push_back({"percent", Json(load_fraction_ * 100.0)});
    RespondJson(exchange, JsonObject(std::move(members)));
    return;
  }
  std::vector<JsonValue> generations;
  for (const engine::GenerationView& view : status->generations) {
    generations.push_back(JsonObject({{"id", Json(view.id)},
                                      {"queue_position", Json(view.queue_position)},
                                      {"prompt_tokens", Json(view.prompt.total)},
                                      {"cached_tokens", Json(view.prompt.cached)},
                                      {"prompt_done", Json(view.prompt.done)},
                                      {"generated_tokens", Json(view.generated_tokens)},
                                      {"age_seconds", Json(view.age_seconds)}}));
  }
  members.insert(members.end(), {{"max_running", Json(status->max_running)},
                                 {"max_queued", Json(status->max_queued)},
                                 {"generations", JsonArray(std::move(generations))},
                                 {"submitted", Json(status->num_submitted)},
                                 {"finished", Json(status->num_finished)},
                                 {"cancelled", Json(status->num_cancelled)},
                                 {"failed", Json(status->num_failed)},
                                 {"refused", Json(status->num_refused)},
                                 {"prompt_tokens", Json(status->prompt_tokens)},
                                 {"cached_tokens", Json(status->cached_tokens)},
                                 {"generated_tokens", Json(status->generated_tokens)},
                                 {"drafted_tokens", Json(status->drafted_tokens)},
                                 {"accepted_tokens", Json(status->accepted_tokens)},
                                 {"steps", Json(status->num_steps)},
                                 {"step_rows", Json(status->step_rows)},
                                 {"step_seconds", Json(status->step_seconds)},
                                 {"cache_bytes", Json(status->cache_bytes)},
                                 {"cache_limit_bytes", Json(status->cache_limit_bytes)},
                                 {"replay_turns", Json(replay_.num_turns())},
                                 {"replay_bytes", Json(replay_.num_bytes())}});
  RespondJson(exchange, JsonObject(std::move(members)));
}

void Service::RefuseEmbeddings(http::Exchange& exchange) {
  exchange.Respond(ErrorResponse(MakeError(
      ApiErrorCode::kUnsupported, "embeddings are not supported: this model generates text")));
}

}  // namespace megalith::serve
