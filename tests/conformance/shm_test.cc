// What only shared memory can get wrong: a peer that lies in its greeting or in its ring. The peer
// here is the test itself, byte by byte.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <utility>

#include "conformance/harness.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/handshake.h"
#include "transport/shm/ring.h"
#include "transport/shm/shm_transport.h"
#include "transport/shm/slot_table.h"

namespace rdmacoll::conformance {
namespace {

using shm::Hello;
using shm::Key;
using shm::PieceRecord;
using shm::RecordHeader;
using shm::RecordKind;
using shm::Traffic;
using ::testing::HasSubstr;

constexpr uint64_t kSeeds = 20'250'500;

struct ManualClock final : Clock {
  Nanoseconds time = kSecond;
  // Something that happens just when the transport looks at the clock: after the rings, before the
  // sockets.
  mutable std::function<void()> meanwhile;
  Nanoseconds now() const override {
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    return time;
  }
};

// Rank 0 is a real transport, which dials; rank 1 is ours to play.
class Puppet {
 public:
  explicit Puppet(ShmOptions options = {}) {
    pool = make_pool();
    transport = std::make_unique<ShmTransport>(world_of(2, 0), *pool, clock, options);
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    transport->adopt(1, Fd(fds[0]), true);
    socket = Fd(fds[1]);
    EXPECT_TRUE(doorbell.open().ok());
    my_pool = make_pool();
    hello = {.epoch = 3,
             .rank = 1,
             .pid = ::getpid(),
             .pool_base = reinterpret_cast<uint64_t>(my_pool->base()),
             .pool_bytes = my_pool->size(),
             .probe_address = reinterpret_cast<uint64_t>(&probe),
             .probe_value = probe};
    descriptors = {doorbell.event(), doorbell.page(), my_pool->fd()};
  }

  void poll(int times = 200) {
    for (int i = 0; i < times; ++i) {
      clock.time += 100 * kMicrosecond;
      transport->poll(sink);
    }
  }
  void greet() {
    shm::SocketMessage message;
    const auto bytes = shm::encode(hello);
    message.prepare(bytes, descriptors);
    message.expect(bytes.size(), shm::kPassedMax);
    EXPECT_TRUE(message.send(socket.get()).ok());
    poll();
    if (!message.receive(socket.get()).ok()) return;
    const Fd channel = message.take(shm::Passed::channel);
    // As ShmPeer lays it out: indexes, ring of the dialer, ring of the acceptor.
    EXPECT_TRUE(shm::map_shared(channel.get(), 4096, shm::Access::write, indexes_).ok());
    EXPECT_TRUE(shm::map_ring(channel.get(), 4096 + shm::kRingBytes, shm::kRingBytes, ring_).ok());
    my_indexes = reinterpret_cast<shm::RingIndexes*>(indexes_.data() + 2048);
    ring = shm::RingProducer(my_indexes, ring_.data());
  }
  void judge(shm::Verdict verdict) {
    shm::SocketMessage message;
    const auto bytes = shm::encode(verdict);
    message.prepare(bytes, {});
    EXPECT_TRUE(message.send(socket.get()).ok());
    poll();
  }
  void connect(shm::Verdict verdict = shm::Verdict::can_read) {
    greet();
    judge(verdict);
    EXPECT_TRUE(transport->is_connected(1));
  }

  void write(RecordHeader header, std::span<const std::byte> payload = {}) {
    std::byte* place = ring.reserve(payload.size());
    ASSERT_NE(place, nullptr);
    if (!payload.empty()) std::memcpy(place, payload.data(), payload.size());
    ring.commit(header);
    poll();
  }
  void write_pieces(RecordHeader header, const std::vector<PieceRecord>& pieces) {
    header.bytes = static_cast<uint32_t>(pieces.size() * sizeof(PieceRecord));
    write(header, std::as_bytes(std::span(pieces)));
  }
  static RecordHeader record(RecordKind kind, uint64_t sequence = 0) {
    RecordHeader header;
    header.kind = kind;
    header.epoch = 3;
    header.sequence = sequence;
    return header;
  }

  void expect_failed(const std::string& cause) {
    poll();
    ASSERT_EQ(sink.failures[1].size(), 1u) << "expected: " << cause;
    EXPECT_THAT(sink.failures[1][0], HasSubstr(cause));
    EXPECT_FALSE(transport->is_connected(1));
  }

  ManualClock clock;
  std::unique_ptr<MemoryPool> pool;
  std::unique_ptr<ShmTransport> transport;
  Recorder sink;
  Fd socket;
  shm::Doorbell doorbell;
  std::unique_ptr<MemoryPool> my_pool;
  uint64_t probe = 0x1234567890abcdef;
  Hello hello;
  std::vector<int> descriptors;
  shm::RingProducer ring;
  shm::RingIndexes* my_indexes = nullptr;

 private:
  shm::Mapping indexes_;
  shm::Mapping ring_;
};

// ---- greetings --------------------------------------------------------------------------------

TEST(ShmGreeting, makes_a_connection_when_it_is_right) {
  Puppet puppet;
  puppet.connect();
  EXPECT_TRUE(puppet.sink.failures.empty());
  EXPECT_TRUE(puppet.transport->reach(1).foreign_views);
  EXPECT_EQ(puppet.transport->reach(1).transport, "shm");
}

TEST(ShmGreeting, of_another_rank_or_epoch_is_refused) {
  for (const bool wrong_rank : {true, false}) {
    Puppet puppet;
    (wrong_rank ? reinterpret_cast<uint32_t&>(puppet.hello.rank) : puppet.hello.epoch) = 0;
    puppet.greet();
    puppet.expect_failed("it says that it is rank");
  }
}

TEST(ShmGreeting, of_random_bytes_is_refused) {
  for (uint64_t seed = kSeeds; seed < kSeeds + 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Puppet puppet;
    std::vector<std::byte> bytes(puppet.hello.pid > 0 ? 60 + seed % 60 : 0);
    paint(bytes, seed);
    ASSERT_EQ(::send(puppet.socket.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    puppet.expect_failed("its greeting is malformed");
  }
}

TEST(ShmGreeting, with_too_few_or_too_many_descriptors_is_refused) {
  Puppet few;
  few.descriptors.pop_back();
  few.greet();
  few.expect_failed("2 descriptors instead of 3");
  Puppet many;
  many.descriptors.push_back(many.doorbell.event());
  many.greet();
  many.expect_failed("4 descriptors instead of 3");
}

TEST(ShmGreeting, with_memory_that_could_shrink_or_is_too_small_is_refused) {
  Puppet unsealed;
  Fd file(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(unsealed.my_pool->size())), 0);
  unsealed.descriptors[2] = file.get();
  unsealed.greet();
  unsealed.expect_failed("not sealed");

  Puppet small;
  small.hello.pool_bytes *= 2;
  small.greet();
  small.expect_failed("passed memory of");

  Puppet no_memory;
  no_memory.descriptors[2] = no_memory.doorbell.event();
  no_memory.greet();
  no_memory.expect_failed("not sealed");
}

TEST(ShmGreeting, that_breaks_off_is_reported) {
  Puppet puppet;
  const std::byte byte{};
  ASSERT_EQ(::send(puppet.socket.get(), &byte, 1, 0), 1);
  puppet.poll();
  EXPECT_TRUE(puppet.sink.failures.empty());
  puppet.socket.reset();
  puppet.expect_failed("connection");
}

TEST(ShmGreeting, that_never_comes_is_silence) {
  Puppet puppet({.peer_timeout = kSecond});
  puppet.poll();
  EXPECT_TRUE(puppet.sink.failures.empty());
  puppet.poll(10'000);
  puppet.expect_failed("silent for 1000 ms");
}

TEST(ShmGreeting, unknown_verdicts_are_refused) {
  Puppet puppet;
  puppet.greet();
  puppet.judge(static_cast<shm::Verdict>(7));
  puppet.expect_failed("an unknown verdict");
}

TEST(ShmGreeting, falls_back_to_staging_when_either_side_cannot_read) {
  Puppet unreadable;
  ++unreadable.hello.probe_value;
  unreadable.connect();
  EXPECT_FALSE(unreadable.transport->reach(1).foreign_views);
  Puppet cannot;
  cannot.connect(shm::Verdict::cannot_read);
  EXPECT_FALSE(cannot.transport->reach(1).foreign_views);
  Puppet forbidden({.one_copy = false});
  forbidden.connect();
  EXPECT_FALSE(forbidden.transport->reach(1).foreign_views);
}

TEST(ShmGreeting, fails_by_name_when_one_copy_is_demanded_and_impossible) {
  Puppet puppet({.one_copy = true});
  puppet.hello.probe_address = 8;
  puppet.greet();
  puppet.expect_failed("RDMACOLL_ONE_COPY");
}

// ---- records ----------------------------------------------------------------------------------

struct Lie {
  std::string name;
  std::string cause;
  std::function<void(Puppet&)> tell;
};
void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.name; }

class ShmLies : public testing::TestWithParam<Lie> {};

TEST_P(ShmLies, fail_the_peer_that_tells_them) {
  Puppet puppet;
  puppet.connect();
  GetParam().tell(puppet);
  puppet.expect_failed(GetParam().cause);
}

constexpr uint64_t kEnd = uint64_t{64} << 20;  // of the pool

RecordHeader publication(uint32_t count, Traffic traffic = Traffic::view) {
  RecordHeader header = Puppet::record(RecordKind::publish);
  header.count = count;
  header.traffic = traffic;
  return header;
}

std::vector<Lie> lies() {
  const auto pieces = [](std::vector<PieceRecord> list) {
    return [list](Puppet& puppet) {
      puppet.write_pieces(publication(static_cast<uint32_t>(list.size())), list);
    };
  };
  const auto header = [](RecordHeader record) {
    return [record](Puppet& puppet) { puppet.write(record); };
  };
  RecordHeader other_epoch = Puppet::record(RecordKind::heartbeat);
  other_epoch.epoch = 4;
  RecordHeader long_control = Puppet::record(RecordKind::control);
  long_control.count = kControlBytesMax + 1;
  RecordHeader later_control = Puppet::record(RecordKind::control, 1);
  RecordHeader shifted_control = Puppet::record(RecordKind::control);
  shifted_control.count = 8;
  shifted_control.extra = 4;
  RecordHeader empty_fragment = Puppet::record(RecordKind::control);
  empty_fragment.count = 8;
  RecordHeader listed = publication(1000);
  listed.extra = 8;
  RecordHeader long_list = publication(0xffffffff);
  long_list.extra = 8;
  RecordHeader other_space = publication(0);
  other_space.traffic = static_cast<Traffic>(2);
  return {
      {"epoch", "epoch 4 instead of 3", header(other_epoch)},
      {"kind", "kind 99", header(Puppet::record(static_cast<RecordKind>(99)))},
      {"space", "in space 2", header(other_space)},
      {"beyond_the_pool", "of a pool of", pieces({{kEnd - 8, 9 | shm::kInPool}})},
      {"far_beyond_the_pool", "of a pool of", pieces({{~uint64_t{0} - 3, 8 | shm::kInPool}})},
      {"huge_piece", "published a piece of", pieces({{0, (shm::kInPool - 1) | shm::kInPool}})},
      {"huge_sum", "more than 1 GiB", pieces({{8, 1u << 30}, {8, 1u << 30}})},
      {"missing_pieces", "in 0 bytes", header(publication(3))},
      {"list_nowhere", "is not there", header(listed)},
      {"list_too_long", "4294967295 pieces", header(long_list)},
      {"unknown_release", "released what was not published",
       header(Puppet::record(RecordKind::release))},
      {"needless_grant", "an unexpected grant", header(Puppet::record(RecordKind::grant))},
      {"long_control", "of 1048577 of control message", header(long_control)},
      {"later_control", "of control message 1", header(later_control)},
      {"shifted_control", "at 4 of 8 of control message", header(shifted_control)},
      {"empty_fragment", "a fragment of 0 bytes", header(empty_fragment)},
      {"twice", "twice: view",
       [](Puppet& puppet) {
         puppet.write_pieces(publication(1), {{0, 8 | shm::kInPool}});
         EXPECT_TRUE(puppet.sink.failures.empty());
         puppet.write_pieces(publication(1), {{0, 8 | shm::kInPool}});
       }},
      {"wrong_size", "8 bytes where 7 were expected",
       [](Puppet& puppet) {
         static std::byte target[7];
         const Piece piece{target, 7};
         EXPECT_TRUE(puppet.transport->post_recv({.peer = 1, .pieces = {&piece, 1}}).ok());
         puppet.write_pieces(publication(1, Traffic::transfer), {{0, 8 | shm::kInPool}});
       }},
      {"unreadable_source", "is not there",
       [](Puppet& puppet) {
         static std::byte target[8];
         const Piece piece{target, 8};
         EXPECT_TRUE(puppet.transport->post_recv({.peer = 1, .pieces = {&piece, 1}}).ok());
         puppet.write_pieces(publication(1, Traffic::transfer), {{64, 8}});
       }},
      {"record_longer_than_written", "a record of 5000 bytes",
       [](Puppet& puppet) {
         RecordHeader record = Puppet::record(RecordKind::heartbeat);
         std::byte* place = puppet.ring.reserve(0);
         puppet.ring.commit(record);
         record.bytes = 5000;
         std::memcpy(place - sizeof record, &record, sizeof record);
       }},
      {"head_too_far", "its ring holds nonsense",
       [](Puppet& puppet) { puppet.my_indexes->head = shm::kRingBytes + 64; }},
      {"head_off_a_line", "its ring holds nonsense",
       [](Puppet& puppet) { puppet.my_indexes->head = 17; }},
      {"bytes_on_the_socket", "nonsense on its socket",
       [](Puppet& puppet) { EXPECT_EQ(::send(puppet.socket.get(), "x", 1, 0), 1); }},
  };
}

INSTANTIATE_TEST_SUITE_P(over, ShmLies, testing::ValuesIn(lies()),
                         [](const auto& info) { return info.param.name; });

// Whatever stands in the ring: no crash, no read outside what is mapped (the address sanitizer
// watches), and at most one report.
TEST(ShmFuzz, survives_random_records) {
  for (uint64_t seed = kSeeds; seed < kSeeds + 1500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    Puppet puppet(ShmOptions{.one_copy = seed % 2 == 0});
    puppet.connect(seed % 4 < 2 ? shm::Verdict::can_read : shm::Verdict::cannot_read);
    std::vector<std::byte> memory(64);
    const Piece piece{memory.data(), memory.size()};
    for (uint64_t i = 0; i < 4 && puppet.transport->is_connected(1); ++i) {
      const Transfer transfer{.peer = 1, .sequence = i, .pieces = {&piece, 1}, .cookie = i};
      (void)puppet.transport->post_recv(transfer);
      (void)puppet.transport->await(1, 0, i, 10 + i);
      (void)puppet.transport->post_send(transfer);
    }
    for (int i = 0; i < 30 && puppet.transport->is_connected(1); ++i) {
      RecordHeader header = Puppet::record(static_cast<RecordKind>(1 + random() % 6), random() % 6);
      std::vector<std::byte> payload(random() % 3 == 0 ? random() % 200 : 0);
      paint(payload, random());
      header.traffic = static_cast<Traffic>(random() % 2);
      header.count = static_cast<uint32_t>(random() % 4);
      if (header.kind == RecordKind::publish) {
        payload.resize(header.count * sizeof(PieceRecord));
        for (uint32_t p = 0; p < header.count; ++p) {
          const uint64_t flag = random() % 4 == 0 ? 0 : shm::kInPool;
          const PieceRecord part{random() % (kEnd + 4), random() % 40 | flag};
          std::memcpy(payload.data() + p * sizeof part, &part, sizeof part);
        }
      }
      header.bytes = static_cast<uint32_t>(payload.size());
      if (random() % 20 == 0) header.bytes = static_cast<uint32_t>(random() % 400);
      if (random() % 20 == 0) header.extra = random() % 9;
      puppet.write(header, payload);
    }
    puppet.poll();
    EXPECT_LE(puppet.sink.failures[1].size(), 1u);
  }
}

TEST(ShmDeath, comes_after_the_last_words) {
  Puppet puppet;
  puppet.connect();
  puppet.clock.meanwhile = [&] {
    const RecordHeader record = Puppet::record(RecordKind::control);
    ASSERT_NE(puppet.ring.reserve(0), nullptr);
    puppet.ring.commit(record);
    puppet.socket.reset();
  };
  puppet.expect_failed("connection");
  EXPECT_EQ(puppet.sink.messages[1].size(), 1u);
}

// ---- staging ----------------------------------------------------------------------------------

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
  // Taken in another order than sent.
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
