// POST /v1/completions.
#include "serve/testing/service_test_util.h"
#include "text/stream_decoder.h"
#include "text/utf8.h"

namespace megalith::serve {
namespace {

constexpr char kPath[] = "/v1/completions";

class CompletionServiceTest : public ServiceTest {
 protected:
  /// Texts, logprobs and finish reasons of a stream, put together per choice.
  static json Join(const std::vector<json>& chunks) {
    json choices = json::array();
    for (const json& chunk : chunks) {
      EXPECT_EQ(chunk["object"], "text_completion");
      for (const json& choice : chunk["choices"]) {
        const auto idx = choice["index"].get<std::size_t>();
        while (choices.size() <= idx) {
          choices.push_back({{"text", ""}, {"index", choices.size()}, {"logprobs", nullptr}});
        }
        json& known = choices[idx];
        EXPECT_FALSE(known.contains("finish_reason")) << "said something after its end";
        known["text"] = known["text"].get<std::string>() + choice["text"].get<std::string>();
        if (choice["logprobs"].is_object()) {
          for (const auto& [name, list] : choice["logprobs"].items()) {
            for (const json& entry : list) known["logprobs"][name].push_back(entry);
            if (list.empty() && !known["logprobs"].contains(name)) {
              known["logprobs"][name] = json::array();
            }
          }
        }
        if (!choice["finish_reason"].is_null()) known["finish_reason"] = choice["finish_reason"];
      }
    }
    return choices;
  }

  /// Asks both ways and compares; the whole answer.
  json AskBoth(const json& body) {
    const json answer = Ask(kPath, body);
    json stream = body;
    stream["stream"] = true;
    EXPECT_EQ(Join(ReadChunks(Post(kPath, stream))), answer["choices"]);
    return answer;
  }
};

TEST_F(CompletionServiceTest, TextFollowsThePrompt) {
  generator_->Play(Spelled(" Paris.[EOS]"));
  const json answer = AskBoth({{"prompt", "The capital is"}, {"model", "nano"}});
  EXPECT_EQ(answer["choices"][0]["text"], " Paris.");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(answer["usage"]["completion_tokens"], Spelled(" Paris.[EOS]").size());
  EXPECT_EQ(generator_->request(0).prompt, Spelled("The capital is"));
  EXPECT_EQ(generator_->request(0).max_tokens, 16);
  EXPECT_EQ(generator_->request(0).sampling.top_p, 0.95f);
}

TEST_F(CompletionServiceTest, PromptComesInFourForms) {
  generator_->Play(Spelled("x[EOS]"));
  const Ids ids = Spelled("ab cd");
  for (const json& prompt :
       {json("ab cd"), json(ids), json::array({"ab cd"}), json::array({ids})}) {
    const json answer = AskBoth({{"prompt", prompt}});
    EXPECT_EQ(answer["choices"].size(), 1u);
    EXPECT_EQ(generator_->requests().back().prompt, ids);
  }
  const json many = AskBoth({{"prompt", {"ab cd", "ef"}}, {"n", 2}});
  EXPECT_EQ(many["choices"].size(), 4u);
  EXPECT_EQ(many["usage"]["prompt_tokens"], ids.size() + Spelled("ef").size());
  const auto requests = generator_->requests();
  EXPECT_EQ(requests[requests.size() - 8].prompt, ids);
  EXPECT_EQ(requests[requests.size() - 7].prompt, ids);
  EXPECT_EQ(requests[requests.size() - 6].prompt, Spelled("ef"));
}

TEST_F(CompletionServiceTest, WrongPromptsAreRefusedByName) {
  const auto refused = [this](const json& prompt, const std::string& param) {
    ExpectRefused(kPath, {{"prompt", prompt}}, param);
  };
  refused(nullptr, "prompt");
  refused("", "prompt");
  refused(json::array(), "prompt");
  refused(1, "prompt");
  refused(json::object(), "prompt");
  refused({"a", 1}, "prompt[1]");
  refused({1, "a"}, "prompt[1]");
  refused({"a", ""}, "prompt[1]");
  refused(json::parse("[[1],[]]"), "prompt[1]");
  refused({4096}, "prompt[0]");
  refused({-1}, "prompt[0]");
  refused({2147483648}, "prompt[0]");
  refused({1.5}, "prompt[0]");
  refused(json::parse("[[1],[4096]]"), "prompt[1][0]");
  refused(json(std::vector<std::string>(257, "x")), "prompt");
  ExpectRefused(kPath, {{"prompt", std::vector<std::string>(100, "x")}, {"n", 3}}, "n");
  EXPECT_TRUE(generator_->requests().empty());
}

TEST_F(CompletionServiceTest, OtherFieldsAreRefusedOrHaveAnEffect) {
  ExpectRefused(kPath, {{"prompt", "a"}, {"suffix", "b"}}, "suffix", "unsupported");
  ExpectRefused(kPath, {{"prompt", "a"}, {"best_of", 2}}, "best_of", "unsupported");
  ExpectRefused(kPath, {{"prompt", "a"}, {"messages", json::array()}}, "messages",
                "unknown_parameter");
  for (const json& value : {json(-1), json(21), json(true), json("1"), json(1.5)}) {
    ExpectRefused(kPath, {{"prompt", "a"}, {"logprobs", value}}, "logprobs");
  }
  ExpectRefused(kPath, {{"prompt", "a"}, {"max_tokens", -1}}, "max_tokens");
  ExpectRefused(kPath, {{"prompt", "a"}, {"echo", 1}}, "echo");
  generator_->Play(Spelled("x[EOS]"));
  EXPECT_EQ(Ask(kPath, {{"prompt", "a"}, {"best_of", 2}, {"n", 2}})["choices"].size(), 2u);
  EXPECT_EQ(Ask(kPath, {{"prompt", "a"}, {"user", "me"}})["warnings"].size(), 1u);
  const auto chunks = ReadChunks(Post(kPath, {{"prompt", "a"}, {"user", "me"}, {"stream", true}}));
  EXPECT_TRUE(chunks.front().contains("warnings"));
}

TEST_F(CompletionServiceTest, StopStringsLimitsAndEnds) {
  generator_->Play(Spelled("one two STOP three"));
  const json stopped = AskBoth({{"prompt", "a"}, {"stop", "STOP"}, {"max_tokens", 100}});
  EXPECT_EQ(stopped["choices"][0]["text"], "one two ");
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  const json cut = AskBoth({{"prompt", "a"}, {"stop", "tw"}, {"max_tokens", 1}});
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "length");
  generator_->Play(ByteIds("ab\xF0\x9F"));
  EXPECT_EQ(AskBoth({{"prompt", "a"}, {"max_tokens", 4}})["choices"][0]["text"], "ab\uFFFD");
  generator_->Play(Spelled("abc"));
  const json on = AskBoth({{"prompt", "a"}, {"ignore_eos", true}, {"max_tokens", 9}});
  EXPECT_EQ(on["usage"]["completion_tokens"], 9);
}

TEST_F(CompletionServiceTest, EchoPutsThePromptInFront) {
  generator_->Play(Spelled(" there[EOS]"));
  EXPECT_EQ(AskBoth({{"prompt", "h\u00e9llo"}, {"echo", true}})["choices"][0]["text"],
            "h\u00e9llo there");
  const json only = AskBoth({{"prompt", "hello"}, {"echo", true}, {"max_tokens", 0}});
  EXPECT_EQ(only["choices"][0]["text"], "hello");
  EXPECT_EQ(only["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(only["usage"]["completion_tokens"], 0);
}

TEST_F(CompletionServiceTest, EchoWithLogprobsScoresThePrompt) {
  generator_->Play(Spelled(" there[EOS]"));
  const std::string prompt = "h\u00e9llo w\u00f6rld";
  const json answer =
      AskBoth({{"prompt", prompt}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 0}});
  EXPECT_TRUE(generator_->request(0).prompt_logprobs);
  EXPECT_EQ(generator_->request(0).num_logprobs, 1);
  const json& choice = answer["choices"][0];
  const json& logprobs = choice["logprobs"];
  const Ids ids = Spelled(prompt);
  EXPECT_EQ(choice["text"], prompt);
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(logprobs[list].size(), ids.size()) << list;
  }
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  for (std::size_t i = 1; i < ids.size(); ++i) {
    EXPECT_EQ(logprobs["token_logprobs"][i], -0.5);
    EXPECT_TRUE(logprobs["top_logprobs"][i].contains(logprobs["tokens"][i].get<std::string>()));
    EXPECT_LE(logprobs["text_offset"][i - 1], logprobs["text_offset"][i]);
  }
  const json more = AskBoth({{"prompt", prompt}, {"echo", true}, {"logprobs", 0}});
  EXPECT_EQ(more["choices"][0]["text"], prompt + " there");
  EXPECT_EQ(more["choices"][0]["logprobs"]["tokens"].size(), ids.size() + Spelled(" there").size());
  EXPECT_EQ(more["choices"][0]["logprobs"]["text_offset"][ids.size()], 11);
}

TEST_F(CompletionServiceTest, LogprobsAreFiniteAndTokensOfPartsOfCharactersShowBytes) {
  generator_->Play(ByteIds("a\u00e9"));
  for (const int count : {0, 1, 5, 20}) {
    const json answer = AskBoth({{"prompt", "p"}, {"logprobs", count}, {"max_tokens", 3}});
    const json& logprobs = answer["choices"][0]["logprobs"];
    EXPECT_EQ(logprobs["tokens"], (json{"a", "bytes:\\xc3", "bytes:\\xa9"}));
    EXPECT_EQ(logprobs["text_offset"], (json{0, 1, 1}));
    for (const json& top : logprobs["top_logprobs"]) {
      for (const json& value : top) EXPECT_TRUE(value.is_number());
    }
    EXPECT_FALSE(generator_->requests().back().prompt_logprobs);
  }
}

TEST_F(CompletionServiceTest, StreamJoinsToTheWholeAnswerForRandomBytes) {
  text::TestRandom random(5);
  for (int round = 0; round < 100; ++round) {
    const std::string bytes = text::RandomBytes(random, random.Below(40));
    Ids ids = random.Below(2) == 0 ? ByteIds(bytes) : Spelled(text::RepairUtf8(bytes));
    if (random.Below(2) == 0) ids.push_back(Spelled("[EOS]")[0]);
    generator_->Play(ids);
    AskBoth({{"prompt", "p"},
             {"max_tokens", 1 + random.Below(ids.size() + 1)},
             {"echo", random.Below(2) == 0},
             {"logprobs", random.Below(2) == 0 ? json(2) : json(nullptr)},
             {"stop", {"a", "\u00e9b"}},
             {"n", 1 + random.Below(2)}});
    if (HasFailure()) FAIL() << "round " << round;
  }
}

TEST_F(CompletionServiceTest, UsageAndProgressOfAStream) {
  generator_->Play(std::vector<Script>{{Spelled("abc[EOS]"), 2}});
  const auto chunks = ReadChunks(Post(kPath, {{"prompt", "some words of a prompt"},
                                              {"stream", true},
                                              {"return_progress", true},
                                              {"stream_options", {{"include_usage", true}}}}));
  EXPECT_EQ(chunks.front()["prompt_progress"]["cached"], 2);
  EXPECT_TRUE(chunks.back()["choices"].empty());
  EXPECT_EQ(chunks.back()["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_TRUE(chunks.back().contains("timings"));
  EXPECT_TRUE(chunks.front()["usage"].is_null());
}

TEST_F(CompletionServiceTest, FailureAndDisconnect) {
  Script script{Spelled("abc")};
  script.failure = Error{ErrorCode::kOutOfMemory, "no pages left"};
  generator_->Play(std::vector<Script>{script});
  EXPECT_EQ(Ask(kPath, {{"prompt", "p"}}, 503)["error"]["code"], "out_of_memory");
  const auto events = ReadStream(Post(kPath, {{"prompt", "p"}, {"stream", true}}));
  EXPECT_EQ(json::parse(events.back().data)["error"]["code"], "out_of_memory");
  generator_->Pause();
  const auto recording = Post(kPath, {{"prompt", {"p", "q"}}});
  recording->Disconnect();
  generator_->WaitIdle();
  EXPECT_EQ(generator_->cancels(), (std::map<engine::GenerationId, int>{{3, 1}, {4, 1}}));
}

TEST_F(CompletionServiceTest, PromptBeyondTheContextIsRefused) {
  Restart({}, 8);
  const json error = Ask(kPath, {{"prompt", {1, 2, 3, 4, 5, 6, 7, 8}}}, 400)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["prompt_tokens"], 8);
  generator_->Play(Spelled("abc"));
  EXPECT_EQ(Ask(kPath, {{"prompt", {1, 2, 3, 4, 5, 6, 7}}})["choices"][0]["finish_reason"],
            "length");
}

}  // namespace
}  // namespace megalith::serve
