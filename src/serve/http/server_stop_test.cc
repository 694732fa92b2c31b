#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serve/http/server.h"
#include "serve/http/testing/test_server.h"

namespace megalith::serve::http {
namespace {

using testing::ClientResponse;
using testing::kPatience;
using testing::RawClient;
using testing::TestServer;
using testing::WaitUntil;

std::chrono::steady_clock::time_point Now() { return std::chrono::steady_clock::now(); }

TEST(ServerStop, IdleConnectionsAreClosedAtOnce) {
  TestServer server;
  RawClient silent = server.Connect();
  RawClient kept = server.Connect();
  ASSERT_TRUE(kept.Get("/hello"));
  EXPECT_EQ(kept.ReadResponse().body, "hello");
  // A deadline that this test does not live to see.
  server.server().Stop(Now() + std::chrono::hours(1));
  EXPECT_TRUE(silent.WaitForClose());
  EXPECT_TRUE(kept.WaitForClose());
  EXPECT_EQ(server.server().num_connections(), 0U);
  EXPECT_FALSE(server.Connect().connected());
}

TEST(ServerStop, RunningAnswersAreFinished) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/stream"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  std::thread stopper([&] { server.server().Stop(Now() + std::chrono::hours(1)); });
  ASSERT_TRUE(WaitUntil([&] { return !server.Connect().connected(); }));
  EXPECT_TRUE(exchange->Write("late"));
  exchange->EndStream();
  const ClientResponse response = client.ReadResponse();
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(response.body, "late");
  EXPECT_TRUE(client.WaitForClose());
  stopper.join();
  EXPECT_EQ(server.num_disconnects(), 0);
  EXPECT_TRUE(server.WaitForRecords(1).at(0).finished);
}

TEST(ServerStop, AnswersThatRunBeyondTheDeadlineAreCut) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/hold"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  server.server().Stop(Now() + std::chrono::milliseconds(20));
  EXPECT_EQ(server.num_disconnects(), 1);
  EXPECT_TRUE(client.WaitForClose());
  exchange->Respond({});
}

TEST(ServerStop, SecondCallBringsTheDeadlineForward) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/hold"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  std::thread patient([&] { server.server().Stop(Now() + std::chrono::hours(1)); });
  ASSERT_TRUE(WaitUntil([&] { return !server.Connect().connected(); }));
  server.server().Stop(Now());
  patient.join();
  EXPECT_EQ(server.num_disconnects(), 1);
}

TEST(ServerStop, RequestsThatComeLateAreRefused) {
  TestServer server;
  RawClient busy = server.Connect();
  ASSERT_TRUE(busy.Get("/hold"));
  const auto exchange = server.NextHeld();
  RawClient partial = server.Connect();
  ASSERT_TRUE(partial.Get("/hello"));
  EXPECT_EQ(partial.ReadResponse().status, 200);
  // Its connection is kept from here on.
  ASSERT_TRUE(WaitUntil([&] { return server.server().num_exchanges() == 1; }));
  ASSERT_TRUE(partial.Send("GET /hello HTTP/1.1\r\n"));
  server.server().StopAccepting();
  ASSERT_TRUE(WaitUntil([&] { return !server.Connect().connected(); }));
  ASSERT_TRUE(partial.Send("Host: h\r\n\r\n"));
  const ClientResponse response = partial.ReadResponse();
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.HeaderValue("Retry-After"), "1");
  EXPECT_NE(response.body.find("shutting_down"), std::string::npos);
  EXPECT_TRUE(partial.WaitForClose());
  // What is running is not touched by StopAccepting.
  ASSERT_NE(exchange, nullptr);
  exchange->Respond({.body = "done"});
  const ClientResponse last = busy.ReadResponse();
  EXPECT_EQ(last.body, "done");
  EXPECT_EQ(last.HeaderValue("Connection"), "close");
}

TEST(ServerStop, ExchangesMayOutliveTheServer) {
  TestServer server;
  std::vector<RawClient> clients;
  std::vector<std::shared_ptr<Exchange>> exchanges;
  for (const char* path : {"/hold", "/stream", "/hold", "/stream"}) {
    clients.push_back(server.Connect());
    ASSERT_TRUE(clients.back().Get(path));
    exchanges.push_back(server.NextHeld());
    ASSERT_NE(exchanges.back(), nullptr);
  }
  server.Destroy();
  EXPECT_EQ(server.num_disconnects(), 4);
  EXPECT_EQ(exchanges[0]->request().path, "/hold");
  exchanges[0]->Respond({});
  EXPECT_FALSE(exchanges[1]->Write("x"));
  exchanges[1]->EndStream();
  int num_calls = 0;
  exchanges[2]->OnDisconnect([&] { ++num_calls; });
  EXPECT_EQ(num_calls, 1);
}

TEST(ServerStop, WritersRaceWithTheStop) {
  for (int round = 0; round < 20; ++round) {
    TestServer server({.max_unread_bytes = 64U << 10});
    std::vector<RawClient> clients;
    std::vector<std::thread> writers;
    for (int i = 0; i < 4; ++i) {
      clients.push_back(server.Connect());
      ASSERT_TRUE(clients.back().Get("/stream"));
      writers.emplace_back([exchange = server.NextHeld()] {
        while (exchange->Write("data: x\n\n")) {
        }
      });
    }
    server.server().Stop(Now());
    for (std::thread& writer : writers) writer.join();
    // A writer that is faster than its reader is cut before the stop; it is told all the same.
    EXPECT_EQ(server.num_disconnects(), 4);
  }
}

}  // namespace
}  // namespace megalith::serve::http
