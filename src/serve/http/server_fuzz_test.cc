// Mutated requests over sockets. The server must survive, leak no connection and answer a good
// request after each batch. fuzz/fuzz_http_request.cc does the same to the parser alone, faster.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "serve/http/testing/test_server.h"

namespace megalith::serve::http {
namespace {

using testing::ClientResponse;
using testing::RawClient;
using testing::TestServer;
using testing::WaitUntil;

const std::vector<std::string>& Seeds() {
  static const std::vector<std::string> seeds = {
      "GET /hello HTTP/1.1\r\nHost: h\r\n\r\n",
      "GET /hello?a=b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
      "HEAD /hello HTTP/1.1\r\nHost: h\r\n\r\n",
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\nhello world",
      "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5;a=b\r\nhello\r\n0\r\nT: v\r\n\r\n",
      "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
      "GET /drop-stream HTTP/1.1\r\nHost: h\r\n\r\n",
      "GET /throw HTTP/1.1\r\nHost: h\r\nX-Request-Id: x\r\n\r\n",
      "OPTIONS * HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
      "GET http://h/%41 HTTP/1.1\r\nHost: h\r\n\r\n",
  };
  return seeds;
}

std::string Mutate(std::mt19937* random) {
  static const std::vector<std::string> kWords = {"\r\n",
                                                  "\n",
                                                  "\r",
                                                  "\r\n\r\n",
                                                  ":",
                                                  " ",
                                                  "0",
                                                  "ffffffffffffffff",
                                                  "%00",
                                                  "%",
                                                  ",",
                                                  "\"",
                                                  ";",
                                                  "chunked",
                                                  "-1",
                                                  "//",
                                                  "\t",
                                                  "Content-Length: 3\r\n",
                                                  "\xff",
                                                  "\x80",
                                                  "Transfer-Encoding: chunked\r\n",
                                                  "Host: x\r\n",
                                                  "HTTP/1.1"};
  const auto below = [random](std::size_t bound) {
    return (*random)() % std::max<std::size_t>(bound, 1);
  };
  std::string text = Seeds()[below(Seeds().size())];
  if (below(4) == 0) text += Seeds()[below(Seeds().size())];
  for (std::size_t i = 0, count = 1 + below(5); i < count; ++i) {
    const std::size_t at = below(text.size() + 1);
    switch (below(6)) {
      case 0:
        text.insert(at, kWords[below(kWords.size())]);
        break;
      case 1:
        text.erase(at, below(8));
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 3:
        text.insert(at, text.substr(below(text.size()), below(40)));
        break;
      case 4:
        text.resize(at);
        break;
      default:
        text.insert(at, 1 + below(300), static_cast<char>(below(256)));
        break;
    }
  }
  return text;
}

TEST(ServerFuzz, MutatedRequestsAreSurvived) {
  constexpr std::uint32_t kSeed = 20'251;
  std::mt19937 random(kSeed);
  TestServer server({.limits = {.max_header_bytes = 1024, .max_body_bytes = 4096},
                     .header_timeout = std::chrono::seconds(2),
                     .body_stall_timeout = std::chrono::seconds(2)});
  for (int batch = 0; batch < 100; ++batch) {
    std::vector<RawClient> clients;
    std::vector<std::string> inputs;
    for (int i = 0; i < 40; ++i) {
      inputs.push_back(Mutate(&random));
      clients.push_back(server.Connect());
      clients.back().Send(inputs.back());
      if (random() % 2 == 0) clients.back().ShutdownWrite();
    }
    for (std::size_t i = 0; i < clients.size(); ++i) {
      const std::optional<std::string> answer = clients[i].ReadSome(std::chrono::milliseconds(1));
      if (answer && !answer->empty()) {
        EXPECT_TRUE(answer->starts_with("HTTP/1.1 ")) << "seed " << kSeed << ": " << inputs[i];
      }
    }
    RawClient good = server.Connect();
    ASSERT_TRUE(good.Get("/hello"));
    ASSERT_EQ(good.ReadResponse().body, "hello") << "batch " << batch << ", seed " << kSeed;
  }
  EXPECT_TRUE(WaitUntil([&] { return server.server().num_connections() == 0; }));
  EXPECT_EQ(server.server().num_exchanges(), 0U);
}

}  // namespace
}  // namespace megalith::serve::http
