// Request bodies through the readers of every endpoint, and through the service itself: whatever
// comes in, one whole answer goes out, and no error of ours (500) among them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/service.h"
#include "text/base64.h"

namespace {

using namespace megalith;

void Require(bool condition) {
  if (!condition) std::abort();
}

// Rank = byte, the chat markers behind.
text::Tokenizer MakeTokenizer() {
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte) {
    ranks += text::EncodeBase64(std::string(1, static_cast<char>(byte))) + " " +
             std::to_string(byte) + "\n";
  }
  auto tokenizer = text::Tokenizer::FromFiles(
      ranks,
      R"({"added_tokens_decoder":{"256":{"content":"<|open|>"},"257":{"content":"<|close|>"},)"
      R"("258":{"content":"<|sep|>"},"259":{"content":"<|end_of_msg|>"},"260":{"content":"[EOS]"}}})");
  Require(tokenizer.has_value());
  return *std::move(tokenizer);
}

/// Answers each request within Submit: first bytes of the prompt, then the stop id. What it is
/// asked must be what an engine could run.
class EchoGenerator : public engine::Generator {
 public:
  std::int64_t max_positions() const override { return 20000; }

  Result<engine::GenerationId> Submit(
      engine::GenerationRequest request,
      std::shared_ptr<engine::GenerationListener> listener) override {
    Check(request);
    constexpr std::size_t kMaxTokens = 24;
    engine::GenerationSummary summary;
    summary.prompt = {request.prompt.size(), 0, request.prompt.size()};
    summary.finish_reason = engine::FinishReason::kLength;
    const auto limit = std::min<std::size_t>(static_cast<std::size_t>(request.max_tokens),
                                             std::min(kMaxTokens, request.prompt.size()));
    for (std::size_t i = 0; i < limit; ++i) {
      ++summary.generated_tokens;
      if (!listener->OnToken(
              Describe(request, request.prompt[request.prompt.size() - limit + i]))) {
        summary.finish_reason = engine::FinishReason::kStop;
        break;
      }
    }
    listener->OnFinish(summary);
    return ++num_requests_;
  }
  void Cancel(engine::GenerationId) override { std::abort(); }
  engine::GeneratorStatus GetStatus() const override { return {}; }

 private:
  void Check(const engine::GenerationRequest& request) const {
    Require(!request.prompt.empty());
    Require(static_cast<std::int64_t>(request.prompt.size()) < max_positions());
    Require(request.max_tokens >= 1);
    Require(kernels::CheckSampling(request.sampling).has_value());
    Require(request.logits.repetition_penalty > 0.0f);
    for (const std::int32_t id : request.prompt) Require(id >= 0 && id < 512);
    std::int32_t last = -1;
    for (const auto& [id, bias] : request.logits.bias) {
      Require(id >= 0 && id < 512 && (id != last) && bias == bias);
      last = id;
    }
    std::size_t end = 0;
    for (const std::size_t boundary : request.boundaries) {
      Require(boundary > end && boundary <= request.prompt.size());
      end = boundary;
    }
  }

  static engine::GeneratedToken Describe(const engine::GenerationRequest& request,
                                         std::int32_t id) {
    engine::GeneratedToken token;
    token.token = id;
    if (request.num_logprobs) token.logprob = -1.0f;
    return token;
  }

  engine::GenerationId num_requests_ = 0;
};

/// Demands one whole answer in valid JSON.
class CheckingExchange : public serve::http::Exchange {
 public:
  CheckingExchange(std::string path, std::string body) {
    request_.id = "1";
    request_.method = "POST";
    request_.path = std::move(path);
    request_.body = std::move(body);
  }
  ~CheckingExchange() override { Require(complete_); }

  const serve::http::Request& request() const override { return request_; }
  void Respond(serve::http::Response response) override {
    Require(!begun_ && !complete_);
    Require(response.status == 200 || response.status == 400 || response.status == 404);
    Require(text::ParseJson(response.body).has_value());
    complete_ = true;
  }
  void BeginStream(serve::http::Response head) override {
    Require(!begun_ && !complete_ && head.status == 200);
    begun_ = true;
  }
  bool Write(std::string piece) override {
    Require(begun_ && !complete_ && piece.ends_with("\n\n"));
    const std::size_t data = piece.find("data: ");
    if (data == std::string::npos || piece == "data: [DONE]\n\n") return true;
    Require(text::ParseJson(std::string_view(piece).substr(data + 6)).has_value());
    return true;
  }
  void EndStream() override {
    Require(begun_ && !complete_);
    complete_ = true;
  }
  void OnDisconnect(std::function<void()>) override {}

 private:
  serve::http::Request request_;
  bool begun_ = false;
  bool complete_ = false;
};

struct Server {
  EchoGenerator generator;
  serve::Service service{{.accept_any_model = true}};

  Server() {
    const text::Tokenizer tokenizer = MakeTokenizer();
    service.SetModel({tokenizer, {259, 260}, &generator});
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static constexpr std::string_view kPaths[] = {
      "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens",
      "/v1/responses",        "/tokenize",       "/detokenize",  "/apply-template"};
  static Server server;
  if (size == 0) return 0;
  const std::string_view path = kPaths[data[0] % std::size(kPaths)];
  server.service.Handle(std::make_shared<CheckingExchange>(
      std::string(path), std::string(reinterpret_cast<const char*>(data) + 1, size - 1)));
  return 0;
}
