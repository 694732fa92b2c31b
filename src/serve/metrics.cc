#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace megalith::serve {
namespace {

class PrometheusWriter {
 public:
  void Head(std::string_view name, std::string_view type, std::string_view help) {
    fmt::format_to(std::back_inserter(out_), "# HELP megalith_{} {}\n# TYPE megalith_{} {}\n", name,
                   help, name, type);
  }
  template <typename Value>
  void Sample(std::string_view name, std::string_view labels, Value value) {
    fmt::format_to(std::back_inserter(out_), "megalith_{}{} {}\n", name,
                   labels.empty() ? std::string() : fmt::format("{{{}}}", labels), value);
  }
  template <typename Value>
  void Counter(std::string_view name, std::string_view help, Value value) {
    Head(name, "counter", help);
    Sample(name, "", value);
  }
  template <typename Value>
  void Gauge(std::string_view name, std::string_view help, Value value) {
    Head(name, "gauge", help);
    Sample(name, "", value);
  }
  std::string& text() { return out_; }

 private:
  std::string out_;
};

void WriteGenerations(const engine::GeneratorStatus& status, PrometheusWriter& writer) {
  const auto num_running =
      std::count_if(status.generations.begin(), status.generations.end(),
                    [](const engine::GenerationView& view) { return view.queue_position == 0; });
  const auto num_queued = static_cast<std::ptrdiff_t>(status.generations.size()) - num_running;
  writer.Gauge("generations_running", "Generations in the engine now.", num_running);
  writer.Gauge("generations_queued", "Generations that wait.", num_queued);
  writer.Gauge("generations_running_max", "Generations that can run at once.", status.max_running);
  writer.Gauge("generations_queued_max", "Generations that can wait.", status.max_queued);
  writer.Head("generations_total", "counter", "Generations that ended, by outcome.");
  writer.Sample("generations_total", "outcome=\"finished\"", status.num_finished);
  writer.Sample("generations_total", "outcome=\"cancelled\"", status.num_cancelled);
  writer.Sample("generations_total", "outcome=\"failed\"", status.num_failed);
  writer.Sample("generations_total", "outcome=\"refused\"", status.num_refused);
}

void WriteEngine(const engine::GeneratorStatus& status, PrometheusWriter& writer) {
  writer.Counter("prompt_tokens_total", "Tokens of prompts, cached ones included.",
                 status.prompt_tokens);
  writer.Counter("cached_tokens_total", "Tokens of prompts taken from the prefix cache.",
                 status.cached_tokens);
  writer.Counter("generated_tokens_total", "Tokens generated.", status.generated_tokens);
  writer.Counter("drafted_tokens_total", "Drafts verified.", status.drafted_tokens);
  writer.Counter("accepted_tokens_total", "Drafts accepted.", status.accepted_tokens);
  writer.Counter("steps_total", "Steps of the engine.", status.num_steps);
  writer.Counter("step_rows_total", "Rows of all steps.", status.step_rows);
  writer.Counter("step_seconds_total", "Time spent in steps.", status.step_seconds);
  writer.Gauge("cache_bytes", "Memory of the prefix cache.", status.cache_bytes);
  writer.Gauge("cache_limit_bytes", "Most memory the prefix cache may take.",
               status.cache_limit_bytes);
  writer.Gauge("cache_entries", "Entries of the prefix cache.", status.cache_entries);
  writer.Counter("cache_evictions_total", "Entries the prefix cache dropped.",
                 status.cache_evictions);
}

}  // namespace

void Histogram::Observe(double seconds) {
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  const std::lock_guard lock(mutex_);
  ++counts_[static_cast<std::size_t>(bucket - kBounds.begin())];
  sum_ += seconds;
}

void Histogram::Write(std::string_view name, std::string_view help, std::string& out) const {
  const std::lock_guard lock(mutex_);
  auto to = std::back_inserter(out);
  fmt::format_to(to, "# HELP megalith_{} {}\n# TYPE megalith_{} histogram\n", name, help, name);
  std::uint64_t num_observed = 0;
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    num_observed += counts_[i];
    fmt::format_to(to, "megalith_{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], num_observed);
  }
  num_observed += counts_.back();
  fmt::format_to(to, "megalith_{}_bucket{{le=\"+Inf\"}} {}\n", name, num_observed);
  fmt::format_to(to, "megalith_{}_sum {}\nmegalith_{}_count {}\n", name, sum_, name, num_observed);
}

void Metrics::CountResponse(std::string_view endpoint, int status) {
  const std::lock_guard lock(mutex_);
  ++responses_[{std::string(endpoint), status}];
}

std::string Metrics::Prometheus(const std::optional<engine::GeneratorStatus>& status,
                                bool ready) const {
  PrometheusWriter writer;
  writer.Gauge("ready", "1 while generations are accepted.", ready ? 1 : 0);
  writer.Head("http_responses_total", "counter", "Answers begun, by endpoint and status.");
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, count] : responses_) {
      writer.Sample("http_responses_total",
                    fmt::format("endpoint=\"{}\",status=\"{}\"", key.first, key.second), count);
    }
  }
  writer.Counter("client_disconnects_total", "Clients that left before the end of their answer.",
                 num_disconnects_.load(std::memory_order_relaxed));
  writer.Head("replayed_turns_total", "counter",
              "Assistant turns sent back by clients, by whether their generated ids were known.");
  writer.Sample("replayed_turns_total", "known=\"yes\"",
                num_replays_.load(std::memory_order_relaxed));
  writer.Sample("replayed_turns_total", "known=\"no\"",
                num_replay_misses_.load(std::memory_order_relaxed));
  if (status) {
    WriteGenerations(*status, writer);
    WriteEngine(*status, writer);
  }
  std::string& out = writer.text();
  first_token_seconds.Write("first_token_seconds",
                            "Time from a request's arrival to its first token.", out);
  queue_seconds.Write("queue_seconds", "Time that generations waited.", out);
  token_seconds.Write("token_seconds", "Time between two tokens of one generation.", out);
  return std::move(out);
}

}  // namespace megalith::serve
