#include "serve/replay.h"

#include <gtest/gtest.h>

#include "tools/temp_dir.h"

namespace megalith::serve {
namespace {

using Ids = std::vector<text::TokenId>;

text::Message CallMessage(std::string arguments, std::string id = "a") {
  text::Message message = text::Message::Assistant("text", "reason");
  message.tool_calls = {{std::move(id), "f", std::move(arguments)}};
  return message;
}

TEST(ReplayStore, FindsMessagesThatMeanTheSame) {
  ReplayStore store(1 << 20);
  store.Put(CallMessage(R"({"b":1,"a":{"y":[1e2,"x"],"x":null}})"), true, {1, 2, 3});
  const Ids ids = {1, 2, 3};
  EXPECT_EQ(store.Find(CallMessage(R"( {"a": {"x": null, "y": [100, "x"]}, "b": 1.0} )"), true),
            ids);
  EXPECT_EQ(store.Find(CallMessage(R"({"b":1,"a":{"y":[1e2,"x"],"x":null}})", "other id"), true),
            ids);
  text::Message parts = CallMessage(R"({"b":1,"a":{"y":[1e2,"x"],"x":null}})");
  parts.content = {"te", "", "xt"};
  EXPECT_EQ(store.Find(parts, true), ids);
}

TEST(ReplayStore, TellsApartWhatDiffers) {
  ReplayStore store(1 << 20);
  const text::Message message = CallMessage(R"({"a":1})");
  store.Put(message, true, {1});
  EXPECT_FALSE(store.Find(message, false));
  for (const char* arguments :
       {R"({"a":"1"})", R"({"a":2})", R"({"a":1,"b":1})", R"({"a":[1]})", "{}", "", "not json"}) {
    EXPECT_FALSE(store.Find(CallMessage(arguments), true)) << arguments;
  }
  text::Message other = message;
  other.reasoning += " ";
  EXPECT_FALSE(store.Find(other, true));
  other = message;
  other.content = {"text "};
  EXPECT_FALSE(store.Find(other, true));
  other = message;
  other.tool_calls[0].name = "g";
  EXPECT_FALSE(store.Find(other, true));
  other = message;
  other.tool_calls.push_back(other.tool_calls[0]);
  EXPECT_FALSE(store.Find(other, true));
}

TEST(ReplayStore, LargeIntegersKeepAllDigits) {
  ReplayStore store(1 << 20);
  store.Put(CallMessage(R"({"a":9007199254740993})"), true, {1});
  EXPECT_FALSE(store.Find(CallMessage(R"({"a":9007199254740992})"), true));
  EXPECT_TRUE(store.Find(CallMessage(R"({"a":9007199254740993})"), true));
}

TEST(ReplayStore, LastIdsOfAMessageCount) {
  ReplayStore store(1 << 20);
  store.Put(CallMessage("{}"), true, {1});
  store.Put(CallMessage(""), true, {2, 3});
  EXPECT_EQ(store.num_turns(), 1u);
  EXPECT_EQ(store.Find(CallMessage("{}"), true), (Ids{2, 3}));
}

TEST(ReplayStore, LeastRecentlyUsedGoesFirst) {
  const Ids ids(100, 7);
  ReplayStore one(1 << 20);
  one.Put(text::Message::Assistant("0"), true, ids);
  ReplayStore store(3 * one.num_bytes());
  for (const char* text : {"0", "1", "2"}) store.Put(text::Message::Assistant(text), true, ids);
  EXPECT_TRUE(store.Find(text::Message::Assistant("0"), true));
  store.Put(text::Message::Assistant("3"), true, ids);
  EXPECT_EQ(store.num_turns(), 3u);
  EXPECT_EQ(store.num_bytes(), 3 * one.num_bytes());
  EXPECT_FALSE(store.Find(text::Message::Assistant("1"), true));
  EXPECT_TRUE(store.Find(text::Message::Assistant("0"), true));
  // Larger than everything: not kept, and nothing is dropped for it.
  store.Put(text::Message::Assistant("4"), true, Ids(100000, 7));
  EXPECT_EQ(store.num_turns(), 3u);
}

TEST(ReplayStore, TurnsOutliveTheProcess) {
  const tools::TempDir temp;
  const std::string path = temp.File("turns");
  {
    ReplayStore store(1 << 20);
    ASSERT_TRUE(store.KeepIn(path));
    store.Put(text::Message::Assistant("a"), true, {1, 2});
    store.Put(text::Message::Assistant("b"), true, {3});
    store.Put(text::Message::Assistant("a"), true, {4, 5, 6});
    ReplayStore second(1 << 20);
    EXPECT_FALSE(second.KeepIn(path)) << "it is open already";
  }
  ReplayStore store(1 << 20);
  ASSERT_TRUE(store.KeepIn(path));
  EXPECT_EQ(store.num_turns(), 2u);
  EXPECT_EQ(store.Find(text::Message::Assistant("a"), true), (Ids{4, 5, 6}));
  EXPECT_EQ(store.Find(text::Message::Assistant("b"), true), (Ids{3}));
  EXPECT_FALSE(ReplayStore(1).KeepIn(temp.path())) << "a folder";
}

TEST(ReplayStore, WhatAKilledProcessLeftIsCutOff) {
  const tools::TempDir temp;
  const std::string path = temp.File("turns");
  {
    ReplayStore store(1 << 20);
    ASSERT_TRUE(store.KeepIn(path));
    store.Put(text::Message::Assistant("a"), true, {1, 2});
    store.Put(text::Message::Assistant("b"), true, {3});
  }
  const std::string whole = temp.Read("turns");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    temp.Write("turns", whole.substr(0, length));
    ReplayStore store(1 << 20);
    ASSERT_TRUE(store.KeepIn(path));
    EXPECT_LE(store.num_turns(), 1u);
    // It goes on behind what is whole.
    store.Put(text::Message::Assistant("c"), true, {7});
  }
  {
    ReplayStore store(1 << 20);
    ASSERT_TRUE(store.KeepIn(path));
    EXPECT_EQ(store.Find(text::Message::Assistant("c"), true), (Ids{7}));
    EXPECT_EQ(store.Find(text::Message::Assistant("a"), true), (Ids{1, 2}));
  }
  for (std::size_t place = 8; place < whole.size(); ++place) {
    std::string damaged = whole;
    damaged[place] = static_cast<char>(damaged[place] ^ 4);
    temp.Write("turns", damaged);
    ReplayStore store(1 << 20);
    ASSERT_TRUE(store.KeepIn(path));
    EXPECT_LE(store.num_turns(), 1u) << place;
  }
}

TEST(ReplayStore, TheFileDoesNotGrowForEver) {
  const tools::TempDir temp;
  const std::string path = temp.File("turns");
  constexpr std::size_t kLimit = 10'000;
  {
    ReplayStore store(kLimit);
    ASSERT_TRUE(store.KeepIn(path));
    for (int i = 0; i < 500; ++i) {
      store.Put(text::Message::Assistant(std::to_string(i)), true, Ids(100, i));
      ASSERT_LE(temp.Read("turns").size(), 3 * kLimit);
    }
  }
  ReplayStore store(kLimit);
  ASSERT_TRUE(store.KeepIn(path));
  EXPECT_EQ(store.Find(text::Message::Assistant("499"), true), Ids(100, 499));
  EXPECT_GT(store.num_turns(), 5u);
}

}  // namespace
}  // namespace megalith::serve
