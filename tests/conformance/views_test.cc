#include <algorithm>

#include "conformance/harness.h"

namespace rdmacoll::conformance {
namespace {

constexpr uint64_t kSeeds = 20'250'100;

struct Showing {
  int from = 0;
  int to = 0;
  Lane lane = 0;
  uint64_t sequence = 0;
  uint64_t cookie = 0;
  std::unique_ptr<Buffer> source;
};

class Views : public testing::TestWithParam<Backend> {
 protected:
  void make(int ranks) { fleet_ = GetParam().make(ranks, kNeverSilent); }
  Transport& transport(int rank) { return *fleet_->transports[static_cast<std::size_t>(rank)]; }
  Recorder& sink(int rank) { return fleet_->sinks[static_cast<std::size_t>(rank)]; }

  std::unique_ptr<Buffer> buffer(int from, int to, std::size_t bytes, std::mt19937_64& random) {
    const Reach reach = transport(from).reach(to);
    const bool foreign = reach.foreign_views && random() % 2 == 0;
    MemoryPool* pool = foreign ? nullptr : fleet_->pools[static_cast<std::size_t>(from)].get();
    return std::make_unique<Buffer>(pool, bytes, std::min<std::size_t>(9, reach.view_pieces_max),
                                    random);
  }

  void publish(const Showing& showing) {
    const Transfer transfer{.peer = showing.to,
                            .lane = showing.lane,
                            .sequence = showing.sequence,
                            .pieces = showing.source->pieces(),
                            .cookie = showing.cookie};
    fleet_->offer([&] { return transport(showing.from).publish(transfer); });
  }
  void await(const Showing& showing) {
    fleet_->offer([&] {
      return transport(showing.to)
          .await(showing.from, showing.lane, showing.sequence, showing.cookie);
    });
  }
  void release(const Showing& showing) {
    fleet_->offer([&] {
      return transport(showing.to).release(showing.from, showing.lane, showing.sequence);
    });
  }

  void run(int per_pair, uint64_t seed);

  std::unique_ptr<Fleet> fleet_;
  uint64_t runs_ = 0;
};

void Views::run(int per_pair, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  std::vector<Showing> all;
  std::vector<std::pair<bool, std::size_t>> halves;
  for (int from = 0; from < fleet_->size(); ++from) {
    for (int to = 0; to < fleet_->size(); ++to) {
      for (int i = 0; from != to && i < per_pair; ++i) {
        Showing showing{.from = from, .to = to, .cookie = all.size() + 1};
        showing.lane = static_cast<Lane>(random() % 5);
        showing.sequence = static_cast<uint64_t>(i) | (random() % 2) << 63;
        showing.source = buffer(from, to, random_size(random, 100'000), random);
        showing.source->paint(showing.cookie);
        halves.emplace_back(true, all.size());
        halves.emplace_back(false, all.size());
        all.push_back(std::move(showing));
      }
    }
  }
  // The reader owns published memory until it releases it. The test overwrites the memory as soon
  // as `sent` arrives.
  for (int rank = 0; rank < fleet_->size(); ++rank) {
    sink(rank).on_sent = [&all, rank](uint64_t cookie) {
      EXPECT_EQ(all[cookie - 1].from, rank);
      all[cookie - 1].source->paint(~cookie);
    };
  }

  std::shuffle(halves.begin(), halves.end(), random);
  std::vector<std::size_t> held;
  std::size_t released = 0;
  const auto let_go = [&](std::size_t keep) {
    for (std::size_t i = 0; i < held.size() && held.size() > keep;) {
      const Showing& showing = all[held[i]];
      Recorder& reader = sink(showing.to);
      if (!reader.views.contains(showing.cookie)) {
        ++i;
        continue;
      }
      EXPECT_FALSE(sink(showing.from).sent_cookies.contains(showing.cookie));
      EXPECT_TRUE(is_painted(bytes_of_view(reader.views.at(showing.cookie)), showing.cookie));
      release(showing);
      ++released;
      std::swap(held[i], held.back());
      held.pop_back();
    }
  };
  for (const auto& [is_publish, index] : halves) {
    if (is_publish) {
      publish(all[index]);
    } else {
      await(all[index]);
      held.push_back(index);
    }
    if (random() % 8 == 0) fleet_->poll_all();
    if (random() % 64 == 0) let_go(per_pair / 2);
    if (HasFatalFailure()) return;
  }
  const bool done = fleet_->poll_until([&] {
    let_go(0);
    return released == all.size();
  });
  EXPECT_TRUE(done) << released << " of " << all.size();
  std::size_t sent = 0;
  EXPECT_TRUE(fleet_->poll_until([&] {
    sent = 0;
    for (const Recorder& recorder : fleet_->sinks) sent += recorder.sent_cookies.size();
    return sent == all.size();
  })) << sent;
  for (const Recorder& recorder : fleet_->sinks) EXPECT_TRUE(recorder.failures.empty());
}

TEST_P(Views, thousands_at_once_between_two_ranks) {
  make(2);
  run(2500, kSeeds + 1);
}

TEST_P(Views, show_what_was_published_among_three_ranks) {
  make(3);
  run(250, kSeeds + 2);
}

TEST_P(Views, show_what_was_published_among_five_ranks) {
  make(5);
  run(60, kSeeds + 3);
}

TEST_P(Views, the_publisher_is_told_when_the_reader_lets_go_and_not_before) {
  make(2);
  std::mt19937_64 random(kSeeds + 4);
  for (const bool await_first : {true, false}) {
    Showing showing{.from = 0, .to = 1, .lane = 3, .sequence = await_first, .cookie = 70};
    showing.cookie += await_first;
    showing.source = buffer(0, 1, 5000, random);
    showing.source->paint(showing.cookie);
    if (await_first) await(showing);
    for (int i = 0; i < 100; ++i) fleet_->poll_all();
    EXPECT_FALSE(sink(1).views.contains(showing.cookie));
    publish(showing);
    for (int i = 0; i < 100; ++i) fleet_->poll_all();
    EXPECT_EQ(sink(1).views.contains(showing.cookie), await_first);
    if (!await_first) await(showing);
    ASSERT_TRUE(fleet_->poll_until([&] { return sink(1).views.contains(showing.cookie); }));
    for (int i = 0; i < 1000; ++i) fleet_->poll_all();
    EXPECT_FALSE(sink(0).sent_cookies.contains(showing.cookie));
    EXPECT_TRUE(is_painted(bytes_of_view(sink(1).views.at(showing.cookie)), showing.cookie));
    release(showing);
    ASSERT_TRUE(fleet_->poll_until([&] { return sink(0).sent_cookies.contains(showing.cookie); }));
  }
}

TEST_P(Views, live_beside_transfers_of_the_same_lane_and_sequence) {
  make(2);
  std::mt19937_64 random(kSeeds + 5);
  Showing showing{.from = 0, .to = 1, .lane = 1, .sequence = 9, .cookie = 1};
  showing.source = buffer(0, 1, 3000, random);
  showing.source->paint(1);
  Buffer source(nullptr, 4000, 3, random);
  Buffer target(nullptr, 4000, 3, random);
  source.paint(2);
  Transfer transfer{.peer = 1, .lane = 1, .sequence = 9, .pieces = source.pieces(), .cookie = 2};
  fleet_->offer([&] { return transport(0).post_send(transfer); });
  publish(showing);
  await(showing);
  transfer.peer = 0;
  transfer.pieces = target.pieces();
  fleet_->offer([&] { return transport(1).post_recv(transfer); });
  ASSERT_TRUE(fleet_->poll_until(
      [&] { return sink(1).views.contains(1) && sink(1).received_cookies.contains(2); }));
  EXPECT_TRUE(target.is_painted(2));
  EXPECT_TRUE(is_painted(bytes_of_view(sink(1).views.at(1)), 1));
  release(showing);
  EXPECT_TRUE(fleet_->poll_until([&] { return sink(0).sent_cookies.contains(1); }));
}

TEST_P(Views, are_read_from_any_offset) {
  make(2);
  std::mt19937_64 random(kSeeds + 6);
  Showing showing{.from = 1, .to = 0, .cookie = 1};
  const bool foreign = transport(1).reach(0).foreign_views;
  showing.source = std::make_unique<Buffer>(
      foreign ? nullptr : fleet_->pools[1].get(), 200'000,
      std::min<std::size_t>(60, transport(1).reach(0).view_pieces_max), random);
  showing.source->paint(1);
  publish(showing);
  await(showing);
  ASSERT_TRUE(fleet_->poll_until([&] { return sink(0).views.contains(1); }));
  const Recorder::Seen& seen = sink(0).views.at(1);
  const std::vector<std::byte> whole = bytes_of_view(seen);
  ASSERT_TRUE(is_painted(whole, 1));
  for (const RemotePiece& piece : seen.pieces) {
    EXPECT_TRUE(seen.reader != nullptr || piece.mapped != nullptr || piece.bytes == 0);
  }
  for (int i = 0; seen.reader != nullptr && i < 500; ++i) {
    const std::size_t skip = random() % whole.size();
    std::vector<std::byte> part(random() % (whole.size() - skip + 1));
    const Status read = seen.reader->read(seen.pieces, skip, part.data(), part.size());
    ASSERT_TRUE(read.ok()) << read.message();
    ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<long>(skip)));
  }
}

INSTANTIATE_TEST_SUITE_P(over, Views, testing::ValuesIn(backends_with_views()), test_name);

}  // namespace
}  // namespace rdmacoll::conformance
