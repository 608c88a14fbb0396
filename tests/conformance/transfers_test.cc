#include <algorithm>

#include "conformance/harness.h"

namespace rdmacoll::conformance {
namespace {

constexpr uint64_t kSeeds = 20'250'000;

enum class Order { mixed, sends_first, receives_first };

// One transfer as both sides see it.
struct Exchange {
  int from = 0;
  int to = 0;
  Lane lane = 0;
  uint64_t sequence = 0;
  uint64_t cookie = 0;
  std::unique_ptr<Buffer> source;
  std::unique_ptr<Buffer> target;
};

struct Plan {
  int lanes = 4;
  int per_pair = 100;
  std::size_t pieces_max = 6;
  std::size_t bytes_min = 0;
  std::size_t bytes_max = 300'000;
  Order order = Order::mixed;
};

class Transfers : public testing::TestWithParam<Backend> {
 protected:
  void make(int ranks) { fleet_ = GetParam().make(ranks, kNeverSilent); }

  std::vector<Exchange> draw(const Plan& plan, std::mt19937_64& random) {
    std::vector<Exchange> all;
    uint64_t cookie = 1;
    for (int from = 0; from < fleet_->size(); ++from) {
      for (int to = 0; to < fleet_->size(); ++to) {
        if (from == to) continue;
        const Reach reach = transport(from).reach(to);
        const std::size_t max = std::min(plan.bytes_max, reach.transfer_bytes_max);
        const std::size_t min = std::min(plan.bytes_min, max);
        for (int i = 0; i < plan.per_pair; ++i) {
          Exchange exchange{.from = from, .to = to, .cookie = cookie++};
          exchange.lane = static_cast<Lane>(random() % static_cast<uint64_t>(plan.lanes));
          // Unique and far apart.
          exchange.sequence = static_cast<uint64_t>(i) | (random() % 3) << 40 | runs_ << 50;
          const std::size_t bytes = min + random_size(random, max - min);
          exchange.source = buffer(from, bytes, plan.pieces_max, random);
          exchange.target = buffer(to, bytes, plan.pieces_max, random);
          exchange.source->paint(exchange.cookie);
          all.push_back(std::move(exchange));
        }
      }
    }
    return all;
  }

  void run(const Plan& plan, uint64_t seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    ++runs_;
    std::vector<Exchange> all = draw(plan, random);
    note_what_ends(all);

    // Both halves of every exchange, in any order.
    std::vector<std::pair<bool, Exchange*>> halves;
    for (Exchange& exchange : all) {
      halves.emplace_back(true, &exchange);
      halves.emplace_back(false, &exchange);
    }
    std::shuffle(halves.begin(), halves.end(), random);
    if (plan.order != Order::mixed) {
      const bool sends_first = plan.order == Order::sends_first;
      std::stable_partition(halves.begin(), halves.end(),
                            [&](const auto& half) { return half.first == sends_first; });
    }
    for (const auto& [is_send, exchange] : halves) {
      post(is_send, *exchange);
      if (random() % 8 == 0) fleet_->poll_all();
      if (HasFatalFailure()) return;
    }
    const bool done = fleet_->poll_until([&] { return ended_ == 2 * all.size(); });
    ASSERT_TRUE(done) << ended_ << " of " << 2 * all.size() << " ended";
    EXPECT_TRUE(fleet_->poll_until([&] { return flushed(); }));
    for (const Recorder& sink : fleet_->sinks) EXPECT_TRUE(sink.failures.empty());
  }

  // A completion hands the memory back. The test therefore overwrites the source at once, so that a
  // late reader gets wrong bytes. It checks the target at once.
  void note_what_ends(std::vector<Exchange>& all) {
    ended_ = 0;
    for (Recorder& sink : fleet_->sinks) {
      sink.sent_cookies.clear();
      sink.received_cookies.clear();
    }
    for (int rank = 0; rank < fleet_->size(); ++rank) {
      Recorder& sink = fleet_->sinks[static_cast<std::size_t>(rank)];
      sink.on_sent = [this, &all, rank](uint64_t cookie) {
        EXPECT_EQ(all[cookie - 1].from, rank);
        all[cookie - 1].source->paint(~cookie);
        ++ended_;
      };
      sink.on_received = [this, &all, rank](uint64_t cookie) {
        EXPECT_EQ(all[cookie - 1].to, rank);
        EXPECT_TRUE(all[cookie - 1].target->is_painted(cookie)) << "transfer " << cookie;
        ++ended_;
      };
    }
  }

  void post(bool is_send, const Exchange& exchange) {
    Transfer transfer{
        .lane = exchange.lane, .sequence = exchange.sequence, .cookie = exchange.cookie};
    // The list of pieces need not outlive the call.
    std::vector<Piece> pieces;
    const auto span = (is_send ? exchange.source : exchange.target)->pieces();
    pieces.assign(span.begin(), span.end());
    transfer.pieces = pieces;
    transfer.peer = is_send ? exchange.to : exchange.from;
    fleet_->offer([&] {
      return is_send ? transport(exchange.from).post_send(transfer)
                     : transport(exchange.to).post_recv(transfer);
    });
    std::fill(pieces.begin(), pieces.end(), Piece{});
  }

  std::unique_ptr<Buffer> buffer(int rank, std::size_t bytes, std::size_t pieces_max,
                                 std::mt19937_64& random) {
    // The buffer lies in the pool or outside. Transports have short cuts for the pool.
    const bool pooled = bytes < 30'000 && random() % 2 == 0;
    MemoryPool* pool = pooled ? fleet_->pools[static_cast<std::size_t>(rank)].get() : nullptr;
    return std::make_unique<Buffer>(pool, bytes, pieces_max, random);
  }

  Transport& transport(int rank) { return *fleet_->transports[static_cast<std::size_t>(rank)]; }
  bool flushed() const {
    return std::all_of(fleet_->transports.begin(), fleet_->transports.end(),
                       [](const auto& transport) { return transport->flushed(); });
  }

  std::unique_ptr<Fleet> fleet_;
  std::size_t ended_ = 0;
  uint64_t runs_ = 0;  // no sequence is ever used twice
};

TEST_P(Transfers, thousands_in_flight_both_ways) {
  make(2);
  run({.lanes = 16, .per_pair = 3000}, kSeeds + 1);
  run({.lanes = 256, .per_pair = 3000}, kSeeds + 2);
}

TEST_P(Transfers, arrive_among_three_ranks) {
  make(3);
  for (uint64_t i = 0; i < 4; ++i) run({.per_pair = 200}, kSeeds + 10 + i);
}

TEST_P(Transfers, arrive_among_five_ranks) {
  make(5);
  for (uint64_t i = 0; i < 3; ++i) run({.per_pair = 60}, kSeeds + 20 + i);
}

TEST_P(Transfers, wait_for_receives_that_come_late) {
  make(2);
  run({.per_pair = 1500, .order = Order::sends_first}, kSeeds + 30);
}

TEST_P(Transfers, fill_receives_that_were_posted_long_before) {
  make(2);
  run({.per_pair = 1500, .order = Order::receives_first}, kSeeds + 31);
}

TEST_P(Transfers, are_cut_differently_on_both_sides) {
  make(2);
  run({.per_pair = 40, .pieces_max = 1500}, kSeeds + 32);
}

TEST_P(Transfers, may_be_large) {
  make(2);
  run({.per_pair = 4, .pieces_max = 3, .bytes_min = 5'000'000, .bytes_max = 9'000'000},
      kSeeds + 33);
}

TEST_P(Transfers, nothing_is_written_before_the_receive_and_other_lanes_go_on) {
  make(2);
  std::mt19937_64 random(kSeeds + 40);
  std::vector<Exchange> all;
  for (uint64_t cookie = 1; cookie <= 200; ++cookie) {
    Exchange exchange{.from = 0, .to = 1, .lane = static_cast<Lane>(cookie % 2), .cookie = cookie};
    exchange.sequence = cookie;
    exchange.source = std::make_unique<Buffer>(nullptr, 50'000, 1, random);
    exchange.target = std::make_unique<Buffer>(nullptr, 50'000, 1, random);
    exchange.source->paint(cookie);
    exchange.target->paint(0);
    all.push_back(std::move(exchange));
  }
  note_what_ends(all);
  for (const Exchange& exchange : all) post(true, exchange);
  for (const Exchange& exchange : all) {
    if (exchange.lane == 1) post(false, exchange);
  }
  const auto& received = fleet_->sinks[1].received_cookies;
  ASSERT_TRUE(fleet_->poll_until([&] { return received.size() == 100; })) << received.size();
  for (int i = 0; i < 1000; ++i) fleet_->poll_all();
  for (const Exchange& exchange : all) {
    EXPECT_EQ(received.contains(exchange.cookie), exchange.lane == 1);
    EXPECT_TRUE(exchange.lane == 1 || exchange.target->is_painted(0));
  }
  for (const Exchange& exchange : all) {
    if (exchange.lane == 0) post(false, exchange);
  }
  EXPECT_TRUE(fleet_->poll_until([&] { return ended_ == 400; })) << ended_;
}

INSTANTIATE_TEST_SUITE_P(over, Transfers, testing::ValuesIn(backends()), test_name);

}  // namespace
}  // namespace rdmacoll::conformance
