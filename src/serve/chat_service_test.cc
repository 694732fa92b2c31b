// POST /v1/chat/completions.
#include <cmath>
#include <set>

#include "serve/testing/service_test_util.h"
#include "text/chat_render.h"
#include "text/stream_decoder.h"
#include "text/utf8.h"

namespace megalith::serve {
namespace {

constexpr char kPath[] = "/v1/chat/completions";

/// What a client has put together from a stream's chunks, for each choice.
struct Joined {
  std::string role;
  std::string content;
  std::string reasoning;
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
    bool incomplete = false;
  };
  std::map<int, Call> calls;
  std::vector<std::string> finish_reasons;
  json logprobs = json::array();
};

std::map<int, Joined> Join(const std::vector<json>& chunks) {
  std::map<int, Joined> joined;
  for (const json& chunk : chunks) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], chunks.front()["id"]);
    for (const json& choice : chunk["choices"]) {
      Joined& one = joined[choice["index"].get<int>()];
      EXPECT_TRUE(one.finish_reasons.empty()) << "said something after its end";
      const json& delta = choice["delta"];
      if (delta.contains("role")) one.role += delta["role"];
      if (delta.contains("content")) one.content += delta["content"];
      if (delta.contains("reasoning_content")) one.reasoning += delta["reasoning_content"];
      for (const json& call : delta.value("tool_calls", json::array())) {
        Joined::Call& known = one.calls[call["index"].get<int>()];
        if (call.contains("id")) known.id += call["id"];
        if (call.contains("incomplete")) known.incomplete = true;
        if (!call.contains("function")) continue;
        known.name += call["function"].value("name", "");
        known.arguments += call["function"].value("arguments", "");
      }
      if (choice["logprobs"].is_object()) {
        for (const json& entry : choice["logprobs"]["content"]) one.logprobs.push_back(entry);
      }
      if (!choice["finish_reason"].is_null()) one.finish_reasons.push_back(choice["finish_reason"]);
    }
  }
  return joined;
}

/// A stream's join must be the whole answer.
void ExpectSame(const Joined& joined, const json& choice) {
  const json& message = choice["message"];
  EXPECT_EQ(joined.role, "assistant");
  EXPECT_EQ(joined.content, message["content"].is_null() ? "" : message["content"]);
  EXPECT_EQ(joined.reasoning, message.value("reasoning_content", ""));
  std::vector<Joined::Call> calls;
  for (const auto& [idx, call] : joined.calls) {
    if (!call.incomplete) calls.push_back(call);
  }
  const json whole = message.value("tool_calls", json::array());
  ASSERT_EQ(calls.size(), whole.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].name, whole[i]["function"]["name"]);
    EXPECT_EQ(calls[i].arguments, whole[i]["function"]["arguments"]);
  }
  EXPECT_EQ(joined.finish_reasons, std::vector<std::string>{choice["finish_reason"]});
}

class ChatServiceTest : public ServiceTest {
 protected:
  json AskFor(const std::string& spelling, const json& more = json::object()) {
    generator_->Play(Spelled(spelling));
    return Ask(kPath, Question(more));
  }
};

TEST_F(ChatServiceTest, AnswerHasReasoningContentUsageAndTimings) {
  generator_->Play(std::vector<Script>{{Spelled(Answer("hm", "hello there")), 5}});
  const json answer = Ask(kPath, Question());
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["model"], "nano");
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("chatcmpl-"));
  const json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["reasoning_content"], "hm");
  EXPECT_EQ(choice["message"]["content"], "hello there");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_FALSE(answer.contains("warnings"));

  const json& usage = answer["usage"];
  const auto num_prompt = static_cast<int>(generator_->request(0).prompt.size());
  EXPECT_EQ(usage["prompt_tokens"], num_prompt);
  // The message is closed: the stop id itself is not waited for.
  EXPECT_EQ(usage["completion_tokens"], Spelled(Answer("hm", "hello there")).size() - 1);
  EXPECT_EQ(usage["total_tokens"], num_prompt + usage["completion_tokens"].get<int>());
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 5);
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], Spelled("hm").size());
  EXPECT_EQ(answer["timings"]["queue_seconds"], 0.25);
  EXPECT_EQ(answer["timings"]["drafted_tokens"], 7);
  EXPECT_EQ(answer["timings"]["accepted_tokens"], 3);
  const json& drafting = answer["timings"]["drafting"];
  EXPECT_EQ(drafting["rounds"], 4);
  EXPECT_EQ(drafting["accepted_by_position"], json({2, 1}));
  EXPECT_EQ(drafting["rounds_by_drafts"], json({0, 1, 3}));
  EXPECT_EQ(drafting["last_decision"], "drafts pay");
  EXPECT_EQ(answer["timings"]["prompt_tokens_per_second"], (num_prompt - 5) / 0.5);
}

TEST_F(ChatServiceTest, PromptIsTheRenderedConversationWithBoundaries) {
  AskFor(Answer("", "ok"));
  const text::RenderedChat chat =
      text::ValueOf(text::RenderChat(text::NanoTokenizer(), {text::Message::User("hi")}));
  EXPECT_EQ(generator_->request(0).prompt, chat.ids);
  EXPECT_EQ(generator_->request(0).boundaries, chat.boundaries);
  EXPECT_TRUE(generator_->request(0).use_prefix_cache);
}

TEST_F(ChatServiceTest, SamplingFieldsReachTheGenerator) {
  AskFor(Answer("", "ok"), {{"temperature", 0.5},
                            {"top_p", 0.25},
                            {"top_k", 7},
                            {"min_p", 0.125},
                            {"seed", -3},
                            {"presence_penalty", 1.5},
                            {"frequency_penalty", -1.5},
                            {"repetition_penalty", 1.25},
                            {"max_completion_tokens", 77},
                            {"max_tokens", 11},
                            {"logit_bias", {{"5", 2}, {"05", 3}, {"9", -100}}},
                            {"cache_prompt", false}});
  const engine::GenerationRequest request = generator_->request(0);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_p, 0.25f);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.min_p, 0.125f);
  EXPECT_EQ(request.sampling.seed, static_cast<std::uint64_t>(-3));
  EXPECT_EQ(request.logits.presence_penalty, 1.5f);
  EXPECT_EQ(request.logits.frequency_penalty, -1.5f);
  EXPECT_EQ(request.logits.repetition_penalty, 1.25f);
  EXPECT_EQ(request.max_tokens, 77);
  EXPECT_FALSE(request.use_prefix_cache);
  ASSERT_EQ(request.logits.bias.size(), 2u);
  EXPECT_EQ(request.logits.bias[0].first, 5);
  EXPECT_EQ(request.logits.bias[1], (std::pair<std::int32_t, float>(9, -INFINITY)));
}

TEST_F(ChatServiceTest, DefaultsAreTheModelMakersAndDependOnTools) {
  AskFor(Answer("", "ok"));
  const json tools = json::parse(R"([{"type":"function","function":{"name":"f"}}])");
  AskFor(Answer("", "ok"), {{"tools", tools}});
  AskFor(Answer("", "ok"));
  const auto requests = generator_->requests();
  EXPECT_EQ(requests[0].sampling.temperature, 1.0f);
  EXPECT_EQ(requests[0].sampling.top_p, 0.95f);
  EXPECT_EQ(requests[1].sampling.top_p, 1.0f);
  EXPECT_EQ(requests[0].max_tokens, 4096 - static_cast<int>(requests[0].prompt.size()));
  EXPECT_EQ(requests[0].stop_ids.size(), 2u);
  EXPECT_NE(requests[0].sampling.seed, requests[2].sampling.seed);
}

TEST_F(ChatServiceTest, ExtremeButLegalSamplingReachesTheGenerator) {
  AskFor(Answer("", "ok"), {{"temperature", 0}, {"top_p", 0}, {"top_k", -1}, {"min_p", 1}});
  AskFor(Answer("", "ok"), {{"temperature", 1e-30}, {"top_p", 1e-300}, {"seed", 7}});
  const auto requests = generator_->requests();
  for (const auto& request : requests) EXPECT_TRUE(kernels::CheckSampling(request.sampling));
  EXPECT_EQ(requests[0].sampling.temperature, 0.0f);
  EXPECT_EQ(requests[0].sampling.top_k, 0);
  EXPECT_EQ(requests[1].sampling.temperature, 1e-30f);
  EXPECT_EQ(requests[1].sampling.seed, 7u);
}

TEST_F(ChatServiceTest, WrongValuesAreRefusedByName) {
  const json wrong_for_all = {json::array({1}), json::object({{"a", 1}})};
  const auto expect_each = [&](const std::string& field, const std::vector<json>& values) {
    for (const json& value : values) ExpectRefused(kPath, Question({{field, value}}), field);
    for (const json& value : wrong_for_all) {
      const json answer = Ask(kPath, Question({{field, value}}), 400);
      EXPECT_TRUE(answer["error"]["param"].get<std::string>().starts_with(field)) << answer;
    }
  };
  for (const char* field : {"temperature", "top_p", "min_p", "presence_penalty",
                            "frequency_penalty", "repetition_penalty"}) {
    expect_each(field, {"0.5", true, "", 1000, -1000});
  }
  expect_each("top_k", {1.5, "1", -2, 1e20, true});
  expect_each("seed", {1.5, "1", 1e30, false});
  expect_each("n", {0, -1, 1e9, 1000000000, "2", 1.5});
  expect_each("max_tokens", {0, -5, "7", 1.5, true});
  expect_each("max_completion_tokens", {0, -5, "7", 1.5});
  expect_each("stream", {0, "true", 1});
  expect_each("logprobs", {1, "true"});
  expect_each("top_logprobs", {-1, 21, true, "3"});
  expect_each("model", {1, true});
  expect_each("ignore_eos", {1, "no"});
  expect_each("parallel_tool_calls", {1, "no"});
  expect_each("return_progress", {1, "no"});
  expect_each("reasoning_effort", {"much", 1});
  expect_each("cache_prompt", {1});
  expect_each("tool_choice", {"some", 1, true});
  ExpectRefused(kPath, Question({{"stop", 1}}), "stop");
  ExpectRefused(kPath, Question({{"stop", ""}}), "stop");
  ExpectRefused(kPath, Question({{"stop", {"a", 1}}}), "stop[1]");
  ExpectRefused(kPath, Question({{"stop", json::parse("[[[]]]")}}), "stop[0]");
  ExpectRefused(kPath, Question({{"stop", std::vector<std::string>(65, "x")}}), "stop");
  ExpectRefused(kPath, Question({{"logit_bias", {{"x", 1}}}}), "logit_bias");
  ExpectRefused(kPath, Question({{"logit_bias", {{"4096", 1}}}}), "logit_bias");
  ExpectRefused(kPath, Question({{"logit_bias", {{"-1", 1}}}}), "logit_bias");
  ExpectRefused(kPath, Question({{"logit_bias", {{"1", 101}}}}), "logit_bias.1");
  ExpectRefused(kPath, Question({{"logit_bias", json::array()}}), "logit_bias");
  ExpectRefused(kPath, Question({{"tools", "f"}}), "tools");
  ExpectRefused(kPath, Question({{"thinking", 1}}), "thinking");
  ExpectRefused(kPath, Question({{"thinking", {{"type", "x"}}}}), "thinking.type");
  ExpectRefused(kPath, Question({{"chat_template_kwargs", 1}}), "chat_template_kwargs");
  ExpectRefused(kPath, Question({{"chat_template_kwargs", {{"x", 1}}}}), "chat_template_kwargs.x");
  ExpectRefused(kPath, Question({{"stream_options", {{"include_usage", true}}}}), "stream_options");
  ExpectRefused(kPath, Question({{"stream", true}, {"stream_options", {{"x", true}}}}),
                "stream_options.x");
  ExpectRefused(kPath, Question({{"top_logprobs", 2}}), "top_logprobs");
  EXPECT_TRUE(generator_->requests().empty());
}

TEST_F(ChatServiceTest, NumbersThatAreNoNumbersAreRefused) {
  for (const char* field : {"temperature", "top_p", "min_p"}) {
    for (const char* number : {"NaN", "Infinity", "1e999", "-1e999"}) {
      const auto recording =
          Post(kPath, fmt::format(R"({{"messages":[{{"role":"user","content":"x"}}],"{}":{}}})",
                                  field, number));
      EXPECT_EQ(Read(recording, 400)["error"]["type"], "invalid_request_error");
    }
  }
}

TEST_F(ChatServiceTest, MessagesAreNamedByTheirPlace) {
  const auto messages = [](const json& list) { return json{{"messages", list}}; };
  const json user = {{"role", "user"}, {"content", "x"}};
  ExpectRefused(kPath, json::object(), "messages");
  ExpectRefused(kPath, messages(json::array()), "messages");
  ExpectRefused(kPath, messages("hi"), "messages");
  ExpectRefused(kPath, messages({"hi"}), "messages[0]");
  ExpectRefused(kPath, messages({user, 1}), "messages[1]");
  ExpectRefused(kPath, messages({user, {{"role", "narrator"}, {"content", ""}}}),
                "messages[1].role");
  ExpectRefused(kPath, messages({user, {{"role", "user"}, {"content", 1}}}), "messages[1].content");
  ExpectRefused(kPath, messages({user, {{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}),
                "messages[1].content[0].type", "unsupported");
  EXPECT_TRUE(generator_->requests().empty());
}

TEST_F(ChatServiceTest, UnknownFieldIsRefusedIgnoredFieldIsReported) {
  ExpectRefused(kPath, Question({{"temprature", 1}}), "temprature", "unknown_parameter");
  ExpectRefused(kPath, Question({{"functions", json::array()}}), "functions", "unsupported");
  ExpectRefused(kPath, Question({{"modalities", {"audio"}}}), "modalities", "unsupported");
  const json answer =
      AskFor(Answer("", "ok"),
             {{"user", "me"}, {"store", true}, {"unknown", nullptr}, {"modalities", {"text"}}});
  ASSERT_EQ(answer["warnings"].size(), 2u);
  EXPECT_TRUE(answer["warnings"][0].get<std::string>().starts_with("store: ignored"));

  ServiceOptions options;
  options.accept_unknown_fields = true;
  Restart(options);
  EXPECT_EQ(AskFor(Answer("", "ok"), {{"temprature", 1}})["warnings"][0],
            "temprature: ignored: unknown");
  const auto chunks =
      ReadChunks(Post(kPath, Question({{"stream", true}, {"temprature", 1}, {"n", 2}})));
  EXPECT_EQ(chunks[0]["warnings"].size(), 1u);
  EXPECT_FALSE(chunks[1].contains("warnings"));
}

TEST_F(ChatServiceTest, ModelNames) {
  ServiceOptions options;
  options.aliases = {"k3"};
  Restart(options);
  for (const char* name : {"nano", "k3"}) {
    EXPECT_EQ(AskFor(Answer("", "ok"), {{"model", name}})["model"], "nano");
  }
  const json refused = Ask(kPath, Question({{"model", "gpt"}}), 404);
  EXPECT_EQ(refused["error"]["code"], "model_not_found");
  EXPECT_EQ(refused["error"]["param"], "model");
  options.accept_any_model = true;
  Restart(options);
  AskFor(Answer("", "ok"), {{"model", "gpt"}});
}

TEST_F(ChatServiceTest, PromptBeyondTheContextNamesBothNumbers) {
  const auto num_prompt = static_cast<std::int64_t>(
      text::ValueOf(text::RenderChat(text::NanoTokenizer(), {text::Message::User("hi")}))
          .ids.size());
  for (const std::int64_t room : {-4000, -1, 0}) {
    Restart({}, std::max<std::int64_t>(num_prompt + room, 1));
    const json error = Ask(kPath, Question({{"max_tokens", 1}}), 400)["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_EQ(error["prompt_tokens"], num_prompt);
    EXPECT_EQ(error["max_context_tokens"], std::max<std::int64_t>(num_prompt + room, 1));
  }
  Restart({}, num_prompt + 1);
  const json answer = AskFor("abc", {{"max_tokens", 1000}});
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 1);
}

TEST_F(ChatServiceTest, StreamBeginsWithTheRoleAndEndsOnce) {
  generator_->Play(Spelled(Answer("hm", "hello there")));
  const auto chunks = ReadChunks(Post(kPath, Question({{"stream", true}})));
  EXPECT_EQ(chunks[0]["choices"][0]["delta"], (json{{"role", "assistant"}, {"content", ""}}));
  const auto joined = Join(chunks);
  ASSERT_EQ(joined.size(), 1u);
  ExpectSame(joined.at(0), Ask(kPath, Question())["choices"][0]);
  for (const json& chunk : chunks) {
    EXPECT_FALSE(chunk.contains("usage"));
    EXPECT_EQ(chunk["choices"].size(), 1u);
    EXPECT_EQ(chunk.contains("timings"), &chunk == &chunks.back());
  }
}

TEST_F(ChatServiceTest, UsageChunkComesOnlyWhenAskedFor) {
  generator_->Play(std::vector<Script>{{Spelled(Answer("hm", "x")), 3}});
  for (const json& options : {json(nullptr), json{{"include_usage", false}}}) {
    for (const json& chunk :
         ReadChunks(Post(kPath, Question({{"stream", true}, {"stream_options", options}})))) {
      EXPECT_FALSE(chunk.contains("usage"));
    }
  }
  const auto chunks = ReadChunks(
      Post(kPath, Question({{"stream", true}, {"stream_options", {{"include_usage", true}}}})));
  for (std::size_t i = 0; i + 1 < chunks.size(); ++i) {
    EXPECT_TRUE(chunks[i]["usage"].is_null());
    EXPECT_EQ(chunks[i]["choices"].size(), 1u);
  }
  EXPECT_TRUE(chunks.back()["choices"].empty());
  EXPECT_EQ(chunks.back()["usage"], Ask(kPath, Question())["usage"]);
}

TEST_F(ChatServiceTest, HeadersAndRoleComeBeforeTheFirstToken) {
  generator_->Pause();
  const auto recording = Post(kPath, Question({{"stream", true}}));
  recording->WaitForPieces(1);
  EXPECT_TRUE(recording->is_stream());
  EXPECT_EQ(recording->response().status, 200);
  EXPECT_NE(recording->body().find("\"role\":\"assistant\""), std::string::npos);
  generator_->Play(Spelled(Answer("", "x")));
  generator_->Resume();
  ReadChunks(recording);
}

TEST_F(ChatServiceTest, QuietStreamIsPinged) {
  ServiceOptions options;
  options.ping_interval = std::chrono::milliseconds(2);
  Restart(options);
  generator_->Pause();
  generator_->Play(Spelled(Answer("", "x")));
  const auto recording = Post(kPath, Question({{"stream", true}}));
  recording->WaitForPieces(4);
  generator_->Resume();
  ReadChunks(recording);
  const auto pieces = recording->pieces();
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(pieces[i], ": ping\n\n");
}

TEST_F(ChatServiceTest, ProgressOfThePromptIsStreamedWhenAskedFor) {
  generator_->Play(std::vector<Script>{{Spelled(Answer("", "x")), 8}});
  const auto chunks =
      ReadChunks(Post(kPath, Question({{"stream", true}, {"return_progress", true}})));
  std::vector<int> processed;
  for (const json& chunk : chunks) {
    if (!chunk.contains("prompt_progress")) continue;
    EXPECT_TRUE(chunk["choices"].empty());
    EXPECT_EQ(chunk["prompt_progress"]["total"], generator_->request(0).prompt.size());
    EXPECT_EQ(chunk["prompt_progress"]["cached"], 8);
    processed.push_back(chunk["prompt_progress"]["processed"]);
  }
  ASSERT_GT(processed.size(), 2u);
  EXPECT_EQ(processed.front(), 8);
  EXPECT_EQ(processed[1], 16);
  EXPECT_EQ(processed.back(), generator_->request(0).prompt.size());
  ExpectRefused(kPath, Question({{"return_progress", true}}), "return_progress");
}

TEST_F(ChatServiceTest, UnfinishedReasoningIsReasoning) {
  for (const bool thinking : {true, false}) {
    generator_->Play(Spelled("words words words words words words words words words words"));
    const json more = {{"max_tokens", 6},
                       {"thinking", {{"type", thinking ? "enabled" : "disabled"}}}};
    const json answer = Ask(kPath, Question(more));
    const json& choice = answer["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(choice["message"]["content"].get<std::string>().empty(), thinking);
    EXPECT_EQ(choice["message"].contains("reasoning_content"), thinking);
    EXPECT_EQ(answer["usage"]["completion_tokens"], 6);
    EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], thinking ? 6 : 0);
    json stream = more;
    stream["stream"] = true;
    ExpectSame(Join(ReadChunks(Post(kPath, Question(stream)))).at(0), choice);
  }
}

TEST_F(ChatServiceTest, ShortenedCloseOfThinkingIsUnderstood) {
  const std::string spelling =
      "reason<|close|>think" + kOpenResponse + "answer" + kEndResponse + kEndMessage;
  const json message = AskFor(spelling)["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "reason");
  EXPECT_EQ(message["content"], "answer");
}

TEST_F(ChatServiceTest, AnswersKeepEveryLastCharacter) {
  for (const char* ending : {"\"", "\u201d", "'", "\\", "}", ">", "\n", " ", "  \n"}) {
    const std::string content = std::string("said ") + ending;
    EXPECT_EQ(AskFor(Answer("", content))["choices"][0]["message"]["content"], content);
  }
}

TEST_F(ChatServiceTest, StopStringEndsTheAnswerOverTokensOnly) {
  generator_->Play(Spelled("STOP is thought" + kEndThink + kOpenResponse + "one two STOP three" +
                           kEndResponse + kEndMessage));
  for (const json& stop : {json("STOP"), json{"zzz", "STOP"}}) {
    const json answer = Ask(kPath, Question({{"stop", stop}}));
    EXPECT_EQ(answer["choices"][0]["message"]["content"], "one two ");
    EXPECT_EQ(answer["choices"][0]["message"]["reasoning_content"], "STOP is thought");
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
    ExpectSame(Join(ReadChunks(Post(kPath, Question({{"stop", stop}, {"stream", true}})))).at(0),
               answer["choices"][0]);
  }
  EXPECT_TRUE(generator_->cancels().empty());
  // The stop string is completed by the last token that is allowed.
  generator_->Play(ByteIds("ab.cd."));
  const json answer = Ask(
      kPath, Question({{"stop", "cd."}, {"max_tokens", 6}, {"thinking", {{"type", "disabled"}}}}));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "ab.");
}

TEST_F(ChatServiceTest, IgnoreEosForbidsTheStopIds) {
  // Behind the closed message the model has nothing to say, but it has to.
  const json answer =
      AskFor(kEndThink + kOpenResponse + "x" + kEndResponse + "<|close|>message<|sep|>",
             {{"ignore_eos", true}, {"max_tokens", 50}});
  EXPECT_EQ(answer["usage"]["completion_tokens"], 50);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  const engine::GenerationRequest request = generator_->request(0);
  EXPECT_TRUE(request.stop_ids.empty());
  ASSERT_EQ(request.logits.bias.size(), 2u);
  EXPECT_EQ(request.logits.bias[0].second, -INFINITY);
}

TEST_F(ChatServiceTest, ChoicesAreMixedInOneStream) {
  const std::vector<Script> scripts = {
      {Spelled(Answer("a", "first"))}, {Spelled(Answer("b", "second answer"))}, {Spelled("third")}};
  generator_->Play(scripts);
  const json answer = Ask(kPath, Question({{"n", 3}, {"max_tokens", 40}, {"seed", 9}}));
  EXPECT_EQ(answer["timings"]["drafting"]["rounds"], 12);
  EXPECT_EQ(answer["timings"]["drafting"]["accepted_by_position"], json({6, 3}));
  ASSERT_EQ(answer["choices"].size(), 3u);
  EXPECT_EQ(answer["choices"][1]["message"]["content"], "second answer");
  const auto requests = generator_->requests();
  EXPECT_EQ(requests[0].sampling.seed, 9u);
  EXPECT_NE(requests[1].sampling.seed, requests[2].sampling.seed);
  EXPECT_EQ(requests[0].prompt, requests[2].prompt);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], requests[0].prompt.size());

  generator_->Play(scripts);
  const auto joined = Join(ReadChunks(
      Post(kPath, Question({{"n", 3}, {"max_tokens", 40}, {"seed", 9}, {"stream", true}}))));
  ASSERT_EQ(joined.size(), 3u);
  for (int i = 0; i < 3; ++i)
    ExpectSame(joined.at(i), answer["choices"][static_cast<std::size_t>(i)]);
}

TEST_F(ChatServiceTest, LogprobsAreFiniteAndHaveBytes) {
  generator_->Play(Spelled(Answer("hm", "h\u00e9!")));
  const json answer = Ask(kPath, Question({{"logprobs", true}, {"top_logprobs", 3}}));
  const json& content = answer["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(generator_->request(0).num_logprobs, 3);
  std::string joined;
  for (const json& entry : content) {
    EXPECT_EQ(entry["logprob"], -0.5);
    ASSERT_EQ(entry["top_logprobs"].size(), 3u);
    EXPECT_EQ(entry["top_logprobs"][0]["token"], entry["token"]);
    EXPECT_EQ(entry["top_logprobs"][2]["logprob"], -9999.0);
    for (const int byte : entry["bytes"]) joined.push_back(static_cast<char>(byte));
  }
  EXPECT_EQ(joined, "h\u00e9!");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["reasoning_content"].size(), Spelled("hm").size());

  const auto stream = Join(ReadChunks(
      Post(kPath, Question({{"logprobs", true}, {"top_logprobs", 3}, {"stream", true}}))));
  EXPECT_EQ(stream.at(0).logprobs, content);
  const json plain = Ask(kPath, Question({{"logprobs", true}}));
  EXPECT_EQ(generator_->request(2).num_logprobs, 0);
  EXPECT_TRUE(plain["choices"][0]["logprobs"]["content"][0]["top_logprobs"].empty());
  EXPECT_FALSE(generator_->request(2).prompt_logprobs);
}

const std::string kWeatherCalls = Tools(
    Call("weather", Argument("city", "string", "S\u00e3o \"Paulo\"\n\\") +
                        Argument("days", "number", "3") + Argument("exact", "number", "1.5e3") +
                        Argument("metric", "boolean", "true") + Argument("extra", "null", "null") +
                        Argument("tags", "array", "[\"a\", 1]") +
                        Argument("where", "object", "{\"x\": {\"y\": []}}") +
                        Argument("broken", "number", "3x")) +
    Call("clock", ""));
const json kTools = json::parse(
    R"([{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}},
        {"type":"function","function":{"name":"clock"}}])");

TEST_F(ChatServiceTest, ToolCallsHaveTypedArgumentsAndUniqueIds) {
  generator_->Play(Spelled(Answer("use tools", "", kWeatherCalls)));
  const json answer = Ask(kPath, Question({{"tools", kTools}}));
  const json& choice = answer["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  const json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(json::parse(calls[0]["function"]["arguments"].get<std::string>()),
            json::parse(R"({"city":"São \"Paulo\"\n\\","days":3,"exact":1.5e3,"metric":true,
              "extra":null,"tags":["a",1],"where":{"x":{"y":[]}},"broken":"3x"})"));
  EXPECT_EQ(calls[1]["function"]["arguments"], "{}");
  const json again = Ask(kPath, Question({{"tools", kTools}}))["choices"][0];
  std::set<std::string> ids;
  for (const json& list : {calls, again["message"]["tool_calls"]}) {
    for (const json& call : list) ids.insert(call["id"].get<std::string>());
  }
  EXPECT_EQ(ids.size(), 4u);

  const auto chunks = ReadChunks(Post(kPath, Question({{"tools", kTools}, {"stream", true}})));
  ExpectSame(Join(chunks).at(0), choice);
}

TEST_F(ChatServiceTest, LongArgumentIsStreamedInManyPieces) {
  Restart({}, 1 << 20);
  std::string text;
  while (text.size() < 5000) text += "line \"quoted\" \\ \n\t\x01 \u00e9\U0001F600";
  generator_->Play(Spelled(Answer("", "", Tools(Call("write", Argument("text", "string", text))))));
  const auto chunks = ReadChunks(
      Post(kPath, Question({{"tools", kTools}, {"stream", true}, {"max_tokens", 100000}})));
  EXPECT_GT(chunks.size(), 100u);
  const auto joined = Join(chunks);
  EXPECT_EQ(json::parse(joined.at(0).calls.at(0).arguments)["text"], text);
}

TEST_F(ChatServiceTest, WithoutParallelCallsTheFirstOneEndsTheAnswer) {
  const std::string spelling = Answer("", "", Tools(Call("a", "") + Call("b", "")));
  generator_->Play(Spelled(spelling));
  generator_->Pause();
  const auto recording = Post(kPath, Question({{"tools", kTools}, {"parallel_tool_calls", false}}));
  generator_->Resume();
  const json choice = Read(recording)["choices"][0];
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "a");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_LT(generator_->num_tokens(), Spelled(spelling).size());
}

TEST_F(ChatServiceTest, TruncatedCallIsNoCall) {
  const std::string spelling =
      "<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>" +
      Argument("a", "string", "x") + "<|open|>argument key=\"b\" type=\"string\"<|sep|>cut here";
  generator_->Play(Spelled(spelling));
  const json more = {{"max_tokens", Spelled(spelling).size()}};
  const json choice = Ask(kPath, Question(more))["choices"][0];
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "length");
  json stream = more;
  stream["stream"] = true;
  const auto joined = Join(ReadChunks(Post(kPath, Question(stream))));
  ASSERT_EQ(joined.at(0).calls.size(), 1u);
  EXPECT_TRUE(joined.at(0).calls.at(0).incomplete);
  ExpectSame(joined.at(0), choice);
}

TEST_F(ChatServiceTest, LimitIsToldThoughACallIsWhole) {
  const std::string whole =
      "<|close|>think<|sep|><|open|>tools<|sep|>" + Call("f", Argument("a", "string", "x"));
  for (const std::string& rest : {std::string(), std::string("<|open|>call tool=\"g\"")}) {
    const std::string spelling = whole + rest;
    generator_->Play(Spelled(spelling));
    json more = {{"max_tokens", Spelled(spelling).size()}};
    const json choice = Ask(kPath, Question(more))["choices"][0];
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "f");
    EXPECT_EQ(choice["finish_reason"], "length");
    more["stream"] = true;
    ExpectSame(Join(ReadChunks(Post(kPath, Question(more)))).at(0), choice);
  }
}

TEST_F(ChatServiceTest, CharactersOverTokensArriveWhole) {
  const std::string family = "\U0001F468\u200D\U0001F469\u200D\U0001F467 ok";
  Ids ids = Spelled(kEndThink + kOpenResponse);
  const Ids bytes = ByteIds(family);
  ids.insert(ids.end(), bytes.begin(), bytes.end());
  Ids cut = ids;
  const Ids half = ByteIds("\xF0\x9F");
  cut.insert(cut.end(), half.begin(), half.end());
  for (const Ids& script : {ids, cut}) {
    generator_->Play(script);
    const json more = {{"max_tokens", script.size()}};
    const json choice = Ask(kPath, Question(more))["choices"][0];
    EXPECT_EQ(choice["message"]["content"],
              script.size() == ids.size() ? family : family + "\uFFFD");
    json stream = more;
    stream["stream"] = true;
    ExpectSame(Join(ReadChunks(Post(kPath, Question(stream)))).at(0), choice);
  }
}

TEST_F(ChatServiceTest, InvalidBytesAreReplacedEverywhere) {
  for (const char* bytes : {"\xFF", "\xC0\x80", "\x80", "\xE0\x80\x80", "\xED\xA0\x80"}) {
    Ids ids = ByteIds(bytes);
    const auto add = [&ids](const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); };
    add(Spelled(kEndThink + kOpenResponse));
    add(ByteIds(bytes));
    add(Spelled(kEndResponse + "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>"
                               "<|open|>argument key=\"k\" type=\"string\"<|sep|>"));
    add(ByteIds(bytes));
    add(Spelled("<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>" + kEndMessage));
    generator_->Play(ids);
    const json more = {{"logprobs", true}, {"top_logprobs", 2}};
    const json choice = Ask(kPath, Question(more))["choices"][0];
    EXPECT_NE(choice["message"]["content"].get<std::string>().find("\uFFFD"), std::string::npos);
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    json stream = more;
    stream["stream"] = true;
    ExpectSame(Join(ReadChunks(Post(kPath, Question(stream)))).at(0), choice);
  }
}

// Any ids at all: markers, bytes, words in any order, cut anywhere.
TEST_F(ChatServiceTest, StreamJoinsToTheWholeAnswerForRandomIds) {
  text::TestRandom random(11);
  const std::vector<std::string> spellings = {"<|open|>",
                                              "<|close|>",
                                              "<|sep|>",
                                              "<|open|>think<|sep|>",
                                              kEndThink,
                                              kOpenResponse,
                                              kEndResponse,
                                              "<|open|>tools<|sep|>",
                                              "<|close|>tools<|sep|>",
                                              "<|close|>call<|sep|>",
                                              "<|open|>call tool=\"f\" index=\"1\"<|sep|>",
                                              Argument("k", "number", "1"),
                                              "<|open|>argument key=\"s\" type=\"string\"<|sep|>",
                                              "<|close|>argument<|sep|>",
                                              "<|open|>json type=\"object\"<|sep|>",
                                              "[EOS]",
                                              "<|close|>message<|sep|>",
                                              "words",
                                              "STOP"};
  for (int round = 0; round < 150; ++round) {
    Ids ids;
    for (std::size_t parts = random.Below(30); parts > 0; --parts) {
      const Ids part = random.Below(3) == 0 ? ByteIds(text::RandomBytes(random, random.Below(6)))
                                            : Spelled(random.Pick(spellings));
      ids.insert(ids.end(), part.begin(), part.end());
    }
    generator_->Play(ids);
    const json more = {{"max_tokens", 1 + random.Below(ids.size() + 2)},
                       {"stop", {"STOP", "wordsw"}},
                       {"parallel_tool_calls", random.Below(4) > 0},
                       {"logprobs", random.Below(2) == 0}};
    const json answer = Ask(kPath, Question(more));
    json stream = more;
    stream["stream"] = true;
    stream["stream_options"] = {{"include_usage", true}};
    const auto chunks = ReadChunks(Post(kPath, Question(stream)));
    ExpectSame(Join(chunks).at(0), answer["choices"][0]);
    EXPECT_EQ(chunks.back()["usage"], answer["usage"]);
    if (HasFailure()) FAIL() << "round " << round << "\n" << answer;
  }
}

TEST_F(ChatServiceTest, EverythingSaidBeforeSubmitReturnsIsKept) {
  Script script{Spelled(Answer("hm", "early"))};
  script.ends_before_return = true;
  generator_->Play(std::vector<Script>{script});
  const json choice = Ask(kPath, Question({{"n", 2}}))["choices"][1];
  EXPECT_EQ(choice["message"]["content"], "early");
  const auto joined = Join(ReadChunks(Post(kPath, Question({{"stream", true}, {"n", 2}}))));
  ExpectSame(joined.at(0), choice);
  ExpectSame(joined.at(1), choice);
}

TEST_F(ChatServiceTest, LateErrorsEndAStreamWithAnEvent) {
  Script script{Spelled("abc")};
  script.failure = Error{ErrorCode::kNumeric, "logits of layer 3 are NaN"};
  generator_->Play(std::vector<Script>{script});
  const json error = Ask(kPath, Question(), 500)["error"];
  EXPECT_EQ(error["code"], "numeric_error");
  const auto events = ReadStream(Post(kPath, Question({{"stream", true}})));
  EXPECT_EQ(json::parse(events.back().data)["error"], error);
  // The other choice is cancelled.
  generator_->Pause();
  generator_->Play(std::vector<Script>{script, {Spelled(std::string(2000, 'x'))}});
  const auto recording = Post(kPath, Question({{"n", 2}}));
  generator_->Resume();
  Read(recording, 500);
  generator_->WaitIdle();
  EXPECT_EQ(generator_->cancels(), (std::map<engine::GenerationId, int>{{4, 1}}));
}

TEST_F(ChatServiceTest, RefusedSubmissionsAreAnsweredPlainly) {
  Script busy;
  busy.refusal = Error{ErrorCode::kBusy, "64 generations wait already"};
  for (const bool stream : {false, true}) {
    generator_->Play(std::vector<Script>{busy});
    const auto recording = Post(kPath, Question({{"stream", stream}}));
    EXPECT_EQ(Read(recording, 429)["error"]["code"], "queue_full");
    const auto headers = recording->response().headers;
    EXPECT_TRUE(std::any_of(headers.begin(), headers.end(),
                            [](const auto& header) { return header.name == "Retry-After"; }));
  }
  // The second choice is refused: the first is not left running.
  generator_->Pause();
  generator_->Play(std::vector<Script>{{Spelled("abc")}, busy});
  Ask(kPath, Question({{"n", 2}}), 429);
  generator_->WaitIdle();
  EXPECT_EQ(generator_->cancels(), (std::map<engine::GenerationId, int>{{3, 1}}));
}

TEST_F(ChatServiceTest, GeneratorThatStopsTellsTheClient) {
  Script script{Spelled("abc")};
  script.stops_itself = true;
  generator_->Play(std::vector<Script>{script});
  EXPECT_EQ(Ask(kPath, Question(), 503)["error"]["code"], "shutting_down");
  const auto events = ReadStream(Post(kPath, Question({{"stream", true}})));
  EXPECT_EQ(json::parse(events.back().data)["error"]["code"], "shutting_down");
}

TEST_F(ChatServiceTest, DisconnectCancelsEachGenerationOnce) {
  for (const bool stream : {false, true}) {
    for (const std::size_t num_steps : {0u, 1u, 4u, 20u}) {
      Restart({});
      generator_->Play(Spelled(std::string(3000, 'x')));
      generator_->Pause(num_steps);
      const auto recording = Post(kPath, Question({{"stream", stream}, {"n", 2}}));
      generator_->WaitPaused(2);
      recording->Disconnect();
      recording->Disconnect();
      generator_->WaitIdle();
      EXPECT_EQ(generator_->cancels(), (std::map<engine::GenerationId, int>{{1, 1}, {2, 1}}));
      recording->Wait();
      EXPECT_TRUE(recording->dropped());
    }
  }
}

TEST_F(ChatServiceTest, DisconnectInsideAnyWriteCancelsOnce) {
  for (std::size_t num_pieces = 1; num_pieces < 12; ++num_pieces) {
    Restart({});
    generator_->Play(Spelled(Answer("some thoughts", "and a long enough answer to be cut")));
    generator_->Pause();
    const auto recording = std::make_shared<Recording>();
    recording->DisconnectAfter(num_pieces);
    service_->Handle(std::make_shared<testing::RecordingExchange>(
        testing::MakeRequest("POST", kPath, Question({{"stream", true}}).dump()), recording));
    generator_->Resume();
    generator_->WaitIdle();
    recording->Wait();
    EXPECT_EQ(generator_->cancels(), (std::map<engine::GenerationId, int>{{1, 1}}));
    EXPECT_EQ(recording->pieces().size(), num_pieces);
  }
}

TEST_F(ChatServiceTest, ClientThatIsGoneBeforeSubmittingAsksForNothing) {
  const auto recording = std::make_shared<Recording>();
  recording->Disconnect();
  service_->Handle(std::make_shared<testing::RecordingExchange>(
      testing::MakeRequest("POST", kPath, Question().dump()), recording));
  recording->Wait();
  EXPECT_TRUE(recording->dropped());
  EXPECT_TRUE(generator_->requests().empty());
}

TEST_F(ChatServiceTest, CompletedAnswersAreNotCancelled) {
  AskFor(Answer("", "x"));
  const auto recording = Post(kPath, Question({{"stream", true}}));
  ReadChunks(recording);
  recording->Disconnect();
  EXPECT_TRUE(generator_->cancels().empty());
}

TEST_F(ChatServiceTest, TurnThatWasCutIsReplayedToo) {
  Ids ids = ByteIds("hmm");
  const auto add = [&ids](const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  add(Spelled(kEndThink + kOpenResponse));
  add(ByteIds("hello"));
  for (const std::size_t length : {std::size_t{2}, ids.size()}) {
    Restart({});
    generator_->Play(ids);
    const json message = Ask(kPath, Question({{"max_tokens", length}}))["choices"][0]["message"];
    json body = Question();
    body["messages"].push_back(message);
    Ask(kPath, body);
    const auto requests = generator_->requests();
    Ids turn = requests[0].prompt;
    turn.insert(turn.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(length));
    ASSERT_GT(requests[1].prompt.size(), turn.size());
    EXPECT_TRUE(std::equal(turn.begin(), turn.end(), requests[1].prompt.begin())) << length;
  }
}

TEST_F(ChatServiceTest, GeneratedTurnIsReplayedWithItsOwnIds) {
  // The answer is spelled byte by byte, as no encoder would.
  Ids ids = ByteIds("hm");
  const auto add = [&ids](const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  add(Spelled(kEndThink + kOpenResponse));
  add(ByteIds("hello world"));
  add(Spelled(kEndResponse + "<|open|>tools<|sep|>" +
              Call("f", Argument("b", "number", "1") + Argument("a", "string", "x")) +
              "<|close|>tools<|sep|>" + kEndMessage));
  for (const bool stream : {false, true}) {
    Restart({});
    generator_->Play(ids);
    const auto recording = Post(kPath, Question({{"stream", stream}}));
    recording->Wait();
    const auto history = [](const std::string& reasoning, const std::string& arguments) {
      json body = Question();
      body["messages"].push_back(
          {{"role", "assistant"},
           {"content", "hello world"},
           {"reasoning_content", reasoning},
           {"tool_calls",
            {{{"id", "any:0"}, {"function", {{"name", "f"}, {"arguments", arguments}}}}}}});
      body["messages"].push_back({{"role", "tool"}, {"tool_call_id", "any:0"}, {"content", "1"}});
      return body;
    };
    Ask(kPath, history("hm", R"({"a": "x", "b": 1.0})"));
    Ask(kPath, history("", R"({"a": "x", "b": 1.0})"));
    Ask(kPath, history("hm", R"({"a": "x", "b": 2})"));
    const auto requests = generator_->requests();
    Ids turn = requests[0].prompt;
    turn.insert(turn.end(), ids.begin(), ids.end());
    const auto begins_with_turn = [&turn](const Ids& prompt) {
      return prompt.size() > turn.size() && std::equal(turn.begin(), turn.end(), prompt.begin());
    };
    EXPECT_TRUE(begins_with_turn(requests[1].prompt));
    EXPECT_FALSE(begins_with_turn(requests[2].prompt)) << "reasoning that is not sent is not used";
    EXPECT_FALSE(begins_with_turn(requests[3].prompt));
    const auto& boundaries = requests[1].boundaries;
    EXPECT_NE(std::find(boundaries.begin(), boundaries.end(), turn.size()), boundaries.end());
  }
}

TEST_F(ChatServiceTest, CutTurnIsRenderedAnew) {
  generator_->Play(Spelled("think" + kEndThink + kOpenResponse + "cut answer"));
  Ask(kPath, Question({{"max_tokens", 8}}));
  json body = Question();
  body["messages"].push_back(
      {{"role", "assistant"}, {"content", "cut"}, {"reasoning_content", "think"}});
  Ask(kPath, body);
  const auto prompt = generator_->request(1).prompt;
  EXPECT_EQ(prompt, text::ValueOf(text::RenderChat(text::NanoTokenizer(),
                                                   {text::Message::User("hi"),
                                                    text::Message::Assistant("cut", "think")}))
                        .ids);
}

TEST_F(ChatServiceTest, ThinkingCanBeTurnedOffAndGraded) {
  const auto prompt_of = [this](const json& more) {
    generator_->Play(Spelled("x"));
    json body = Question(more);
    body["max_tokens"] = 1;
    Ask(kPath, body);
    return text::ValueOf(text::DecodeText(
        text::NanoTokenizer(), generator_->requests().back().prompt, text::SpecialText::kShow));
  };
  EXPECT_NE(prompt_of({{"reasoning_effort", "low"}}).find("thinking_effort=low"),
            std::string::npos);
  EXPECT_NE(prompt_of({{"reasoning_effort", "minimal"}}).find("thinking_effort=low"),
            std::string::npos);
  EXPECT_NE(prompt_of({{"reasoning_effort", "medium"}}).find("thinking_effort=high"),
            std::string::npos);
  EXPECT_NE(prompt_of({{"reasoning_effort", "xhigh"}}).find("thinking_effort=max"),
            std::string::npos);
  EXPECT_NE(prompt_of({{"thinking", {{"type", "enabled"}, {"effort", "high"}}}})
                .find("thinking_effort=high"),
            std::string::npos);
  for (const json& off : {json{{"thinking", {{"type", "disabled"}}}},
                          json{{"chat_template_kwargs", {{"enable_thinking", false}}}},
                          json{{"chat_template_kwargs", {{"thinking", false}}}}}) {
    EXPECT_TRUE(prompt_of(off).ends_with("<|open|>response<|sep|>"));
  }
}

TEST_F(ChatServiceTest, ToolChoiceNoneIsPutToTheModel) {
  generator_->Play(Spelled("x"));
  Ask(kPath, Question({{"tools", kTools}, {"tool_choice", "none"}, {"max_tokens", 1}}));
  EXPECT_NE(text::ValueOf(text::NanoTokenizer().DecodeBytes(generator_->request(0).prompt))
                .find("tool_choice=none"),
            std::string::npos);
}

/// Whether the constraint of the latest request lets a reply through, token by token.
bool LetsThrough(const testing::ScriptedGenerator& generator, const std::string& reply) {
  const auto constraint = generator.requests().back().constraint;
  if (constraint == nullptr) return true;
  for (const text::TokenId id : Spelled(reply)) {
    if (!constraint->Push(id)) return false;
    constraint->Commit();
  }
  return true;
}

TEST_F(ChatServiceTest, FormsOfTheAnswerAreEnforced) {
  generator_->Play(Spelled("x"));
  const auto lets_through = [this](const json& members, const std::string& content) {
    Ask(kPath, Question(members));
    return LetsThrough(*generator_, Answer("Any {thought}", content));
  };
  EXPECT_TRUE(lets_through({{"response_format", {{"type", "text"}}}}, "no JSON"));
  const json object = {{"response_format", {{"type", "json_object"}}}};
  EXPECT_TRUE(lets_through(object, R"({"a": [1, null]})"));
  EXPECT_FALSE(lets_through(object, "no JSON"));
  const json schema = {{"response_format",
                        {{"type", "json_schema"},
                         {"json_schema",
                          {{"name", "n"},
                           {"strict", true},
                           {"schema",
                            {{"type", "object"},
                             {"properties", {{"a", {{"type", "integer"}}}}},
                             {"required", {"a"}},
                             {"additionalProperties", false}}}}}}}};
  EXPECT_TRUE(lets_through(schema, R"({"a": 17})"));
  EXPECT_FALSE(lets_through(schema, R"({"a": "17"})"));
  EXPECT_FALSE(lets_through(schema, R"({"b": 17})"));
  ExpectRefused(
      kPath,
      Question({{"response_format",
                 {{"type", "json_schema"},
                  {"json_schema",
                   {{"name", "n"}, {"strict", true}, {"schema", {{"not", json::object()}}}}}}}}),
      "response_format.json_schema.schema.not", "unsupported");
}

TEST_F(ChatServiceTest, CallsThatMustComeAreEnforced) {
  generator_->Play(Spelled("x"));
  const auto lets_through = [this](const json& choice, const std::string& rest) {
    Ask(kPath, Question({{"tools", kTools}, {"tool_choice", choice}}));
    return LetsThrough(*generator_, std::string("hm") + kEndThink + rest + kEndMessage);
  };
  const json named = {{"type", "function"}, {"function", {{"name", "clock"}}}};
  for (const json& choice : {json("required"), named}) {
    EXPECT_TRUE(lets_through(choice, Tools(Call("clock", "")))) << choice;
    EXPECT_FALSE(lets_through(choice, std::string(kOpenResponse) + "No." + kEndResponse)) << choice;
    EXPECT_EQ(lets_through(choice, Tools(Call("weather", ""))), choice == "required");
    EXPECT_FALSE(lets_through(choice, Tools(Call("nobody", "")))) << choice;
  }
}

TEST_F(ChatServiceTest, SchemasThatCannotBeAreNamedByTheirMember) {
  const auto format = [](const char* schema) {
    return json{{"response_format",
                 {{"type", "json_schema"}, {"json_schema", {{"schema", json::parse(schema)}}}}}};
  };
  const std::string path = "response_format.json_schema.schema";
  for (const char* schema :
       {"false", R"({"enum":[]})", R"({"type":"integer","minimum":2,"maximum":1})"}) {
    const json error = Ask(kPath, Question(format(schema)), 400)["error"];
    EXPECT_EQ(error["param"], path) << error;
    EXPECT_NE(error["message"].get<std::string>().find("99 levels"), std::string::npos) << error;
  }
  ExpectRefused(kPath, Question(format(R"({"$ref":"#/$defs/x"})")), path + ".$ref");
  ExpectRefused(kPath, Question(format(R"({"properties":{"a b":{"$ref":"#/$defs/x"}}})")),
                path + R"(.properties["a b"].$ref)");
  ExpectRefused(kPath, Question(format(R"({"$ref":"http://x"})")), path + ".$ref", "unsupported");
  const json tools = json::parse(
      R"([{"type":"function","function":{"name":"f"}},
          {"type":"function","function":{"name":"g","strict":true,"parameters":
           {"type":"object","properties":{"a":false},"required":["a"]}}}])");
  ExpectRefused(kPath, Question({{"tools", tools}}), "tools[1].function.parameters");
  EXPECT_TRUE(generator_->requests().empty());
}

TEST_F(ChatServiceTest, WrongToolsAreNamedByTheirPlace) {
  const auto tool = [](const char* more) {
    json function = {{"name", "f"}};
    function.update(json::parse(more));
    return json{{"type", "function"}, {"function", function}};
  };
  const auto refused = [&](const char* more, const std::string& param) {
    ExpectRefused(kPath, Question({{"tools", {tool(more)}}}), "tools[0].function." + param);
  };
  refused(R"({"strict":"yes"})", "strict");
  refused(R"({"description":5})", "description");
  for (const char* parameters : {"\"x\"", "1", "[]", "true"}) {
    refused(fmt::format(R"({{"parameters":{}}})", parameters).c_str(), "parameters");
  }
  refused(R"({"parameters":{"type":"string"}})", "parameters.type");
  refused(R"({"parameters":{"type":["string","null"]}})", "parameters.type");
  ExpectRefused(kPath, Question({{"tools", {tool("{}"), tool("{}")}}}), "tools[1].function.name");
  EXPECT_TRUE(generator_->requests().empty());
  generator_->Play(Spelled(Answer("", "x")));
  Ask(kPath, Question({{"tools", {tool(R"({"strict":null,"parameters":null})")}}}));
  Ask(kPath, Question({{"tools", {tool(R"({"parameters":{"type":["object","null"]}})")}}}));
}

TEST_F(ChatServiceTest, IgnoreEosNeedsAFreeReply) {
  const json strict = json::parse(R"([{"type":"function","function":{"name":"f","strict":true}}])");
  for (json more : {json{{"response_format", {{"type", "json_object"}}}},
                    json{{"tools", kTools}, {"tool_choice", "required"}},
                    json{{"tools", kTools}, {"tool_choice", "none"}}, json{{"tools", strict}}}) {
    more["ignore_eos"] = true;
    ExpectRefused(kPath, Question(more), "ignore_eos");
  }
  EXPECT_TRUE(generator_->requests().empty());
}

}  // namespace
}  // namespace megalith::serve
