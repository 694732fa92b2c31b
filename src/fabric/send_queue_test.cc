#include "fabric/send_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace megalith::fabric {
namespace {

TEST(SendQueue, ItemsComeOutInOrderAndRoundTheEnd) {
  SendQueue<int> queue(3);
  int out = 0;
  EXPECT_FALSE(queue.Pop(&out));
  for (int i = 0; i < 20; i += 2) {
    queue.Push(i);
    queue.Push(i + 1);
    ASSERT_TRUE(queue.Pop(&out));
    EXPECT_EQ(out, i);
    ASSERT_TRUE(queue.Pop(&out));
    EXPECT_EQ(out, i + 1);
    EXPECT_FALSE(queue.Pop(&out));
  }
}

TEST(SendQueue, ManyProducersLoseNothingAndKeepTheirOrder) {
  constexpr int kProducers = 4;
  constexpr int kItems = 3000;
  struct Item {
    int producer;
    int number;
  };
  // As with slots: each producer has at most one item in the queue.
  SendQueue<Item> queue(kProducers);
  std::atomic<int> taken[kProducers] = {};
  std::vector<std::thread> threads;
  for (int producer = 0; producer < kProducers; ++producer) {
    threads.emplace_back([&, producer] {
      for (int number = 0; number < kItems; ++number) {
        while (taken[producer].load(std::memory_order_acquire) != number) std::this_thread::yield();
        queue.Push({producer, number});
      }
    });
  }
  for (int left = kProducers * kItems; left > 0;) {
    Item item{};
    if (!queue.Pop(&item)) {
      std::this_thread::yield();
      continue;
    }
    EXPECT_EQ(taken[item.producer].load(std::memory_order_relaxed), item.number);
    taken[item.producer].store(item.number + 1, std::memory_order_release);
    --left;
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace megalith::fabric
