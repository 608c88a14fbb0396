// No data from a peer crashes a rank, makes it wait for ever, or makes it write outside the memory
// that the peer may write. The address sanitizer sees such a write.
#include <gmock/gmock.h>

#include "conformance/rdma_puppet.h"
#include "transport/rdma/link.h"

namespace rdmacoll::conformance {
namespace {

using rdma::RecordKind;
using testing::HasSubstr;
using verbs_sim::soft_roce;

constexpr uint64_t kSequences = 6;

class RdmaFuzz {
 public:
  explicit RdmaFuzz(uint64_t seed) : random_(seed), fleet_({.seed = seed}, {rank()}, 2) {
    puppet_.connect();
    std::vector<Transfer> transfers;
    for (uint64_t i = 0; i < 2 * kSequences; ++i) {
      const bool is_of_pool = random_() % 2 == 0;
      const std::size_t bytes = random_() % 3 == 0 ? random_() % 4000 : 9'000 + random_() % 90'000;
      buffers_.push_back(
          std::make_unique<Buffer>(is_of_pool ? &fleet_.pool(0) : nullptr, bytes, 3, random_));
      const Transfer transfer{
          .peer = 1, .sequence = i / 2, .pieces = buffers_.back()->pieces(), .cookie = i};
      (void)(i % 2 == 0 ? fleet_.at(0).post_send(transfer) : fleet_.at(0).post_recv(transfer));
    }
    puppet_.settle(30);
  }

  void run(int actions) {
    for (int i = 0; i < actions && fleet_.sink(0).failures.empty(); ++i) {
      switch (random_() % 6) {
        case 0:
          say_record(static_cast<RecordKind>(random_() % 8), some_bytes());
          break;
        case 1:
          say_record(RecordKind::grant, grant());
          break;
        case 2:
          say_record(RecordKind::ready, {});
          break;
        case 3:
          say_damaged();
          break;
        default:
          write();
          break;
      }
      puppet_.settle(4);
    }
  }

  // Expects that the transport reports the end of the peer exactly once, with a cause.
  void check() {
    puppet_.settle(50);
    puppet_.hang_up();
    EXPECT_NE(fleet_.failure(0, 1), "");
    EXPECT_EQ(fleet_.sink(0).failures[1].size(), 1u);
    EXPECT_EQ(fleet_.fabric.counters().changed_under_way, 0u);
  }

 private:
  static VerbsRank rank() { return {.adapters = {soft_roce(0)}, .pool_bytes = 16 << 20}; }

  std::vector<std::byte> some_bytes() {
    std::vector<std::byte> bytes(random_() % 3 == 0 ? 0 : random_() % 300);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }
  uint64_t number() {
    const uint64_t kind = random_() % 8;
    return kind < 6 ? random_() % kSequences : kind == 6 ? random_() % 100'000 : random_();
  }
  void say_record(RecordKind kind, std::span<const std::byte> payload) {
    const uint64_t position = random_() % 3 != 0 ? 0 : number();
    puppet_.send_record({.kind = kind,
                         .lane = static_cast<Lane>(random_() % 20 == 0 ? 1 : 0),
                         .bytes = static_cast<uint32_t>(payload.size()),
                         .sequence = number(),
                         .position = position},
                        payload, static_cast<uint16_t>(random_() % 10 == 0 ? random_() : 0));
  }
  // Most targets are in the puppet's memory. The devices stop other writes.
  std::vector<std::byte> grant() {
    std::vector<std::byte> bytes((1 + random_() % 3) * rdma::kWriteTargetBytes);
    for (std::size_t at = 0; at < bytes.size(); at += rdma::kWriteTargetBytes) {
      const rdma::WriteTarget target{
          .address = puppet_.address() + random_() % 1000,
          .key = random_() % 10 == 0 ? static_cast<uint32_t>(random_()) : puppet_.remote_key(),
          .bytes = static_cast<uint32_t>(random_() % 10 == 0 ? random_() : random_() % 5000),
          .immediate = static_cast<uint32_t>(random_()),
          .rail = static_cast<uint32_t>(random_() % 20 == 0 ? random_() : 0)};
      rdma::encode(target, bytes.data() + at);
    }
    return bytes;
  }
  void say_damaged() {
    std::vector<std::byte> bytes = some_bytes();
    bytes.resize(bytes.size() + rdma::kMessageHeaderBytes);
    rdma::encode(
        rdma::MessageHeader{
            .epoch = 3, .number = puppet_.number(), .bytes = static_cast<uint32_t>(bytes.size())},
        bytes.data());
    if (random_() % 2 == 0) bytes[random_() % bytes.size()] ^= static_cast<std::byte>(random_());
    if (random_() % 4 == 0) bytes.resize(random_() % bytes.size());
    puppet_.send(bytes);
  }
  void write() {
    const std::vector<rdma::WriteTarget> targets = puppet_.targets();
    if (targets.empty() || random_() % 8 == 0) {
      return puppet_.write(0, {}, 0, 0, static_cast<uint32_t>(random_()));
    }
    const rdma::WriteTarget& target = targets[random_() % targets.size()];
    std::vector<std::byte> bytes(std::min<uint32_t>(target.bytes, 9'000), std::byte{7});
    puppet_.write(0, bytes, target.address, target.key,
                  random_() % 10 == 0 ? target.immediate + 1 : target.immediate);
  }

  std::mt19937_64 random_;
  VerbsFleet fleet_;
  RdmaPuppet puppet_{fleet_, {soft_roce(1)}};
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

TEST(RdmaFuzz, of_messages_and_writes_ends_well) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    RdmaFuzz fuzz(seed);
    fuzz.run(40);
    fuzz.check();
    if (testing::Test::HasFailure()) return;
  }
}

// ---- single kinds of nonsense ----

TEST(RdmaPathRecord, that_is_cut_short_or_too_long_connects_nobody) {
  for (const std::size_t bytes : {0, 3, 5, 8}) {
    VerbsFleet fleet({.seed = 61}, {{.adapters = {soft_roce(0)}}}, 2);
    RdmaPuppet puppet(fleet, {soft_roce(1)});
    puppet.hear_greeting();
    puppet.say(rdma::encode(puppet.greeting));
    puppet.connect_pairs();
    puppet.say(rdma::GreetingSocket::Word::ready);
    puppet.settle();
    const std::vector<std::byte> cut(bytes, std::byte{32});
    puppet.send_record({.kind = RecordKind::path, .bytes = static_cast<uint32_t>(bytes)}, cut);
    EXPECT_THAT(fleet.failure(0, 1), HasSubstr(cat("a record of kind 5 with ", bytes, " bytes")));
    EXPECT_TRUE(fleet.sink(0).peers.empty()) << bytes;
  }
}

class RdmaNonsense : public testing::Test {
 protected:
  RdmaNonsense() { puppet_.connect(); }

  uint64_t post_receive(std::size_t bytes, bool is_of_pool) {
    std::mt19937_64 random(++cookie_);
    buffers_.push_back(
        std::make_unique<Buffer>(is_of_pool ? &fleet_.pool(0) : nullptr, bytes, 1, random));
    buffers_.back()->paint(1);
    EXPECT_TRUE(fleet_.at(0)
                    .post_recv({.peer = 1,
                                .sequence = cookie_,
                                .pieces = buffers_.back()->pieces(),
                                .cookie = cookie_})
                    .ok());
    puppet_.settle(40);
    return cookie_;
  }

  VerbsFleet fleet_{
      {.seed = 61}, {{.adapters = {soft_roce(0)}, .pool_bytes = std::size_t{16} << 20}}, 2};
  RdmaPuppet puppet_{fleet_, {soft_roce(1)}};
  std::vector<std::unique_ptr<Buffer>> buffers_;
  uint64_t cookie_ = 0;
};

TEST_F(RdmaNonsense, message_of_another_epoch_is_refused) {
  std::vector<std::byte> bytes(rdma::kMessageHeaderBytes);
  rdma::encode(rdma::MessageHeader{.epoch = 2, .number = 1, .bytes = rdma::kMessageHeaderBytes},
               bytes.data());
  puppet_.send(bytes);
  EXPECT_THAT(fleet_.failure(0, 1), HasSubstr("not the next one of epoch 3"));
}

TEST_F(RdmaNonsense, message_that_comes_twice_is_refused) {
  std::vector<std::byte> bytes(rdma::kMessageHeaderBytes);
  rdma::encode(rdma::MessageHeader{.epoch = 3, .number = 0, .bytes = rdma::kMessageHeaderBytes},
               bytes.data());
  puppet_.send(bytes);
  EXPECT_THAT(fleet_.failure(0, 1), HasSubstr("number 0 for 1"));
}

TEST_F(RdmaNonsense, second_path_record_is_refused) {
  puppet_.send_path();
  EXPECT_THAT(fleet_.failure(0, 1), HasSubstr("a record of kind 5"));
}

TEST_F(RdmaNonsense, word_that_it_is_posted_counts_once) {
  const uint64_t sequence = post_receive(300'000, false);
  puppet_.send_record({.kind = RecordKind::ready, .sequence = sequence});
  puppet_.send_record({.kind = RecordKind::ready, .sequence = sequence});
  EXPECT_THAT(fleet_.failure(0, 1), HasSubstr("a record of kind 4"));
}

TEST_F(RdmaNonsense, place_is_written_once) {
  post_receive(100'000, true);
  const std::vector<rdma::WriteTarget> targets = puppet_.targets();
  ASSERT_FALSE(targets.empty());
  for (int i = 0; i < 2; ++i) puppet_.write(0, {}, 0, 0, targets[0].immediate);
  EXPECT_THAT(fleet_.failure(0, 1), HasSubstr("a place that was not granted"));
}

TEST_F(RdmaNonsense, data_of_another_size_than_the_receive_is_refused) {
  const uint64_t sequence = post_receive(100, true);
  const std::vector<std::byte> data(101);
  puppet_.send_record({.kind = RecordKind::data, .bytes = 101, .sequence = sequence}, data);
  EXPECT_THAT(fleet_.failure(0, 1), HasSubstr("a record of kind 2"));
  EXPECT_TRUE(buffers_.back()->is_painted(1)) << "nothing was written";
}

TEST_F(RdmaNonsense, grant_beyond_the_transfer_is_refused) {
  std::mt19937_64 random(1);
  Buffer source(nullptr, 50'000, 1, random);
  EXPECT_TRUE(fleet_.at(0)
                  .post_send({.peer = 1, .sequence = 9, .pieces = source.pieces(), .cookie = 1})
                  .ok());
  std::vector<std::byte> target(rdma::kWriteTargetBytes);
  rdma::encode(
      rdma::WriteTarget{.address = puppet_.address(), .key = puppet_.remote_key(), .bytes = 50'001},
      target.data());
  puppet_.send_record(
      {.kind = RecordKind::grant, .bytes = static_cast<uint32_t>(target.size()), .sequence = 9},
      target);
  EXPECT_THAT(fleet_.failure(0, 1), HasSubstr("a record of kind 3"));
  EXPECT_EQ(fleet_.fabric.counters().writes, 0u);
}

TEST_F(RdmaNonsense, places_for_transfers_that_nobody_has_are_not_kept_without_end) {
  constexpr std::size_t kTargetsEach = 320;
  std::vector<std::byte> targets(kTargetsEach * rdma::kWriteTargetBytes);
  for (std::size_t i = 0; i < kTargetsEach; ++i) {
    rdma::encode(rdma::WriteTarget{.address = puppet_.address(), .key = 1, .bytes = 8},
                 targets.data() + i * rdma::kWriteTargetBytes);
  }
  for (uint64_t sequence = 0; sequence <= rdma::kTargetsMax / kTargetsEach; ++sequence) {
    EXPECT_TRUE(fleet_.sink(0).failures.empty()) << sequence;
    puppet_.send_record({.kind = RecordKind::grant,
                         .bytes = static_cast<uint32_t>(targets.size()),
                         .sequence = sequence},
                        targets);
    puppet_.settle(40);
  }
  EXPECT_THAT(fleet_.failure(0, 1), HasSubstr("a record of kind 3"));
}

// Without a grant, the transport never writes.
TEST_F(RdmaNonsense, transfer_that_is_not_granted_is_not_written) {
  std::mt19937_64 random(2);
  Buffer source(&fleet_.pool(0), 200'000, 1, random);
  EXPECT_TRUE(fleet_.at(0)
                  .post_send({.peer = 1, .sequence = 9, .pieces = source.pieces(), .cookie = 1})
                  .ok());
  puppet_.settle();
  EXPECT_EQ(fleet_.fabric.counters().writes, 0u);
  EXPECT_TRUE(fleet_.sink(0).sent_cookies.empty());
}

// A peer that waits for a grant does not wait for data that the transport writes in the same turn.
TEST_F(RdmaNonsense, grants_are_not_behind_the_writes_of_their_turn) {
  constexpr uint32_t kBytes = 200'000;
  std::vector<std::byte> granted(rdma::kWriteTargetBytes);
  rdma::encode(rdma::WriteTarget{.address = puppet_.address() + RdmaPuppet::kSendArea +
                                            std::size_t{20} * RdmaPuppet::kReceiveBytes,
                                 .key = puppet_.remote_key(),
                                 .bytes = kBytes},
               granted.data());
  puppet_.send_record(
      {.kind = RecordKind::grant, .bytes = static_cast<uint32_t>(granted.size()), .sequence = 9},
      granted);
  puppet_.settle(100);
  std::mt19937_64 random(3);
  Buffer source(&fleet_.pool(0), kBytes, 1, random);
  Buffer target(&fleet_.pool(0), kBytes, 1, random);
  const std::size_t heard = puppet_.messages.size();
  EXPECT_TRUE(fleet_.at(0)
                  .post_send({.peer = 1, .sequence = 9, .pieces = source.pieces(), .cookie = 1})
                  .ok());
  EXPECT_TRUE(fleet_.at(0)
                  .post_recv({.peer = 1, .sequence = 9, .pieces = target.pieces(), .cookie = 2})
                  .ok());
  ASSERT_TRUE(puppet_.poll_until([&] { return !puppet_.immediates.empty(); }));
  EXPECT_EQ(puppet_.messages_before_writes, heard + 1);
  EXPECT_FALSE(puppet_.targets().empty());
}

}  // namespace
}  // namespace rdmacoll::conformance
