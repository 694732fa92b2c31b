#pragma once

// The OpenAI-compatible service: one function from a request to its answer, whatever carries both.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "engine/generator.h"
#include "serve/api/endpoint.h"
#include "serve/http/exchange.h"
#include "serve/metrics.h"
#include "serve/ping_timer.h"
#include "serve/replay.h"
#include "serve/service_options.h"

namespace megalith::serve {

/// Thread-safe. Outlives the exchanges it was given and the generator's last call to a listener.
class Service {
 public:
  explicit Service(ServiceOptions options);
  ~Service();

  /// Answers at once or later, from any thread; never throws. Reads and tokenizes the request
  /// before it returns, which takes about a second for 10 MB of text: not for a thread that others
  /// wait for.
  void Handle(std::shared_ptr<http::Exchange> exchange);

  /// How much of the model is there, 0 to 1, until SetModel.
  void SetLoadProgress(double fraction);
  /// Generations are accepted from now on. Once.
  void SetModel(ServedModel model);
  /// No new generations: they are answered 503. Running ones go on.
  void BeginDrain();

  const ServiceOptions& options() const { return options_; }

 private:
  struct Route;
  class TrackedExchange;
  static const std::vector<Route>& Routes();

  void Dispatch(const std::shared_ptr<http::Exchange>& exchange, const Route& route,
                const std::string& argument);
  EndpointResult RunOnModel(const Route& route, std::shared_ptr<http::Exchange> exchange);
  std::shared_ptr<const ServedModel> model() const;
  ApiError LoadingError() const;
  /// Why nothing will ever be generated again.
  std::optional<ApiError> Failure() const;
  bool ready() const { return model() != nullptr && !draining_ && !Failure(); }

  // Endpoints that need no model.
  void GetHealth(http::Exchange& exchange);
  void GetReady(http::Exchange& exchange);
  void GetModels(http::Exchange& exchange);
  void GetModel(http::Exchange& exchange, const std::string& name);
  void GetIndexPage(http::Exchange& exchange);
  void GetMetrics(http::Exchange& exchange);
  void GetStatus(http::Exchange& exchange);
  void RefuseEmbeddings(http::Exchange& exchange);
  text::JsonValue ModelJson(const std::string& name) const;
  std::optional<engine::GeneratorStatus> GeneratorStatus() const;

  const ServiceOptions options_;
  const std::int64_t started_;  // seconds of Unix time
  Metrics metrics_;
  ReplayStore replay_;
  std::atomic<double> load_fraction_ = 0.0;
  std::atomic<bool> draining_ = false;
  mutable std::mutex model_mutex_;
  std::shared_ptr<const ServedModel> model_;  // guarded by model_mutex_; null while loading
  PingTimer pings_;                           // last: its thread uses what is above
};

}  // namespace megalith::serve
