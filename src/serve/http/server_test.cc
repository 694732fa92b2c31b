#include "serve/http/server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serve/http/testing/test_server.h"

namespace megalith::serve::http {
namespace {

using testing::ClientResponse;
using testing::RawClient;
using testing::TestServer;
using testing::WaitUntil;

TEST(Server, OneConnectionServesTenThousandRequests) {
  TestServer server;
  RawClient client = server.Connect();
  for (int i = 0; i < 10'000; ++i) {
    const std::string body = std::to_string(i);
    ASSERT_TRUE(client.Post("/echo", body)) << i;
    const ClientResponse response = client.ReadResponse();
    ASSERT_EQ(response.status, 200) << i;
    ASSERT_EQ(response.body, body);
  }
  EXPECT_EQ(server.server().num_connections(), 1U);
  EXPECT_EQ(server.num_handled(), 10'000);
}

TEST(Server, RequestsSentAheadAreAnsweredInOrder) {
  TestServer server;
  RawClient client = server.Connect();
  std::string requests;
  constexpr int kCount = 3'000;  // more than the server reads ahead
  for (int i = 0; i < kCount; ++i) {
    const std::string body = std::to_string(i);
    requests += fmt::format("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{}",
                            body.size(), body);
  }
  std::thread sender([&] { EXPECT_TRUE(client.Send(requests)); });
  for (int i = 0; i < kCount; ++i) {
    const ClientResponse response = client.ReadResponse();
    if (response.body != std::to_string(i)) {
      ADD_FAILURE() << "answer " << i << " is '" << response.body << "'";
      break;
    }
  }
  sender.join();
}

TEST(Server, RequestsSentAheadWaitForAHeldAnswer) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/hold"));
  ASSERT_TRUE(client.Get("/hello"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  EXPECT_EQ(server.num_handled(), 1);
  exchange->Respond({.status = 201, .body = "{}"});
  EXPECT_EQ(client.ReadResponse().status, 201);
  EXPECT_EQ(client.ReadResponse().body, "hello");
}

TEST(Server, AnswersAreCompleteHttp) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/hello"));
  const ClientResponse response = client.ReadResponse();
  EXPECT_TRUE(response.head.starts_with("HTTP/1.1 200 OK\r\n")) << response.head;
  EXPECT_EQ(response.HeaderValue("Content-Type"), "text/plain");
  EXPECT_EQ(response.HeaderValue("Content-Length"), "5");
  EXPECT_TRUE(response.HeaderValue("Date").ends_with(" GMT")) << response.head;
  EXPECT_EQ(response.HeaderValue("Connection"), "");
  ASSERT_TRUE(client.Get("/no-content"));
  const ClientResponse empty = client.ReadResponse();
  EXPECT_EQ(empty.status, 204);
  EXPECT_EQ(empty.HeaderValue("Content-Length"), "");
}

TEST(Server, HeadAnswersCarryTheHeadersAlone) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Send("HEAD /hello HTTP/1.1\r\nHost: h\r\n\r\n"));
  const ClientResponse response = client.ReadResponse(/*head_only=*/true);
  EXPECT_EQ(response.HeaderValue("Content-Length"), "5");
  ASSERT_TRUE(client.Send("HEAD /stream HTTP/1.1\r\nHost: h\r\n\r\n"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  EXPECT_TRUE(exchange->Write("not sent"));
  exchange->EndStream();
  EXPECT_TRUE(client.ReadResponse(/*head_only=*/true).complete);
  ASSERT_TRUE(client.Get("/hello"));
  EXPECT_EQ(client.ReadResponse().body, "hello");
}

TEST(Server, ConnectionsCloseAsTheVersionAndTheClientSay) {
  TestServer server;
  RawClient old = server.Connect();
  ASSERT_TRUE(old.Send("GET /hello HTTP/1.0\r\n\r\n"));
  EXPECT_EQ(old.ReadResponse().HeaderValue("Connection"), "close");
  EXPECT_TRUE(old.WaitForClose());

  RawClient old_kept = server.Connect();
  ASSERT_TRUE(old_kept.Send("GET /hello HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
  EXPECT_EQ(old_kept.ReadResponse().HeaderValue("Connection"), "keep-alive");
  ASSERT_TRUE(old_kept.Get("/hello"));
  EXPECT_EQ(old_kept.ReadResponse().body, "hello");

  RawClient closing = server.Connect();
  ASSERT_TRUE(closing.Get("/hello", "Connection: close\r\n"));
  EXPECT_EQ(closing.ReadResponse().HeaderValue("Connection"), "close");
  EXPECT_TRUE(closing.WaitForClose());
}

TEST(Server, StreamsArriveInWholePieces) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/stream"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  std::vector<std::string> pieces;
  for (std::size_t i = 0; i < 500; ++i)
    pieces.push_back("data: " + std::string(i % 97, 'x') + "\n\n");
  pieces.push_back(std::string(1U << 20, 'y'));
  for (const std::string& piece : pieces) {
    EXPECT_TRUE(exchange->Write(piece));
    EXPECT_TRUE(exchange->Write(""));  // must not end the stream
  }
  exchange->EndStream();
  const ClientResponse response = client.ReadResponse();
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(response.HeaderValue("Content-Type"), "text/event-stream");
  EXPECT_EQ(response.chunks, pieces);
  ASSERT_TRUE(client.Get("/hello"));
  EXPECT_EQ(client.ReadResponse().body, "hello");
}

TEST(Server, HeadersOfAStreamGoOutBeforeItsFirstPiece) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/stream"));
  const auto exchange = server.NextHeld();
  const auto head = client.ReadSome();
  ASSERT_TRUE(head);
  EXPECT_TRUE(head->ends_with("\r\n\r\n")) << *head;
}

TEST(Server, StreamsToOldClientsEndWithTheConnection) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  exchange->Write("a");
  exchange->Write("b");
  exchange->EndStream();
  const ClientResponse response = client.ReadResponse();
  EXPECT_EQ(response.HeaderValue("Transfer-Encoding"), "");
  EXPECT_EQ(response.HeaderValue("Connection"), "close");
  EXPECT_EQ(response.body, "ab");
  EXPECT_TRUE(response.complete);
}

TEST(Server, FailuresOfTheHandlerAreAnswered) {
  TestServer server;
  RawClient client = server.Connect();
  for (const char* path : {"/throw", "/drop"}) {
    ASSERT_TRUE(client.Get(path));
    const ClientResponse response = client.ReadResponse();
    EXPECT_EQ(response.status, 500) << path;
    EXPECT_EQ(response.body,
              R"({"error":{"message":"The server failed to answer.","type":"server_error",)"
              R"("param":null,"code":"internal_error"}})");
  }
  ASSERT_TRUE(client.Get("/hello"));
  EXPECT_EQ(client.ReadResponse().body, "hello");
}

TEST(Server, StreamsThatFailAreCutSoThatTheClientCanTell) {
  TestServer server;
  for (const char* path : {"/drop-stream", "/throw-late"}) {
    RawClient client = server.Connect();
    ASSERT_TRUE(client.Get(path));
    const ClientResponse response = client.ReadResponse();
    EXPECT_EQ(response.chunks, std::vector<std::string>{"part"}) << path;
    EXPECT_FALSE(response.complete) << path;
  }
  for (const AccessRecord& record : server.WaitForRecords(2)) EXPECT_FALSE(record.finished);
}

TEST(Server, CallsInAWrongOrderAreIgnored) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/hold"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  EXPECT_FALSE(exchange->Write("x"));
  exchange->EndStream();
  exchange->Respond({.body = "first"});
  exchange->Respond({.body = "second"});
  exchange->BeginStream({});
  EXPECT_FALSE(exchange->Write("x"));
  exchange->EndStream();
  EXPECT_EQ(client.ReadResponse().body, "first");
  ASSERT_TRUE(client.Get("/hello"));
  EXPECT_EQ(client.ReadResponse().body, "hello");
}

TEST(Server, HeadersCannotBeSmuggledIntoAnswers) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/hold"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  exchange->Respond({.headers = {{"X-Good", "yes"},
                                 {"X-Bad", "a\r\nSet-Cookie: x"},
                                 {"Bad Name", "a"},
                                 {"Content-Length", "1"},
                                 {"transfer-encoding", "chunked"}},
                     .body = "body"});
  const ClientResponse response = client.ReadResponse();
  EXPECT_EQ(response.HeaderValue("X-Good"), "yes");
  EXPECT_EQ(response.head.find("Set-Cookie"), std::string::npos);
  EXPECT_EQ(response.head.find("Bad"), std::string::npos);
  EXPECT_EQ(response.body, "body");
}

TEST(Server, RequestIdsAreTakenOverIfTheyAreSane) {
  TestServer server;
  RawClient client = server.Connect();
  std::set<std::string> made;
  const auto id_for = [&](const std::string& wanted) {
    EXPECT_TRUE(client.Get("/hello", wanted.empty() ? "" : "X-Request-Id: " + wanted + "\r\n"));
    return client.ReadResponse().HeaderValue("X-Request-Id");
  };
  EXPECT_EQ(id_for("trace-1.2_3:4"), "trace-1.2_3:4");
  for (const std::string& wanted : {std::string(), std::string("a b"), std::string("a\"b"),
                                    std::string("\xC3\xA4"), std::string(129, 'a')}) {
    const std::string id = id_for(wanted);
    EXPECT_TRUE(id.starts_with("req-")) << id;
    made.insert(id);
  }
  EXPECT_EQ(made.size(), 5U);

  ASSERT_TRUE(client.Get("/hold", "X-Request-Id: same\r\n"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  EXPECT_EQ(exchange->request().id, "same");
  RawClient other = server.Connect();
  ASSERT_TRUE(other.Get("/hello", "X-Request-Id: same\r\n"));
  EXPECT_TRUE(other.ReadResponse().HeaderValue("X-Request-Id").starts_with("req-"));
}

TEST(Server, RequestsCarryWhoAskedAndWhat) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Send("PUT /ho%6cd?a=%20 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi"));
  const auto exchange = server.NextHeld();
  ASSERT_NE(exchange, nullptr);
  const Request& request = exchange->request();
  EXPECT_EQ(request.method, "PUT");
  EXPECT_EQ(request.path, "/hold");
  EXPECT_EQ(request.query, "a=%20");
  EXPECT_EQ(request.body, "hi");
  EXPECT_TRUE(request.client.starts_with("127.0.0.1:")) << request.client;
}

TEST(Server, OneRecordIsWrittenPerRequest) {
  TestServer server;
  RawClient client = server.Connect();
  ASSERT_TRUE(client.Get("/hello?q", "X-Request-Id: one\r\n"));
  client.ReadResponse();
  ASSERT_TRUE(client.Send("bad\r\n\r\n"));
  EXPECT_EQ(client.ReadResponse().status, 400);
  const std::vector<AccessRecord> records = server.WaitForRecords(2);
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].request_id, "one");
  EXPECT_EQ(records[0].method, "GET");
  EXPECT_EQ(records[0].path, "/hello");
  EXPECT_EQ(records[0].status, 200);
  EXPECT_TRUE(records[0].finished);
  EXPECT_GT(records[0].sent_bytes, 5U);
  EXPECT_TRUE(records[0].client.starts_with("127.0.0.1:"));
  EXPECT_EQ(records[1].status, 400);
  EXPECT_EQ(records[1].method, "");
}

TEST(Server, ContinueIsSentToThoseWhoWaitForIt) {
  TestServer server({.limits = {.max_body_bytes = 100}});
  RawClient client = server.Connect();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n";
  ASSERT_TRUE(client.Send(head + "Content-Length: 4\r\n\r\n"));
  EXPECT_EQ(client.ReadResponse().status, 100);
  ASSERT_TRUE(client.Send("body"));
  EXPECT_EQ(client.ReadResponse().body, "body");
  // Not to those who do not wait, nor for a body that is refused.
  ASSERT_TRUE(client.Send(head + "Content-Length: 4\r\n\r\nbody"));
  EXPECT_EQ(client.ReadResponse().status, 200);
  ASSERT_TRUE(client.Send(head + "Content-Length: 101\r\n\r\n"));
  EXPECT_EQ(client.ReadResponse().status, 413);
  EXPECT_TRUE(client.WaitForClose());
}

TEST(Server, ListensAtEveryAddressOfAName) {
  TestServer server({.host = "localhost"});
  RawClient client(server.port(), "127.0.0.1");
  ASSERT_TRUE(client.connected());
  ASSERT_TRUE(client.Get("/hello"));
  EXPECT_EQ(client.ReadResponse().body, "hello");
}

TEST(Server, ListensAtIpv6) {
  auto started = Server::Start({.host = "::1"}, [](std::shared_ptr<Exchange> exchange) {
    exchange->Respond({.body = exchange->request().client});
  });
  if (!started) GTEST_SKIP() << "no IPv6 here: " << started.error().message;
  RawClient client((*started)->port(), "::1");
  ASSERT_TRUE(client.connected());
  ASSERT_TRUE(client.Get("/"));
  EXPECT_TRUE(client.ReadResponse().body.starts_with("[::1]:"));
}

TEST(Server, AddressInUseIsNamed) {
  TestServer server;
  const auto second = Server::Start({.port = server.port()}, [](const auto&) {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kIo);
  EXPECT_NE(second.error().message.find(fmt::format("127.0.0.1:{}", server.port())),
            std::string::npos)
      << second.error().message;
}

TEST(Server, ImpossibleOptionsAreRefused) {
  const Handler handler = [](const auto&) {};
  const auto unknown = Server::Start({.host = "no such host"}, handler);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kUsage);
  EXPECT_NE(unknown.error().message.find("no such host"), std::string::npos);
  EXPECT_FALSE(Server::Start({.num_threads = 0}, handler));
  EXPECT_FALSE(Server::Start({}, nullptr));
}

}  // namespace
}  // namespace megalith::serve::http
