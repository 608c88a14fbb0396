// Random traffic over RDMA: every size, every memory, every setting, and what it costs.
#include "conformance/rdma_puppet.h"
#include "sanitized.h"

namespace rdmacoll::conformance {
namespace {

using verbs_sim::ethernet;
using verbs_sim::infiniband;
using verbs_sim::soft_roce;

constexpr std::size_t kSmallPool = std::size_t{16} << 20;

// Posts transfers and control messages between all ranks at random times, and checks the data.
class Traffic {
 public:
  Traffic(VerbsFleet& fleet, uint64_t seed, std::size_t bytes_max)
      : fleet_(fleet), random_(seed), bytes_max_(bytes_max) {}

  // Posts and polls at random until all has arrived. Returns false if this does not end.
  bool run(int transfers, int controls) {
    for (int i = 0; i < transfers; ++i) add_transfer();
    for (int i = 0; i < controls; ++i) add_control();
    std::shuffle(waiting_.begin(), waiting_.end(), random_);
    return fleet_.poll_until([&] {
      for (uint64_t i = random_() % 8; i > 0 && !waiting_.empty(); --i) {
        if (!waiting_.back()().is_busy()) {
          waiting_.pop_back();
        } else {  // another one's turn
          std::swap(waiting_.back(), waiting_[random_() % waiting_.size()]);
        }
      }
      return waiting_.empty() && is_done();
    });
  }

  void check() {
    for (const Flow& flow : flows_) {
      EXPECT_TRUE(flow.target->is_painted(flow.cookie)) << flow.source->bytes() << " bytes";
    }
    for (auto& [pair, words] : controls_) {
      EXPECT_EQ(fleet_.sink(pair.second).messages[pair.first], words)
          << pair.first << " to " << pair.second;
    }
    for (int rank = 0; rank < fleet_.size(); ++rank) {
      for (const auto& [peer, causes] : fleet_.sink(rank).failures) {
        ADD_FAILURE() << "rank " << rank << " lost " << peer << ": " << causes.front();
      }
    }
    EXPECT_EQ(fleet_.fabric.counters().changed_under_way, 0u);
  }

 private:
  struct Flow {
    int from, to;
    uint64_t cookie;
    std::unique_ptr<Buffer> source, target;
  };

  int rank() { return static_cast<int>(random_() % static_cast<uint64_t>(fleet_.size())); }
  MemoryPool* memory_of(int rank) { return random_() % 3 == 0 ? nullptr : &fleet_.pool(rank); }

  void add_transfer() {
    const int from = rank();
    const int to =
        (from + 1 + static_cast<int>(random_() % (fleet_.transports.size() - 1))) % fleet_.size();
    const std::size_t bytes = random_size(random_, bytes_max_);
    const uint64_t cookie = flows_.size() + 1;
    Flow& flow = flows_.emplace_back(
        Flow{from, to, cookie, std::make_unique<Buffer>(memory_of(from), bytes, 12, random_),
             std::make_unique<Buffer>(memory_of(to), bytes, 12, random_)});
    flow.source->paint(cookie);
    const auto lane = static_cast<Lane>(random_() % 4);
    const Transfer send{.peer = to,
                        .lane = lane,
                        .sequence = cookie,
                        .pieces = flow.source->pieces(),
                        .cookie = cookie};
    Transfer receive = send;
    receive.peer = from;
    receive.pieces = flow.target->pieces();
    waiting_.push_back([this, from, send] { return fleet_.at(from).post_send(send); });
    waiting_.push_back([this, to, receive] { return fleet_.at(to).post_recv(receive); });
  }

  void add_control() {
    const int from = rank();
    const int to = (from + 1) % fleet_.size();
    std::vector<std::byte> word(random_size(random_, 60'000));
    paint(word, random_());
    waiting_.push_back([this, from, to, word] {
      Status status = fleet_.at(from).post_control(to, word);
      if (status.ok()) controls_[{from, to}].push_back(word);
      return status;
    });
  }

  bool is_done() {
    for (int rank = 0; rank < fleet_.size(); ++rank) {
      if (!fleet_.sink(rank).failures.empty()) return true;
    }
    for (auto& [pair, words] : controls_) {
      if (fleet_.sink(pair.second).messages[pair.first].size() < words.size()) return false;
    }
    return std::all_of(flows_.begin(), flows_.end(), [&](const Flow& flow) {
      return fleet_.sink(flow.to).received_cookies.contains(flow.cookie) &&
             fleet_.sink(flow.from).sent_cookies.contains(flow.cookie);
    });
  }

  VerbsFleet& fleet_;
  std::mt19937_64 random_;
  std::size_t bytes_max_;
  std::vector<Flow> flows_;
  std::map<std::pair<int, int>, std::vector<std::vector<std::byte>>> controls_;
  std::vector<std::function<Status()>> waiting_;
};

std::vector<VerbsRank> ranks_of(int count, int rails, const rdma::PeerOptions& options,
                                std::size_t pool_bytes = std::size_t{64} << 20) {
  std::vector<VerbsRank> ranks;
  for (int rank = 0; rank < count; ++rank) {
    VerbsRank& made = ranks.emplace_back(VerbsRank{.options = options, .pool_bytes = pool_bytes});
    made.options.peer_timeout = kNeverSilent;
    for (int rail = 0; rail < rails; ++rail) made.adapters.push_back(ethernet(rank, rail));
  }
  return ranks;
}

void meet(VerbsFleet& fleet) {
  fleet.meet_all();
  ASSERT_TRUE(fleet.poll_until([&] { return fleet.all_connected(); }));
}

TEST(RdmaTraffic, of_many_seeds_arrives_whole_and_in_order) {
  for (uint64_t seed = 1; seed <= seeds(400); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto any = [&](std::initializer_list<uint32_t> values) {
      return *(values.begin() + random() % values.size());
    };
    const rdma::PeerOptions options{.accumulation_bytes = any({0, 1, 64, 700, 8192, 65536}),
                                    .chunk_bytes = any({64, 1000, 20'000, 4 << 20})};
    VerbsFleet fleet(
        {.seed = seed,
         .stall = random() % 3 == 0 ? 0.2 : 0.02,
         .full = random() % 3 == 0 ? 0.2 : 0.0,
         .event_lost = 0.1,
         .event_spurious = 0.1},
        ranks_of(2 + static_cast<int>(random() % 2), 1 + static_cast<int>(random() % 3), options,
                 random() % 2 == 0 ? kSmallPool : 4 * kSmallPool));
    meet(fleet);
    Traffic traffic(fleet, seed, options.chunk_bytes < 1000 ? 30'000 : 120'000);
    ASSERT_TRUE(traffic.run(30, 20))
        << "accumulation " << options.accumulation_bytes << ", chunk " << options.chunk_bytes;
    traffic.check();
    if (testing::Test::HasFailure()) return;
  }
}

TEST(RdmaTraffic, of_every_accumulation_size_arrives) {
  for (const uint32_t bytes : {0u, 1u, 2u, 64u, 1024u, 64u << 10, 256u << 10}) {
    SCOPED_TRACE(bytes);
    VerbsFleet fleet({.seed = bytes + 5}, ranks_of(2, 1, {.accumulation_bytes = bytes}));
    meet(fleet);
    Traffic traffic(fleet, bytes, 400'000);
    ASSERT_TRUE(traffic.run(60, 400));
    traffic.check();
  }
}

TEST(RdmaTraffic, of_memory_beyond_a_small_pool_goes_through_staging_buffers) {
  VerbsFleet fleet({.seed = 51}, ranks_of(2, 2, {}, kSmallPool));
  meet(fleet);
  std::mt19937_64 random(51);
  constexpr std::size_t kBytes = std::size_t{40} << 20;
  Buffer there(nullptr, kBytes, 3, random), here(nullptr, kBytes, 3, random);
  Buffer back(nullptr, kBytes, 3, random), again(nullptr, kBytes, 3, random);
  there.paint(1);
  back.paint(2);
  fleet.offer([&] { return fleet.at(0).post_send({1, 0, 1, there.pieces(), 1}); });
  fleet.offer([&] { return fleet.at(1).post_send({0, 0, 1, back.pieces(), 1}); });
  fleet.offer([&] { return fleet.at(1).post_recv({0, 0, 1, here.pieces(), 2}); });
  fleet.offer([&] { return fleet.at(0).post_recv({1, 0, 1, again.pieces(), 2}); });
  EXPECT_TRUE(fleet.poll_until([&] {
    return fleet.sink(0).received_cookies.contains(2) && fleet.sink(1).received_cookies.contains(2);
  }));
  EXPECT_TRUE(here.is_painted(1));
  EXPECT_TRUE(again.is_painted(2));
  EXPECT_EQ(fleet.at(0).counters().bytes_copied, 2 * kBytes);
  EXPECT_EQ(fleet.fabric.counters().changed_under_way, 0u);
}

// A device limits the size of a message. A chunk may be larger.
TEST(RdmaTraffic, chunks_larger_than_a_message_of_the_device_may_be_are_cut) {
  std::vector<VerbsRank> ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    VerbsRank& made = ranks[static_cast<std::size_t>(rank)];
    made.adapters = {soft_roce(rank)};
    made.options.chunk_bytes = 64 << 20;
    made.pool_bytes = std::size_t{1} << 30;  // slabs of 16 MiB
  }
  VerbsFleet fleet({.seed = 52}, ranks);
  meet(fleet);
  std::mt19937_64 random(52);
  constexpr std::size_t kBytes = std::size_t{20} << 20;
  Buffer source(&fleet.pool(0), kBytes, 1, random), target(&fleet.pool(1), kBytes, 1, random);
  source.paint(3);
  fleet.offer([&] { return fleet.at(0).post_send({1, 0, 1, source.pieces(), 1}); });
  fleet.offer([&] { return fleet.at(1).post_recv({0, 0, 1, target.pieces(), 1}); });
  EXPECT_TRUE(fleet.poll_until([&] { return fleet.sink(1).received_cookies.contains(1); }));
  EXPECT_TRUE(target.is_painted(3));
}

// ---- credits ----

// Both ranks post far more than all credits allow, while no rank polls.
TEST(RdmaCredits, bursts_from_both_sides_while_nobody_polls_all_arrive) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    // Few receives: messages of 64 KiB in a pool of 16 MiB leave eight.
    VerbsFleet fleet({.seed = seed, .stall = 0.3},
                     ranks_of(2, 1 + static_cast<int>(seed % 3),
                              {.accumulation_bytes = 64 << 10, .chunk_bytes = 5'000}, kSmallPool));
    meet(fleet);
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<Buffer>> buffers;
    constexpr int kWords = 300;
    constexpr int kTransfers = 6;
    for (int rank = 0; rank < 2; ++rank) {
      for (int i = 0; i < kTransfers; ++i) {
        for (const bool is_send : {true, false}) {
          buffers.push_back(std::make_unique<Buffer>(&fleet.pool(rank), 90'000, 2, random));
          const Transfer transfer{.peer = 1 - rank,
                                  .sequence = static_cast<uint64_t>(i),
                                  .pieces = buffers.back()->pieces(),
                                  .cookie = static_cast<uint64_t>(i)};
          ASSERT_TRUE(
              (is_send ? fleet.at(rank).post_send(transfer) : fleet.at(rank).post_recv(transfer))
                  .ok());
        }
      }
      for (int i = 0; i < kWords; ++i) {
        const std::vector<std::byte> word(static_cast<std::size_t>(i), static_cast<std::byte>(i));
        ASSERT_TRUE(fleet.at(rank).post_control(1 - rank, word).ok());
      }
    }
    for (int i = 0; i < 20'000 && fleet.fabric.step(); ++i) {  // the devices work, no rank polls
    }
    EXPECT_TRUE(fleet.poll_until([&] {
      return fleet.sink(0).messages[1].size() == kWords &&
             fleet.sink(1).messages[0].size() == kWords &&
             fleet.sink(0).received_cookies.size() == kTransfers &&
             fleet.sink(1).received_cookies.size() == kTransfers;
    }));
    EXPECT_TRUE(fleet.sink(0).failures.empty() && fleet.sink(1).failures.empty());
    EXPECT_EQ(fleet.fabric.counters().rnrs, 0u) << "more was sent than receives were posted";
  }
}

// A rank spends the last credit of a rail only on credits of this rail. Otherwise two ranks could
// wait for each other for ever.
TEST(RdmaCredits, last_one_is_not_spent_on_those_of_another_rail) {
  VerbsFleet fleet({.seed = 53}, ranks_of(1, 2, {}), 2);
  RdmaPuppet puppet(fleet, {ethernet(1, 0), ethernet(1, 1)});
  puppet.greeting.receives = 8;
  puppet.connect();
  puppet.settle();
  const std::vector<std::byte> word(8'000);
  for (int i = 0; i < 14; ++i) ASSERT_TRUE(fleet.at(0).post_control(1, word).ok());
  puppet.settle();
  EXPECT_EQ(puppet.messages.size(), 7u) << "one credit is kept";
  // From more than half of its receives on, the transport owes many credits.
  for (uint32_t i = 0; i <= puppet.theirs.receives / 2; ++i) {
    puppet.write(1, {}, 0, 0, UINT32_MAX);
    puppet.settle();
  }
  EXPECT_EQ(puppet.messages.size(), 7u);
  EXPECT_TRUE(fleet.sink(0).failures.empty());
}

TEST(RdmaCredits, more_than_there_were_are_refused) {
  VerbsFleet fleet({.seed = 54}, ranks_of(1, 1, {}), 2);
  RdmaPuppet puppet(fleet, {ethernet(1)});
  puppet.connect();
  puppet.send_record({.kind = rdma::RecordKind::control}, {}, 200);
  EXPECT_NE(fleet.failure(0, 1).find("more credits than it had"), std::string::npos);
}

// ---- what it costs ----

TEST(RdmaCost, steady_state_registers_and_copies_nothing) {
  VerbsFleet fleet({.seed = 55}, ranks_of(2, 2, {.chunk_bytes = 100'000}));
  meet(fleet);
  std::mt19937_64 random(55);
  constexpr std::size_t kBytes = 3'000'000;
  Buffer source(&fleet.pool(0), kBytes, 4, random), target(&fleet.pool(1), kBytes, 4, random);
  uint64_t registrations = 0;
  for (uint64_t round = 1; round <= 20; ++round) {
    source.paint(round);
    fleet.offer([&] { return fleet.at(1).post_recv({0, 0, round, target.pieces(), round}); });
    fleet.offer([&] { return fleet.at(0).post_send({1, 0, round, source.pieces(), round}); });
    ASSERT_TRUE(fleet.poll_until([&] {
      return fleet.sink(1).received_cookies.contains(round) &&
             fleet.sink(0).sent_cookies.contains(round);
    }));
    EXPECT_TRUE(target.is_painted(round));
    if (round == 1) registrations = fleet.fabric.counters().registrations;
  }
  EXPECT_EQ(fleet.fabric.counters().registrations, registrations);
  for (const int rank : {0, 1}) EXPECT_EQ(fleet.at(rank).counters().bytes_copied, 0u);
  EXPECT_EQ(fleet.at(0).counters().bytes_sent, 20 * kBytes);
  EXPECT_EQ(fleet.at(1).counters().bytes_received, 20 * kBytes);
  EXPECT_EQ(fleet.fabric.counters().changed_under_way, 0u);
}

// A driving caller may leave then, so no thread polls the transport for a while.
TEST(RdmaTraffic, needs_no_more_polls_of_its_sender_once_the_device_has_all_of_it) {
  constexpr std::size_t kBytes = 700'000;
  VerbsFleet fleet({.seed = 57}, ranks_of(2, 1, {.chunk_bytes = 100'000}));
  meet(fleet);
  std::mt19937_64 random(57);
  Buffer source(&fleet.pool(0), kBytes, 1, random), target(&fleet.pool(1), kBytes, 1, random);
  source.paint(1);
  ASSERT_TRUE(fleet.poll_until([&] { return !fleet.at(0).needs_poll(); }));
  fleet.offer([&] { return fleet.at(0).post_send({1, 0, 1, source.pieces(), 1}); });
  for (int i = 0; i < 100; ++i) fleet.poll_all();
  EXPECT_TRUE(fleet.at(0).needs_poll()) << "a grant will come";
  fleet.offer([&] { return fleet.at(1).post_recv({0, 0, 1, target.pieces(), 1}); });
  for (int i = 0; i < 10'000 && fleet.at(0).needs_poll(); ++i) {
    fleet.at(1).poll(fleet.sink(1));
    fleet.fabric.step();
    fleet.at(0).poll(fleet.sink(0));
  }
  EXPECT_FALSE(fleet.at(0).needs_poll());
  EXPECT_FALSE(fleet.sink(0).sent_cookies.contains(1)) << "its writes are under way";
  for (int i = 0; i < 10'000 && !fleet.sink(1).received_cookies.contains(1); ++i) {
    fleet.fabric.step();
    fleet.at(1).poll(fleet.sink(1));
  }
  EXPECT_TRUE(target.is_painted(1));
}

TEST(RdmaCost, memory_is_registered_when_it_is_first_used) {
  VerbsFleet fleet({.seed = 56}, ranks_of(2, 1, {}));
  meet(fleet);
  EXPECT_EQ(fleet.at(0).counters().registrations, 1u) << "its messages";
  std::byte* far = fleet.pool(0).allocate(500'000);
  const Piece piece{far, 500'000};
  fleet.offer([&] { return fleet.at(0).post_recv({1, 0, 1, std::span(&piece, 1), 1}); });
  EXPECT_LE(fleet.at(0).counters().registrations, 3u) << "and at most two slabs";
  EXPECT_GE(fleet.at(0).counters().registrations, 2u);
  fleet.transports.clear();
}

}  // namespace
}  // namespace rdmacoll::conformance
