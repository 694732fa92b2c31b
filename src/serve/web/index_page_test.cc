#include "serve/web/index_page.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace megalith::serve::web {
namespace {

TEST(IndexPage, IsTheFileByteForByte) {
  std::ifstream file(MEGALITH_SOURCE_DIR "/src/serve/web/index.html", std::ios::binary);
  const std::string expected{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(expected.empty());
  EXPECT_TRUE(IndexPage() == expected) << IndexPage().size() << " bytes, " << expected.size();
}

// The page must work without a network and must not let anything in: no address of another host,
// and text only by way of text nodes.
TEST(IndexPage, LoadsNothingFromElsewhereAndWritesNoMarkup) {
  for (const std::string_view word :
       {"http://", "https://", "src=\"//", "@import", "innerHTML", "outerHTML",
        "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser"}) {
    EXPECT_EQ(IndexPage().find(word), std::string_view::npos) << word;
  }
}

}  // namespace
}  // namespace megalith::serve::web
