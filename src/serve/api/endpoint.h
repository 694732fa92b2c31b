#pragma once

// What the endpoints share.

#include <memory>
#include <optional>

#include "serve/api/errors.h"
#include "serve/api/generation_job.h"
#include "serve/http/exchange.h"
#include "serve/metrics.h"
#include "serve/ping_timer.h"
#include "serve/replay.h"
#include "serve/service_options.h"

namespace megalith::serve {

/// The service as one request sees it. All of it outlives the request's job.
struct EndpointContext {
  const ServiceOptions& options;
  const ServedModel& model;
  Metrics& metrics;
  PingTimer& pings;
  ReplayStore& replay;
  std::int64_t arrival_ns = 0;

  JobContext job() const { return {*model.generator, metrics, arrival_ns}; }
  RequestRules rules() const {
    return {options.defaults, model.stop_ids, model.generator->max_positions()};
  }
};

using ExchangePtr = std::shared_ptr<http::Exchange>;

/// An error is what the client is to be told; without one the endpoint has answered or will.
using EndpointResult = std::optional<ApiError>;

tl::expected<text::JsonValue, ApiError> ParseBody(const http::Request& request);

/// Whether a request for this name is meant for the model; empty is.
std::optional<ApiError> CheckModelName(const ServiceOptions& options, const std::string& name);

std::optional<ApiError> CheckPromptLength(std::size_t num_tokens, std::int64_t max_positions);

/// Seconds of Unix time.
std::int64_t UnixSeconds();

void RespondJson(http::Exchange& exchange, const text::JsonValue& body);

}  // namespace megalith::serve
