// Sends through the pool, for systems without one-copy reads. Also tests the table of transfers in
// flight.
#include <map>
#include <tuple>

#include "conformance/harness.h"
#include "transport/shm/slot_table.h"

namespace rdmacoll::conformance {
namespace {

using shm::Key;
using shm::Traffic;

constexpr uint64_t kSeeds = 20'250'520;

TEST(ShmStaging, goes_on_when_the_pool_is_exhausted) {
  const Backend backend = backends()[1];
  ASSERT_EQ(backend.name, "shm_staged");
  auto fleet = backend.make(2, kNeverSilent);
  std::vector<std::byte*> hoard;
  for (std::size_t bytes = std::size_t{32} << 20; bytes >= 64; bytes /= 2) {
    while (std::byte* memory = fleet->pools[0]->allocate(bytes)) hoard.push_back(memory);
  }
  std::mt19937_64 random(kSeeds);
  std::vector<std::unique_ptr<Buffer>> sources;
  std::vector<std::unique_ptr<Buffer>> targets;
  for (uint64_t i = 0; i < 40; ++i) {
    const std::size_t bytes = i % 2 == 0 ? 1000 : shm::kStagedBytesMax - i;
    sources.push_back(std::make_unique<Buffer>(nullptr, bytes, 4, random));
    targets.push_back(std::make_unique<Buffer>(nullptr, bytes, 4, random));
    sources.back()->paint(i);
    const Transfer send{.peer = 1, .sequence = i, .pieces = sources.back()->pieces(), .cookie = i};
    fleet->offer([&] { return fleet->transports[0]->post_send(send); });
  }
  // The receives are posted in another order than the sends.
  for (uint64_t i = 40; i-- > 0;) {
    const Transfer receive{.peer = 0, .sequence = i, .pieces = targets[i]->pieces(), .cookie = i};
    fleet->offer([&] { return fleet->transports[1]->post_recv(receive); });
  }
  EXPECT_TRUE(fleet->poll_until([&] {
    return fleet->sinks[1].received_cookies.size() == 40 && fleet->transports[0]->flushed();
  }));
  EXPECT_EQ(fleet->sinks[0].sent_cookies.size(), 40u);
  for (uint64_t i = 0; i < 40; ++i) EXPECT_TRUE(targets[i]->is_painted(i)) << i;
  for (std::byte* memory : hoard) fleet->pools[0]->free(memory);
}

TEST(ShmStaging, lets_small_sends_go_at_once_again_and_again) {
  auto fleet = backends()[1].make(2, kNeverSilent);
  std::mt19937_64 random(kSeeds);
  const Buffer source(nullptr, 60'000, 2, random);
  const Buffer target(nullptr, 60'000, 2, random);
  for (uint64_t i = 0; i < 200; ++i) {
    const Transfer send{.peer = 1, .sequence = i, .pieces = source.pieces(), .cookie = i};
    fleet->offer([&] { return fleet->transports[0]->post_send(send); });
    ASSERT_TRUE(fleet->poll_until([&] { return fleet->sinks[0].sent_cookies.contains(i); },
                                  std::chrono::seconds(5)));
    const Transfer receive{.peer = 0, .sequence = i, .pieces = target.pieces(), .cookie = i};
    fleet->offer([&] { return fleet->transports[1]->post_recv(receive); });
    ASSERT_TRUE(fleet->poll_until([&] { return fleet->sinks[1].received_cookies.contains(i); }));
  }
}

TEST(ShmStaging, gives_all_memory_back) {
  const Backend backend = backends()[1];
  std::unique_ptr<MemoryPool> pools[2];
  {
    auto fleet = backend.make(2, kNeverSilent);
    std::mt19937_64 random(kSeeds);
    const Buffer source(nullptr, 50'000, 2, random);
    for (uint64_t i = 0; i < 50; ++i) {
      const Transfer send{.peer = 1, .sequence = i, .pieces = source.pieces(), .cookie = i};
      fleet->offer([&] { return fleet->transports[0]->post_send(send); });
      fleet->poll_all();
    }
    EXPECT_GT(fleet->pools[0]->used(), shm::kStagedBytesMax);
    fleet->transports.clear();
    pools[0] = std::move(fleet->pools[0]);
    pools[1] = std::move(fleet->pools[1]);
  }
  EXPECT_EQ(pools[0]->used(), 0u);
  EXPECT_EQ(pools[1]->used(), 0u);
}

// ---- the table --------------------------------------------------------------------------------

TEST(ShmSlotTable, behaves_like_a_map) {
  std::mt19937_64 random(kSeeds);
  shm::SlotTable<uint64_t> table;
  std::map<std::tuple<int, int, uint64_t>, uint64_t> model;
  for (int i = 0; i < 100'000; ++i) {
    const Key key{static_cast<Traffic>(random() % 2), static_cast<Lane>(random() % 3),
                  random() % 400 << (random() % 2 * 48)};
    const std::tuple model_key{static_cast<int>(key.traffic), int{key.lane}, key.sequence};
    uint64_t* found = table.find(key);
    const auto expected = model.find(model_key);
    ASSERT_EQ(found != nullptr, expected != model.end()) << "step " << i;
    if (found != nullptr) {
      ASSERT_EQ(*found, expected->second) << "step " << i;
      table.erase(key);
      model.erase(expected);
    } else {
      table.insert(key) = random();
      model[model_key] = *table.find(key);
    }
    ASSERT_EQ(table.size(), model.size());
  }
}

}  // namespace
}  // namespace rdmacoll::conformance
