#include "serve/http/request_target.h"

#include <gtest/gtest.h>

namespace megalith::serve::http {
namespace {

TEST(ParseRequestTarget, PathAndQueryAreTakenApartAndThePathDecoded) {
  struct Case {
    std::string_view target, path, query;
  };
  const Case cases[] = {
      {"/", "/", ""},
      {"/v1/models", "/v1/models", ""},
      {"/a?b=%20c?d", "/a", "b=%20c?d"},
      {"/?", "/", ""},
      {"/%41%2f%7e", "/A/~", ""},
      {"/%E2%82%AC", "/\xE2\x82\xAC", ""},
      {"http://host:8080/v1/models?x", "/v1/models", "x"},
      {"HTTPS://host", "/", ""},
      {"http://host?x=1", "/", "x=1"},
      {"*", "*", ""},
      {"//double", "//double", ""},
  };
  for (const Case& c : cases) {
    const auto result = ParseRequestTarget(c.target);
    ASSERT_TRUE(result) << c.target << ": " << result.error().message;
    EXPECT_EQ(result->path, c.path) << c.target;
    EXPECT_EQ(result->query, c.query) << c.target;
  }
}

TEST(ParseRequestTarget, EverythingElseIsRefused) {
  for (const std::string_view target :
       {"", "v1/models", "?x", "/%", "/%4", "/%4g", "/%00", "/%0a", "/%7F", "/a b", "/a#b",
        "http://", "http:///x", "ftp://host/x", "*x", "/\x01", "/\x7f"}) {
    const auto result = ParseRequestTarget(target);
    ASSERT_FALSE(result) << target;
    EXPECT_EQ(result.error().code, ErrorCode::kUsage) << target;
  }
}

}  // namespace
}  // namespace megalith::serve::http
