#pragma once

// A service with a scripted model behind it, for the tests of this folder.

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "serve/service.h"
#include "serve/testing/recording_exchange.h"
#include "serve/testing/scripted_generator.h"
#include "text/text_test_util.h"

namespace megalith::serve {

using nlohmann::json;
using testing::Recording;
using testing::Script;

using Ids = std::vector<text::TokenId>;

/// Ids from a spelling with literal markers.
inline Ids Spelled(const std::string& spelling) {
  return text::ValueOf(text::NanoTokenizer().EncodeWithSpecials(spelling));
}
/// Each byte a token of its own.
inline Ids ByteIds(const std::string& bytes) {
  Ids ids;
  for (const char byte : bytes) {
    const Ids one = text::ValueOf(text::NanoTokenizer().EncodeBytes(std::string(1, byte)));
    ids.insert(ids.end(), one.begin(), one.end());
  }
  return ids;
}

inline const std::string kEndThink = "<|close|>think<|sep|>";
inline const std::string kOpenResponse = "<|open|>response<|sep|>";
inline const std::string kEndResponse = "<|close|>response<|sep|>";
inline const std::string kEndMessage = "<|close|>message<|sep|><|end_of_msg|>";

/// A whole answer behind a thinking prompt.
inline std::string Answer(const std::string& reasoning, const std::string& content,
                          const std::string& tools = "") {
  return reasoning + kEndThink + kOpenResponse + content + kEndResponse + tools + kEndMessage;
}
inline std::string Argument(const std::string& key, const std::string& type,
                            const std::string& value) {
  return "<|open|>argument key=\"" + key + "\" type=\"" + type + "\"<|sep|>" + value +
         "<|close|>argument<|sep|>";
}
inline std::string Call(const std::string& name, const std::string& arguments) {
  return "<|open|>call tool=\"" + name + "\" index=\"1\"<|sep|>" + arguments +
         "<|close|>call<|sep|>";
}
inline std::string Tools(const std::string& calls) {
  return "<|open|>tools<|sep|>" + calls + "<|close|>tools<|sep|>";
}

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() { Restart({}); }

  /// Begins anew with these options and this context.
  void Restart(ServiceOptions options, std::int64_t max_positions = 4096) {
    Stop();
    generator_ = std::make_unique<testing::ScriptedGenerator>(max_positions);
    options.model = "nano";
    // A slow machine is silent at times; pings are for those who ask for them.
    if (options.ping_interval == ServiceOptions().ping_interval) {
      options.ping_interval = std::chrono::hours(1);
    }
    service_ = std::make_unique<Service>(std::move(options));
    const text::Tokenizer& tokenizer = text::NanoTokenizer();
    service_->SetModel({tokenizer,
                        {*tokenizer.special_tokens().Find("[EOS]"),
                         *tokenizer.special_tokens().Find("<|end_of_msg|>")},
                        generator_.get()});
  }
  ~ServiceTest() override { Stop(); }

  /// No generation may outlive the service.
  void Stop() {
    if (generator_ == nullptr) return;
    generator_->Resume();
    generator_->WaitIdle();
    service_.reset();
    generator_.reset();
  }

  std::shared_ptr<Recording> Send(http::Request request) {
    auto recording = std::make_shared<Recording>();
    service_->Handle(std::make_shared<testing::RecordingExchange>(std::move(request), recording));
    return recording;
  }
  std::shared_ptr<Recording> Post(const std::string& path, const std::string& body) {
    return Send(testing::MakeRequest("POST", path, body));
  }
  std::shared_ptr<Recording> Post(const std::string& path, const json& body) {
    return Post(path, body.dump());
  }

  /// The whole answer's body, with its status checked.
  json Ask(const std::string& path, const json& body, int status = 200) {
    return Read(Post(path, body), status);
  }
  json Get(const std::string& path, int status = 200) {
    return Read(Send(testing::MakeRequest("GET", path)), status);
  }
  static json Read(const std::shared_ptr<Recording>& recording, int status = 200) {
    recording->Wait();
    EXPECT_EQ(recording->response().status, status) << recording->body();
    EXPECT_FALSE(recording->is_stream());
    return json::parse(recording->body());
  }
  /// The events of a complete stream.
  static std::vector<testing::StreamEvent> ReadStream(const std::shared_ptr<Recording>& recording) {
    recording->Wait();
    EXPECT_TRUE(recording->complete());
    EXPECT_TRUE(recording->is_stream()) << recording->body();
    EXPECT_EQ(recording->response().content_type, "text/event-stream");
    return testing::ParseEvents(recording->body());
  }
  /// The same as JSON; the last one must be [DONE].
  static std::vector<json> ReadChunks(const std::shared_ptr<Recording>& recording) {
    std::vector<json> chunks;
    const auto events = ReadStream(recording);
    for (const auto& event : events) {
      if (event.data != "[DONE]") chunks.push_back(json::parse(event.data));
    }
    EXPECT_EQ(events.empty() ? "" : events.back().data, "[DONE]");
    EXPECT_EQ(chunks.size() + 1, events.size()) << "[DONE] once";
    return chunks;
  }

  /// A 400 (or `status`) whose error names this member.
  void ExpectRefused(const std::string& path, const json& body, const std::string& param,
                     const std::string& code = "invalid_value") {
    const json answer = Ask(path, body, 400);
    EXPECT_EQ(answer["error"]["param"], param) << answer << body;
    EXPECT_EQ(answer["error"]["code"], code) << answer << body;
  }

  std::unique_ptr<testing::ScriptedGenerator> generator_;
  std::unique_ptr<Service> service_;
};

/// A chat request with one question.
inline json Question(const json& more = json::object()) {
  json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(more);
  return body;
}

}  // namespace megalith::serve
