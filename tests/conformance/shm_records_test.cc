// A peer that lies in its ring.
#include "conformance/shm_puppet.h"

namespace rdmacoll::conformance {
namespace {

constexpr uint64_t kSeeds = 20'250'510;

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

constexpr uint64_t kEnd = uint64_t{64} << 20;  // the end of the pool

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
  RecordHeader data_as_view = Puppet::record(RecordKind::data);
  data_as_view.traffic = Traffic::view;
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
      {"unknown_release", "released a view that was not published",
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
      {"data_of_wrong_size", "6 bytes where 7 were expected",
       [](Puppet& puppet) {
         static std::byte target[7];
         const Piece piece{target, 7};
         EXPECT_TRUE(puppet.transport->post_recv({.peer = 1, .pieces = {&piece, 1}}).ok());
         puppet.write_data(6);
       }},
      {"data_before_its_receive_of_wrong_size", "6 bytes where 7 were expected",
       [](Puppet& puppet) {
         static std::byte target[7];
         const Piece piece{target, 7};
         puppet.write_data(6);
         EXPECT_TRUE(puppet.sink.failures.empty());
         EXPECT_TRUE(puppet.transport->post_recv({.peer = 1, .pieces = {&piece, 1}}).ok());
       }},
      {"data_twice", "twice: transfer",
       [](Puppet& puppet) {
         puppet.write_data(6);
         EXPECT_TRUE(puppet.sink.failures.empty());
         puppet.write_data(6);
       }},
      {"long_data", cat(shm::kDataBytesMax + 1, " bytes in a record"),
       [](Puppet& puppet) { puppet.write_data(shm::kDataBytesMax + 1); }},
      {"data_as_a_view", "a transfer of 0 bytes in a record", header(data_as_view)},
      {"unreadable_source", "is not there",
       [](Puppet& puppet) {
         static std::byte target[8];
         const Piece piece{target, 8};
         EXPECT_TRUE(puppet.transport->post_recv({.peer = 1, .pieces = {&piece, 1}}).ok());
         puppet.write_pieces(publication(1, Traffic::transfer), {{64, 8}});
       }},
      {"record_longer_than_any", "a record of 20000 bytes",
       [](Puppet& puppet) {
         std::byte* record = puppet.ring.reserve(0) - sizeof(RecordHeader);
         puppet.ring.commit(Puppet::record(RecordKind::heartbeat));
         const uint32_t bytes = 20'000;
         std::memcpy(record + offsetof(RecordHeader, bytes), &bytes, sizeof bytes);
       }},
      {"bytes_on_the_socket", "nonsense on its socket",
       [](Puppet& puppet) { EXPECT_EQ(::send(puppet.socket.get(), "x", 1, 0), 1); }},
  };
}

INSTANTIATE_TEST_SUITE_P(over, ShmLies, testing::ValuesIn(lies()),
                         [](const auto& info) { return info.param.name; });

// Random records in the ring cause no crash, no read outside the mapped memory, and at most one
// report. The address sanitizer checks the reads.
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

// Old contents of the ring, or a caller's data, may look like a record in everything except the
// stamp.
TEST(ShmRing, a_record_of_another_line_is_none) {
  Puppet puppet;
  puppet.connect();
  const std::byte* first = puppet.ring.reserve(0) - sizeof(RecordHeader);
  puppet.write(Puppet::record(RecordKind::control));
  ASSERT_EQ(puppet.sink.messages[1].size(), 1u);
  std::memcpy(puppet.ring.reserve(0) - sizeof(RecordHeader), first, shm::kRecordAlign);
  puppet.poll();
  EXPECT_EQ(puppet.sink.messages[1].size(), 1u);
  EXPECT_TRUE(puppet.sink.failures[1].empty());
  puppet.write(Puppet::record(RecordKind::control, 1));
  EXPECT_EQ(puppet.sink.messages[1].size(), 2u);
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

}  // namespace
}  // namespace rdmacoll::conformance
