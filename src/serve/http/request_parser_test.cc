#include "serve/http/request_parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace megalith::serve::http {
namespace {

using State = RequestParser::State;

struct Parsed {
  State state;
  std::size_t used;
  Refusal refusal;
  Request request;
  bool keep_alive = false;
};

/// Presents `input` in pieces of `step` bytes, as a connection would.
Parsed Parse(std::string_view input, std::size_t step = std::string_view::npos,
             RequestLimits limits = {}) {
  RequestParser parser(limits);
  std::size_t used = 0;
  std::size_t shown = 0;
  const auto is_open = [&] {
    return parser.state() == State::kHeader || parser.state() == State::kBody;
  };
  while (is_open() && shown < input.size()) {
    shown += std::min(step, input.size() - shown);
    std::size_t now = 0;
    do {
      now = parser.Consume(input.substr(used, shown - used));
      used += now;
    } while (is_open() && now > 0 && used < shown);
  }
  Parsed parsed{parser.state(), used, parser.refusal(), {}, false};
  if (parsed.state == State::kDone) {
    parsed.keep_alive = parser.keep_alive();
    parsed.request = parser.TakeRequest();
  }
  return parsed;
}

std::string Post(std::string_view headers, std::string_view body) {
  return fmt::format("POST /p HTTP/1.1\r\nHost: h\r\n{}\r\n{}", headers, body);
}

TEST(RequestParser, RequestsAreReadHoweverTheyAreCut) {
  struct Case {
    std::string request;
    std::string_view body;
  };
  const Case cases[] = {
      {"GET /p?q HTTP/1.1\r\nHost: h\r\nX-Y:  a b \r\n\r\n", ""},
      {"\r\n\r\nGET /p?q HTTP/1.1\r\nHost: h\r\n\r\n", ""},
      {"GET /p?q HTTP/1.0\r\n\r\n", ""},
      {Post("Content-Length: 5\r\n", "12345"), "12345"},
      {Post("Content-Length: 0\r\n", ""), ""},
      {Post("content-length: 0005\r\n", "12345"), "12345"},
      {Post("Transfer-Encoding: Chunked\r\n", "3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\n"),
       "abc0123456789"},
      {Post("Transfer-Encoding: chunked\r\n", "3;a=\"b\";c\r\nabc\r\n0;x\r\nT: v\r\nU: w\r\n\r\n"),
       "abc"},
      {Post("Transfer-Encoding: chunked\r\n", "0\r\n\r\n"), ""},
  };
  for (const Case& c : cases) {
    for (const std::size_t step :
         {std::size_t{1}, std::size_t{2}, std::size_t{7}, c.request.size()}) {
      const std::string next = "GET /next HTTP/1.1\r\n";
      const Parsed parsed = Parse(c.request + next, step);
      ASSERT_EQ(parsed.state, State::kDone) << c.request << parsed.refusal.message;
      EXPECT_EQ(parsed.used, c.request.size()) << c.request;
      EXPECT_EQ(parsed.request.path, "/p");
      EXPECT_EQ(parsed.request.body, c.body) << c.request;
    }
  }
}

TEST(RequestParser, HeadersKeepOrderAndLoseOnlyOuterBlanks) {
  const Parsed parsed = Parse("GET / HTTP/1.1\r\nHost: h\r\nA:  x  y\t\r\nB:\r\nA: z\r\n\r\n");
  ASSERT_EQ(parsed.state, State::kDone) << parsed.refusal.message;
  ASSERT_EQ(parsed.request.headers.size(), 4U);
  EXPECT_EQ(parsed.request.headers[1].name, "A");
  EXPECT_EQ(parsed.request.headers[1].value, "x  y");
  EXPECT_EQ(parsed.request.headers[2].value, "");
  ASSERT_NE(parsed.request.FindHeader("a"), nullptr);
  EXPECT_EQ(*parsed.request.FindHeader("a"), "x  y");
  EXPECT_EQ(parsed.request.FindHeader("c"), nullptr);
}

TEST(RequestParser, TrailersDoNotBecomeHeaders) {
  const Parsed parsed = Parse(
      Post("Transfer-Encoding: chunked\r\n", "1\r\na\r\n0\r\nAuthorization: Bearer x\r\n\r\n"));
  ASSERT_EQ(parsed.state, State::kDone) << parsed.refusal.message;
  EXPECT_EQ(parsed.request.FindHeader("Authorization"), nullptr);
}

// Faults that let two programs cut a request differently (cases S68).
TEST(RequestParser, AmbiguousFramingIsRefused) {
  const std::string requests[] = {
      Post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
      Post("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", "0\r\n\r\n"),
      Post("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
      Post("Content-Length: 0\r\nTransfer-Encoding: gzip\r\n", ""),
      Post("Transfer-Encoding: gzip\r\nContent-Length: 0\r\n", ""),
      Post("Content-Length: 5\r\nContent-Length: 6\r\n", "123456"),
      Post("Content-Length: 5\r\nContent-Length: 5\r\n", "12345"),
      Post("Content-Length: 5, 5\r\n", "12345"),
      Post("Content-Length: -1\r\n", ""),
      Post("Content-Length: +5\r\n", "12345"),
      Post("Content-Length: 0x5\r\n", "12345"),
      Post("Content-Length: 5a\r\n", "12345"),
      Post("Content-Length: 5 5\r\n", "12345"),
      Post("Content-Length: \r\n", ""),
      Post("Content-Length: 99999999999999999999\r\n", ""),
      Post("Content-Length: 18446744073709551616\r\n", ""),
      Post("Content-Length : 5\r\n", "12345"),
      Post("Transfer-Encoding: gzip\r\n", ""),
      Post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
      Post("Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n"),
      Post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
      Post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"),
      Post("Transfer-Encoding: identity\r\n", ""),
      Post("Transfer-Encoding:\r\n", ""),
      "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      Post("Transfer-Encoding: chunked\r\n", "3\r\nabcd\r\n0\r\n\r\n"),
      Post("Transfer-Encoding: chunked\r\n", "3\r\nabcXY0\r\n\r\n"),
      Post("Transfer-Encoding: chunked\r\n", "x\r\nabc\r\n"),
      Post("Transfer-Encoding: chunked\r\n", "-1\r\nabc\r\n"),
      Post("Transfer-Encoding: chunked\r\n", "0x3\r\nabc\r\n0\r\n\r\n"),
      Post("Transfer-Encoding: chunked\r\n", "3 x\r\nabc\r\n"),
      Post("Transfer-Encoding: chunked\r\n", "10000000000000000\r\nabc\r\n"),
      Post("Transfer-Encoding: chunked\r\n", "0\r\nContent-Length: 5\r\n\r\n"),
      Post("Transfer-Encoding: chunked\r\n", "0\r\nbad trailer\r\n\r\n"),
  };
  for (const std::string& request : requests) {
    for (const std::size_t step : {std::size_t{1}, request.size()}) {
      const Parsed parsed = Parse(request, step);
      EXPECT_EQ(parsed.state, State::kRefused) << request;
      EXPECT_EQ(parsed.refusal.status, 400) << request << parsed.refusal.message;
      EXPECT_EQ(parsed.refusal.code, "bad_request") << request;
    }
  }
}

TEST(RequestParser, MalformedRequestsAreRefused) {
  const std::string_view requests[] = {
      "GET\r\n\r\n",
      "GET /\r\n\r\n",
      " GET / HTTP/1.1\r\nHost: h\r\n\r\n",
      "GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
      "GET / HTTP/1.1\nHost: h\n\n",
      "GET / HTTP/1.1\r\nHost: h\n\r\n",
      "GET / HTTP/1.1\r\nHost: h\r\nA: b\rc\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: h\r\nA: b\x01\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: h\r\nA\x80: b\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: h\r\nA b: c\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: h\r\n: c\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: h\r\nnocolon\r\n\r\n",
      "GET / HTTP/1.1\r\n Host: h\r\n\r\n",
      "GET / HTTP/1.1\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n",
      "GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n",
      "GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n",
      "GET nopath HTTP/1.1\r\nHost: h\r\n\r\n",
      "CONNECT host:443 HTTP/1.1\r\nHost: h\r\n\r\n",
      "{}GET / HTTP/1.1\r\nHost: h\r\n\r\n",
      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
  };
  for (const std::string_view request : requests) {
    const Parsed parsed = Parse(request);
    EXPECT_EQ(parsed.state, State::kRefused) << request;
    EXPECT_TRUE(parsed.refusal.status == 400 || parsed.refusal.status == 505)
        << request << parsed.refusal.status;
  }
}

TEST(RequestParser, OtherVersionsAndExpectationsHaveTheirStatus) {
  EXPECT_EQ(Parse("GET / HTTP/2.0\r\n\r\n").refusal.status, 505);
  EXPECT_EQ(Parse("GET / HTTP/1.2\r\nHost: h\r\n\r\n").refusal.status, 505);
  EXPECT_EQ(Parse(Post("Expect: tea\r\n", "")).refusal.status, 417);
}

TEST(RequestParser, KeepAliveFollowsVersionAndConnectionHeader) {
  EXPECT_TRUE(Parse("GET / HTTP/1.1\r\nHost: h\r\n\r\n").keep_alive);
  EXPECT_FALSE(Parse("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").keep_alive);
  EXPECT_FALSE(Parse("GET / HTTP/1.0\r\n\r\n").keep_alive);
  EXPECT_TRUE(Parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive);
}

TEST(RequestParser, HeadersBeyondTheLimitAreRefused) {
  const RequestLimits limits{.max_header_bytes = 200};
  const std::string start = "GET / HTTP/1.1\r\nHost: h\r\n";
  std::string many_lines = start;
  while (many_lines.size() < 300) many_lines += "A: b\r\n";
  const std::string requests[] = {
      "GET /" + std::string(300, 'a') + " HTTP/1.1\r\nHost: h\r\n\r\n",
      std::string(300, 'G'),
      start + "A: " + std::string(300, 'a') + "\r\n\r\n",
      many_lines + "\r\n",
      many_lines,
  };
  for (const std::string& request : requests) {
    for (const std::size_t step : {std::size_t{1}, std::size_t{64}, request.size()}) {
      const Parsed parsed = Parse(request, step, limits);
      EXPECT_EQ(parsed.refusal.status, 431) << request;
    }
  }
  std::string fits = start + "A: ";
  fits += std::string(200 - fits.size() - 4, 'a') + "\r\n\r\n";
  EXPECT_EQ(Parse(fits, 1, limits).state, State::kDone);
  EXPECT_EQ(Parse(fits, fits.size(), limits).state, State::kDone);
}

TEST(RequestParser, BodiesBeyondTheLimitAreRefusedBeforeTheyCome) {
  const RequestLimits limits{.max_body_bytes = 10};
  EXPECT_EQ(Parse(Post("Content-Length: 10\r\n", "0123456789"), 1, limits).state, State::kDone);
  EXPECT_EQ(Parse(Post("Content-Length: 11\r\n", ""), 1, limits).refusal.status, 413);
  EXPECT_EQ(Parse(Post("Content-Length: 1000000000000\r\n", ""), 1, limits).refusal.status, 413);
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  EXPECT_EQ(Parse(Post(chunked, "5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n"), 1, limits).state,
            State::kDone);
  EXPECT_EQ(Parse(Post(chunked, "5\r\n01234\r\n6\r\n"), 1, limits).refusal.status, 413);
  EXPECT_EQ(Parse(Post(chunked, "ffffffffffffffff\r\n"), 1, limits).refusal.status, 413);
}

TEST(RequestParser, EndlessChunkHeadersAndTrailersAreRefused) {
  const RequestLimits limits{.max_header_bytes = 200};
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  EXPECT_EQ(Parse(Post(chunked, "1;" + std::string(300, 'x')), 1, limits).refusal.status, 400);
  EXPECT_EQ(Parse(Post(chunked, "0\r\nA: " + std::string(300, 'x')), 1, limits).refusal.status,
            400);
  EXPECT_EQ(Parse(Post(chunked, std::string(300, '0')), 1, limits).refusal.status, 400);
}

}  // namespace
}  // namespace megalith::serve::http
