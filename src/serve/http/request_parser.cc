#include "serve/http/request_parser.h"

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <optional>
#include <utility>

#include "serve/http/request_target.h"

namespace megalith::serve::http {
namespace {

namespace beast = boost::beast;

/// What is left of a chunked body has at least these: "0\r\n\r\n". With fewer, an assertion of the
/// base class fails after the first line of an empty body.
constexpr std::size_t kMinChunkedBytes = 5;

/// A Content-Length is believed to this size before its bytes are there.
constexpr std::uint64_t kMaxReservedBytes = 1U << 20;

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

bool IsDecimal(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Refusal BadRequest(std::string message) {
  return {.status = 400, .code = "bad_request", .message = std::move(message)};
}

}  // namespace

class RequestParser::Impl final : public beast::http::basic_parser<true> {
 public:
  explicit Impl(const RequestLimits& limits) : limits_(limits) {
    header_limit(limits.max_header_bytes);
    body_limit(limits.max_body_bytes);
  }

  std::size_t Consume(std::string_view input);

  State state() const { return state_; }
  const Refusal& refusal() const { return refusal_; }
  Request& request() { return request_; }
  bool is_http_1_0() const { return version_ == 10; }
  bool expects_continue() const { return expects_continue_; }

 private:
  using Error = beast::error_code;

  void Refuse(Refusal refusal) {
    refusal_ = std::move(refusal);
    state_ = State::kRefused;
  }
  /// From inside the base class, which only knows its own errors.
  void Refuse(Refusal refusal, Error& error) {
    Refuse(std::move(refusal));
    error = beast::http::error::bad_field;
  }
  void RefuseFor(const Error& error);

  void on_request_impl(beast::http::verb, beast::string_view method, beast::string_view target,
                       int version, Error& error) override;
  void on_field_impl(beast::http::field field, beast::string_view name, beast::string_view value,
                     Error& error) override;
  void on_header_impl(Error& error) override;
  void on_body_init_impl(const boost::optional<std::uint64_t>& content_length, Error&) override;
  std::size_t on_body_impl(beast::string_view body, Error&) override;
  std::size_t on_chunk_body_impl(std::uint64_t, beast::string_view body, Error& error) override {
    return on_body_impl(body, error);
  }
  void on_response_impl(int, beast::string_view, int, Error&) override {}
  void on_chunk_header_impl(std::uint64_t, beast::string_view, Error&) override {}
  void on_finish_impl(Error&) override {}

  const RequestLimits limits_;
  State state_ = State::kHeader;
  Refusal refusal_;
  Request request_;
  int version_ = 11;
  bool expects_continue_ = false;
  bool seen_any_ = false;  ///< a byte of the request line
  std::uint64_t header_bytes_ = 0;
  int num_hosts_ = 0;
  int num_content_lengths_ = 0;
  int num_transfer_encodings_ = 0;
};

std::size_t RequestParser::Impl::Consume(std::string_view input) {
  std::size_t used = 0;
  // RFC 9112 2.2: empty lines before a request are skipped; old clients send one behind a body.
  while (!seen_any_ && input.substr(used).starts_with("\r\n")) used += 2;
  if (!seen_any_ && input.substr(used) == "\r") return used;
  while (used < input.size()) {
    if (state_ == State::kBody && chunked() && input.size() - used < kMinChunkedBytes) return used;
    seen_any_ = true;
    Error error;
    const std::size_t step =
        put(boost::asio::const_buffer(input.data() + used, input.size() - used), error);
    used += step;
    if (state_ == State::kRefused) return used;
    const std::size_t left = input.size() - used;
    // The base class applies its limit to each piece it is given, not to their sum.
    if (state_ == State::kHeader) {
      header_bytes_ += step;
      if (header_bytes_ + (is_header_done() ? 0 : left) > limits_.max_header_bytes) {
        error = beast::http::error::header_limit;
      }
    } else if (error == beast::http::error::need_more && left > limits_.max_header_bytes) {
      error = beast::http::error::bad_chunk;
    }
    if (error == beast::http::error::need_more) return used;
    if (error) {
      RefuseFor(error);
      return used;
    }
    if (is_done()) {
      state_ = State::kDone;
      return used;
    }
    if (state_ == State::kHeader && is_header_done()) {
      state_ = State::kBody;
      return used;
    }
  }
  return used;
}

void RequestParser::Impl::RefuseFor(const Error& error) {
  using Code = beast::http::error;
  if (error == Code::header_limit) {
    Refuse({.status = 431,
            .code = "request_header_too_large",
            .message = fmt::format("request line and headers: at most {} bytes expected",
                                   limits_.max_header_bytes)});
  } else if (error == Code::body_limit) {
    Refuse({.status = 413,
            .code = "request_too_large",
            .message =
                fmt::format("request body: at most {} bytes expected", limits_.max_body_bytes)});
  } else if (error == Code::bad_version) {
    Refuse({.status = 505,
            .code = "http_version_not_supported",
            .message = "request line: HTTP/1.0 or HTTP/1.1 expected"});
  } else {
    Refuse(BadRequest(fmt::format("malformed HTTP request: {}", error.message())));
  }
}

void RequestParser::Impl::on_request_impl(beast::http::verb, beast::string_view method,
                                          beast::string_view target, int version, Error& error) {
  version_ = version;
  request_.method = View(method);
  if (request_.method == "CONNECT") {
    return Refuse(BadRequest("CONNECT: this server is not a proxy"), error);
  }
  Result<RequestTarget> parsed = ParseRequestTarget(View(target));
  if (!parsed) return Refuse(BadRequest(std::move(parsed).error().message), error);
  request_.path = std::move(parsed->path);
  request_.query = std::move(parsed->query);
}

void RequestParser::Impl::on_field_impl(beast::http::field field, beast::string_view name,
                                        beast::string_view value, Error& error) {
  // Fields behind a chunked body. The base class refuses those that would change the framing, and
  // nothing else is done with them.
  if (state_ != State::kHeader) return;
  using Field = beast::http::field;
  switch (field) {
    case Field::host:
      ++num_hosts_;
      break;
    case Field::content_length:
      if (++num_content_lengths_ > 1) {
        return Refuse(BadRequest("Content-Length: one expected, several found"), error);
      }
      // The base class also takes a list of equal numbers.
      if (!IsDecimal(View(value))) {
        return Refuse(BadRequest("Content-Length: a decimal number expected"), error);
      }
      break;
    case Field::transfer_encoding:
      ++num_transfer_encodings_;
      // The base class takes an unknown coding for no coding.
      if (!beast::iequals(value, "chunked")) {
        return Refuse(BadRequest("Transfer-Encoding: only 'chunked' is supported"), error);
      }
      break;
    case Field::expect:
      if (!beast::iequals(value, "100-continue")) {
        return Refuse({.status = 417,
                       .code = "expectation_failed",
                       .message = "Expect: only '100-continue' is supported"},
                      error);
      }
      // RFC 9110 10.1.1: not from HTTP/1.0 clients.
      expects_continue_ = version_ != 10;
      break;
    default:
      break;
  }
  request_.headers.push_back({std::string(View(name)), std::string(View(value))});
}

void RequestParser::Impl::on_header_impl(Error& error) {
  if (num_content_lengths_ > 0 && num_transfer_encodings_ > 0) {
    return Refuse(BadRequest("Content-Length and Transfer-Encoding: one of them expected"), error);
  }
  if (num_transfer_encodings_ > 0 && version_ == 10) {
    return Refuse(BadRequest("Transfer-Encoding: not in HTTP/1.0"), error);
  }
  if (num_hosts_ > 1 || (num_hosts_ == 0 && version_ != 10)) {
    return Refuse(BadRequest(fmt::format("Host: one expected, {} found", num_hosts_)), error);
  }
}

void RequestParser::Impl::on_body_init_impl(const boost::optional<std::uint64_t>& content_length,
                                            Error&) {
  if (content_length) request_.body.reserve(std::min(*content_length, kMaxReservedBytes));
}

std::size_t RequestParser::Impl::on_body_impl(beast::string_view body, Error&) {
  request_.body.append(body.data(), body.size());
  return body.size();
}

RequestParser::RequestParser(const RequestLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestParser::~RequestParser() = default;
std::size_t RequestParser::Consume(std::string_view input) { return impl_->Consume(input); }
RequestParser::State RequestParser::state() const { return impl_->state(); }
const Refusal& RequestParser::refusal() const { return impl_->refusal(); }
const Request& RequestParser::request() const { return impl_->request(); }
Request RequestParser::TakeRequest() { return std::move(impl_->request()); }
bool RequestParser::is_http_1_0() const { return impl_->is_http_1_0(); }
bool RequestParser::keep_alive() const { return impl_->keep_alive(); }
bool RequestParser::expects_continue() const { return impl_->expects_continue(); }

}  // namespace megalith::serve::http
