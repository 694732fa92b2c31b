// Clients that go: whoever answers them is told, once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serve/http/server.h"
#include "serve/http/testing/test_server.h"

namespace megalith::serve::http {
namespace {

using testing::RawClient;
using testing::TestServer;
using testing::WaitUntil;

struct Departure {
  const char* name;
  std::function<void(RawClient*)> go;
};

std::vector<Departure> Departures() {
  return {{"close", [](RawClient* client) { client->Close(); }},
          {"reset", [](RawClient* client) { client->Reset(); }},
          {"shutdown", [](RawClient* client) { client->ShutdownWrite(); }}};
}

TEST(ServerDisconnect, IsNoticedWhileAnAnswerIsPendingOrStreaming) {
  for (const char* path : {"/hold", "/stream"}) {
    for (const Departure& departure : Departures()) {
      TestServer server;
      RawClient client = server.Connect();
      ASSERT_TRUE(client.Get(path));
      const auto exchange = server.NextHeld();
      ASSERT_NE(exchange, nullptr);
      EXPECT_EQ(server.num_disconnects(), 0);
      departure.go(&client);
      EXPECT_TRUE(WaitUntil([&] { return server.num_disconnects() == 1; }))
          << path << " " << departure.name;
      EXPECT_EQ(server.server().num_exchanges(), 0U);
      EXPECT_FALSE(exchange->Write("x"));
      exchange->Respond({});
      exchange->EndStream();
      EXPECT_EQ(server.num_disconnects(), 1);
      const auto records = server.WaitForRecords(1);
      ASSERT_EQ(records.size(), 1U);
      EXPECT_FALSE(records[0].finished);
      EXPECT_EQ(records[0].status, std::string_view(path) == "/hold" ? 0 : 200);
    }
  }
}

TEST(ServerDisconnect, CallbackThatComesLateIsCalledAtOnceAndAnEarlierOneReplaced) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/hold"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  std::atomic<int> num_second{0};
  exchange->OnDisconnect([&] { ++num_second; });
  client.Close();
  EXPECT_TRUE(WaitUntil([&] { return num_second == 1; }));
  EXPECT_EQ(server.num_disconnects(), 0);
  int num_late = 0;
  exchange->OnDisconnect([&] { ++num_late; });
  EXPECT_EQ(num_late, 1);
}

TEST(ServerDisconnect, IsNotReportedWhenTheAnswerIsComplete) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/hold"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  exchange->Respond({.body = "done"});
  EXPECT_EQ(client.ReadResponse().body, "done");
  client.Close();
  ASSERT_TRUE(WaitUntil([&] { return server.server().num_connections() == 0; }));
  exchange->OnDisconnect([] { ADD_FAILURE() << "the answer was complete"; });
  EXPECT_EQ(server.num_disconnects(), 0);
}

TEST(ServerDisconnect, CallbackMayDropTheLastReference) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/hold"));
  auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  std::atomic<bool> called{false};
  const std::weak_ptr<Exchange> watch = exchange;
  Exchange* raw = exchange.get();
  // A cycle, as when a callback holds the generation that holds the exchange.
  raw->OnDisconnect([exchange = std::move(exchange), &called] { called = true; });
  client.Close();
  EXPECT_TRUE(WaitUntil([&] { return called.load(); }));
  EXPECT_TRUE(WaitUntil([&] { return watch.expired(); }));
}

TEST(ServerDisconnect, ThrowingCallbackHarmsNobody) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/hold"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  exchange->OnDisconnect([] { throw 1; });
  client.Close();
  ASSERT_TRUE(WaitUntil([&] { return server.server().num_connections() == 0; }));
  RawClient next = server.Connect();
  ASSERT_TRUE(next.Get("/hello"));
  EXPECT_EQ(next.ReadResponse().body, "hello");
}

TEST(ServerDisconnect, IsNoticedBehindRequestsSentAhead) {
  for (const std::size_t ahead : {std::size_t{1}, std::size_t{10'000}}) {
    TestServer server;
    RawClient client = server.Connect();
    ASSERT_TRUE(client.Get("/hold"));
    const auto exchange = server.NextHeld();
    ASSERT_NE(exchange, nullptr);
    std::string requests;
    for (std::size_t i = 0; i < ahead; ++i) requests += "GET /hello HTTP/1.1\r\nHost: h\r\n\r\n";
    ASSERT_TRUE(client.Send(requests));
    client.Reset();
    EXPECT_TRUE(WaitUntil([&] { return server.num_disconnects() == 1; })) << ahead;
    EXPECT_EQ(server.num_handled(), 1);
  }
}

// A client that stops sending behind its requests (printf ... | nc -N) is answered if that is
// quick.
TEST(ServerDisconnect, QuickAnswersReachAClientThatHasStoppedSending) {
  TestServer server({.half_close_grace = std::chrono::hours(1)});
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/hello"));
  ASSERT_TRUE(client.Post("/echo", "two"));
  client.ShutdownWrite();
  EXPECT_EQ(client.ReadResponse().body, "hello");
  EXPECT_EQ(client.ReadResponse().body, "two");
  EXPECT_TRUE(client.WaitForClose());
}

TEST(ServerDisconnect, ConnectionsThatBreakAnywhereLeaveNothingBehind) {
  constexpr std::uint32_t kSeed = 7;
  std::mt19937 random(kSeed);
  TestServer server;
  const std::string requests =
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n0123456789"
      "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n0\r\n\r\n"
      "GET /large HTTP/1.1\r\nHost: h\r\n\r\n"
      "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n";
  const auto departures = Departures();
  for (int i = 0; i < 300; ++i) {
    RawClient client = server.Connect();
    ASSERT_TRUE(client.Send(requests.substr(0, random() % (requests.size() + 1))));
    if (random() % 2 == 0) client.ReadSome(std::chrono::milliseconds(random() % 3));
    departures[random() % departures.size()].go(&client);
  }
  EXPECT_TRUE(WaitUntil([&] { return server.server().num_connections() == 0; }))
      << "seed " << kSeed;
  EXPECT_EQ(server.server().num_exchanges(), 0U);
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/hello"));
  EXPECT_EQ(client.ReadResponse().body, "hello");
}

TEST(ServerDisconnect, WritersOnOtherThreadsRaceWithTheClientsEnd) {
  TestServer server;
  for (int i = 0; i < 100; ++i) {
    RawClient client = server.Connect();
    ASSERT_TRUE(client.Get("/stream"));
    auto exchange = server.NextHeld();
    ASSERT_NE(exchange, nullptr);
    std::thread writer([exchange = std::move(exchange), i] {
      for (int k = 0; k < 200; ++k) {
        if (!exchange->Write("data: x\n\n")) break;
      }
      if (i % 2 == 0) exchange->EndStream();
    });
    client.ReadSome();
    client.Reset();
    writer.join();
  }
  EXPECT_TRUE(WaitUntil([&] { return server.server().num_connections() == 0; }));
  EXPECT_LE(server.num_disconnects(), 100);
  EXPECT_EQ(server.WaitForRecords(100).size(), 100U);
}

}  // namespace
}  // namespace megalith::serve::http
