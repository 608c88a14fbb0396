#include "memory/pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

namespace rdmacoll {
namespace {

constexpr std::size_t kMi = std::size_t{1} << 20;

std::unique_ptr<MemoryPool> pool_of(std::size_t bytes) {
  std::unique_ptr<MemoryPool> pool;
  const Status status = MemoryPool::create(bytes, pool);
  EXPECT_TRUE(status.ok()) << status.message();
  return pool;
}

std::size_t resident_bytes(const MemoryPool& pool) {
  struct stat facts {};
  EXPECT_EQ(::fstat(pool.fd(), &facts), 0);
  return static_cast<std::size_t>(facts.st_blocks) * 512;
}

bool is_aligned(const void* memory, std::size_t to) {
  return reinterpret_cast<uintptr_t>(memory) % to == 0;
}

TEST(Pool, aligns_to_pages_and_below_to_lines) {
  const auto pool = pool_of(16 * kMi);
  std::byte* small = pool->allocate(1);
  std::byte* page = pool->allocate(4096);
  std::byte* line = pool->allocate(4095);
  std::byte* more = pool->allocate(4097);
  for (std::byte* memory : {small, line}) EXPECT_TRUE(is_aligned(memory, 64));
  for (std::byte* memory : {page, more}) EXPECT_TRUE(is_aligned(memory, 4096));
  for (std::byte* memory : {small, page, line, more}) {
    EXPECT_TRUE(pool->contains(memory, 1));
    pool->free(memory);
  }
  EXPECT_EQ(pool->used(), 0U);
}

TEST(Pool, contains_knows_its_ends) {
  const auto pool = pool_of(kMi);
  EXPECT_TRUE(pool->contains(pool->base(), kMi));
  EXPECT_FALSE(pool->contains(pool->base(), kMi + 1));
  EXPECT_FALSE(pool->contains(pool->base() - 1, 2));
  EXPECT_TRUE(pool->contains(pool->base() + kMi - 1, 1));
  EXPECT_FALSE(pool->contains(pool->base() + kMi, 1));
  EXPECT_FALSE(pool->contains(pool->base() + 1, SIZE_MAX));
  const int elsewhere = 0;
  EXPECT_FALSE(pool->contains(&elsewhere, sizeof elsewhere));
}

TEST(Pool, is_null_when_exhausted_and_whole_again_after_free) {
  const auto pool = pool_of(kMi);
  EXPECT_EQ(pool->allocate(kMi + 1), nullptr);
  EXPECT_EQ(pool->allocate(SIZE_MAX), nullptr);
  std::vector<std::byte*> quarters;
  for (int i = 0; i < 4; ++i) quarters.push_back(pool->allocate(kMi / 4));
  EXPECT_EQ(pool->allocate(1), nullptr);
  for (int i : {1, 3, 0, 2}) pool->free(quarters[i]);  // free neighbours on one side, then on both
  EXPECT_EQ(pool->allocate(kMi), pool->base());
}

TEST(Pool, lends_half_of_itself_and_keeps_the_rest_for_the_engine) {
  const auto pool = pool_of(16 * kMi);
  std::byte* lent = pool->lend(8 * kMi);
  ASSERT_NE(lent, nullptr);
  EXPECT_EQ(pool->lend(1), nullptr);
  EXPECT_NE(pool->allocate(8 * kMi), nullptr);
  pool->free(lent);
  EXPECT_NE(pool->lend(4 * kMi), nullptr);
}

TEST(Pool, reserves_more_than_two_gigabytes_without_touching_them) {
  const std::size_t bytes = (std::size_t{5} << 30) + 4096;
  const auto pool = pool_of(bytes);
  EXPECT_EQ(pool->size(), bytes);
  std::byte* low = pool->allocate(std::size_t{5} << 30);
  ASSERT_NE(low, nullptr);
  std::byte* high = pool->allocate(4096);
  ASSERT_EQ(high, low + (std::size_t{5} << 30));
  high[4095] = std::byte{7};
  EXPECT_LT(resident_bytes(*pool), kMi);
}

TEST(Pool, keeps_freed_pages_up_to_a_quarter) {
  const auto pool = pool_of(64 * kMi);
  for (int round = 0; round < 3; ++round) {  // reused pages are not counted twice
    std::byte* memory = pool->allocate(12 * kMi);
    std::memset(memory, 1, 12 * kMi);
    pool->free(memory);
    EXPECT_GE(resident_bytes(*pool), 12 * kMi);
  }
  std::byte* kept = pool->allocate(12 * kMi);
  std::byte* more = pool->allocate(12 * kMi);
  std::memset(more, 1, 12 * kMi);
  pool->free(kept);
  pool->free(more);  // 24 of 64 MiB
  EXPECT_LT(resident_bytes(*pool), 13 * kMi);
}

TEST(Pool, gives_the_pages_of_big_frees_back) {
  const auto pool = pool_of(32 * kMi);
  std::byte* big = pool->allocate(16 * kMi);
  std::byte* neighbour = pool->allocate(4096);
  std::memset(big, 1, 16 * kMi);
  std::memset(neighbour, 2, 4096);
  EXPECT_GE(resident_bytes(*pool), 16 * kMi);
  pool->free(big);
  EXPECT_LT(resident_bytes(*pool), kMi);
  EXPECT_EQ(neighbour[4095], std::byte{2});
}

TEST(Pool, cannot_be_shrunk_or_grown_and_is_closed_on_exec) {
  const auto pool = pool_of(kMi);
  EXPECT_EQ(::ftruncate(pool->fd(), 0), -1);
  EXPECT_EQ(::ftruncate(pool->fd(), 2 * kMi), -1);
  EXPECT_TRUE(::fcntl(pool->fd(), F_GETFD) & FD_CLOEXEC);
}

TEST(Pool, another_mapping_of_its_descriptor_shows_the_same_bytes) {
  const auto pool = pool_of(kMi);
  std::byte* memory = pool->allocate(4096);
  void* view = ::mmap(nullptr, kMi, PROT_READ, MAP_SHARED, pool->fd(), 0);
  ASSERT_NE(view, MAP_FAILED);
  memory[17] = std::byte{42};
  EXPECT_EQ(static_cast<std::byte*>(view)[memory - pool->base() + 17], std::byte{42});
  ::munmap(view, kMi);
}

TEST(Pool, a_forked_child_takes_and_frees_nothing) {
  const auto pool = pool_of(16 * kMi);
  std::byte* memory = pool->allocate(2 * kMi);
  std::memset(memory, 5, 2 * kMi);
  const pid_t child = ::fork();
  if (child == 0) {
    pool->free(memory);
    ::_exit(pool->allocate(64) == nullptr ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_EQ(WEXITSTATUS(state), 0);
  EXPECT_EQ(memory[kMi], std::byte{5});
  EXPECT_EQ(pool->used(), 2 * kMi);
}

TEST(PoolDeathTest, freeing_twice_or_within_is_our_bug) {
  // The test needs a new process, since the pool refuses calls in a fork.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto pool = pool_of(kMi);
  std::byte* memory = pool->allocate(128);
  EXPECT_DEATH(pool->free(memory + 64), "nothing is allocated at offset 64");
  pool->free(memory);
  EXPECT_DEATH(pool->free(memory), "nothing is allocated at offset 0");
}

TEST(Pool, refuses_what_the_address_space_cannot_hold) {
  std::unique_ptr<MemoryPool> pool;
  const Status status = MemoryPool::create(std::size_t{1} << 60, pool);
  EXPECT_EQ(status.code(), Code::failed);
  EXPECT_NE(status.message().find("TF_RDMA_BUF_SIZE"), std::string::npos) << status.message();
  EXPECT_EQ(pool, nullptr);
}

// Against a model: extents never overlap, used() is their sum, and the end state is one free
// extent.
TEST(Pool, random_use_never_overlaps_and_always_coalesces) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const auto pool = pool_of(4 * kMi);
  std::map<std::byte*, std::size_t> live;
  for (int turn = 0; turn < 20'000; ++turn) {
    if (random() % 2 == 0 || live.empty()) {
      const std::size_t bytes = random() % (turn % 7 == 0 ? kMi : 9000);
      std::byte* memory = pool->allocate(bytes);
      if (memory == nullptr) continue;
      ASSERT_TRUE(pool->contains(memory, bytes));
      const auto after = live.lower_bound(memory);
      if (after != live.end()) {
        ASSERT_LE(memory + bytes, after->first);
      }
      if (after != live.begin()) {
        const auto before = std::prev(after);
        ASSERT_LE(before->first + before->second, memory);
      }
      live[memory] = bytes;
    } else {
      auto victim = live.lower_bound(pool->base() + random() % pool->size());
      if (victim == live.end()) victim = live.begin();
      pool->free(victim->first);
      live.erase(victim);
    }
  }
  for (const auto& [memory, bytes] : live) pool->free(memory);
  EXPECT_EQ(pool->used(), 0U);
  EXPECT_EQ(pool->allocate(4 * kMi), pool->base());
}

TEST(Pool, threads_may_share_it) {
  const auto pool = pool_of(16 * kMi);
  std::vector<std::thread> threads;
  for (int id = 1; id <= 3; ++id) {
    threads.emplace_back([&pool, id] {
      for (int turn = 0; turn < 2'000; ++turn) {
        const std::size_t bytes = 64 + static_cast<std::size_t>(turn % 50) * 100;
        std::byte* memory = pool->allocate(bytes);
        ASSERT_NE(memory, nullptr);
        std::memset(memory, id, bytes);
        for (std::size_t i = 0; i < bytes; i += 63)
          ASSERT_EQ(memory[i], static_cast<std::byte>(id));
        pool->free(memory);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->used(), 0U);
}

}  // namespace
}  // namespace rdmacoll
