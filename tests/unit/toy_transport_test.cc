// A transport that Fabric does not know: one folder and one row.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "toy_transport/toy.h"
#include "unit/fabric_fixture.h"

namespace rdmacoll::fabric_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Puts the row of the toy before all others. `card_of`: what a rank says of it.
Edit with_toy(const std::function<TransportCard(int)>& card_of) {
  return [=](FabricOptions& options) {
    options.transports = transport_table();
    options.transports.insert(options.transports.begin(), toy::row(card_of(options.rank)));
  };
}

Edit both(const Edit& one, const Edit& other) {
  return [=](FabricOptions& options) {
    one(options);
    other(options);
  };
}

TransportCard has_it(int) { return {.has_devices = true}; }

TEST(ToyTransport, carries_messages_and_data_where_it_alone_is_allowed) {
  Cluster cluster(2, both(with_toy(has_it), only({"toy"})));
  const Status begun = cluster.begin();
  ASSERT_TRUE(begun.ok()) << begun.message();
  EXPECT_EQ(cluster.fabrics[0]->transport_name(), "toy");
  cluster.connect_all();
  ASSERT_TRUE(cluster.all_meet());
  EXPECT_EQ(cluster.fabrics[0]->reach(1).transport, "toy");
  EXPECT_EQ(cluster.fabrics[1]->summary(), "toy (1 peer)");

  std::vector<std::byte> source(3'000'000, std::byte{7}), target(3'000'000);
  const Piece from{source.data(), source.size()}, to{target.data(), target.size()};
  ASSERT_TRUE(cluster.fabrics[0]->post_control(1, bytes_of("hello")).ok());
  ASSERT_TRUE(cluster.fabrics[0]->post_send({1, 0, 1, std::span(&from, 1), 5}).ok());
  ASSERT_TRUE(cluster.fabrics[1]->post_recv({0, 0, 1, std::span(&to, 1), 6}).ok());
  ASSERT_TRUE(cluster.until([&] {
    return cluster.events[1].received_cookies.contains(6) && !cluster.events[1].messages.empty();
  }));
  EXPECT_EQ(cluster.events[1].messages[0].second, "hello");
  EXPECT_TRUE(source == target);
  EXPECT_GE(cluster.fabrics[0]->counters().bytes_sent, source.size());
}

TEST(ToyTransport, is_listed_for_commands) {
  EXPECT_EQ(transports_json({toy::row()}, {}),
            R"([{"name": "toy", "title": "TOY", "shares_memory": false, "via_nic": false, )"
            R"("is_off": false}])");
}

TEST(ToyTransport, is_listed_as_turned_off_where_settings_leave_it_out) {
  EXPECT_THAT(transports_json({toy::row()}, {.transports = {"tcp"}}),
              HasSubstr("\"is_off\": true"));
  EXPECT_THAT(transports_json({toy::row()}, {.transports = {"tcp", "toy"}}),
              HasSubstr("\"is_off\": false"));
}

TEST(ToyTransport, without_its_row_is_no_way_between_ranks) {
  Cluster cluster(2, only({"toy"}));
  const Status status = cluster.begin();
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("RDMACOLL_TRANSPORT=toy leaves no way"),
                                      HasSubstr("rank 0"), HasSubstr("Add tcp")));
}

TEST(ToyTransport, connects_the_ranks_that_both_have_it_and_others_take_the_next_row) {
  Cluster cluster(4, with_toy([](int rank) { return TransportCard{.has_devices = rank != 2}; }));
  ASSERT_TRUE(cluster.begin({0, 0, 0, 3}).ok());
  for (const auto& fabric : cluster.fabrics) EXPECT_EQ(fabric->transport_name(), "toy+shm+tcp");
  cluster.connect_all();
  ASSERT_TRUE(cluster.all_meet());
  for (int rank = 0; rank < 4; ++rank) {
    for (int peer = 0; peer < 4; ++peer) {
      if (peer == rank) continue;
      const bool is_toy = rank != 2 && peer != 2;
      const bool is_far = rank == 3 || peer == 3;
      EXPECT_EQ(cluster.fabrics[rank]->reach(peer).transport, is_toy   ? "toy"
                                                              : is_far ? "tcp"
                                                                       : "shm")
          << rank << " to " << peer;
    }
  }
  EXPECT_EQ(cluster.fabrics[2]->summary(), "shm (2 peers), tcp (1 peer)");
}

TEST(ToyTransport, is_ruled_out_for_all_by_one_rank_that_cannot_use_it) {
  Cluster cluster(3, with_toy([](int rank) {
                    return TransportCard{.obstacle = rank == 1 ? "it is broken." : "",
                                         .has_devices = true};
                  }));
  ASSERT_TRUE(cluster.begin().ok());
  EXPECT_EQ(cluster.fabrics[0]->transport_name(), "shm");
  ASSERT_EQ(cluster.fabrics[0]->notes().size(), 1u);
  EXPECT_THAT(cluster.fabrics[0]->notes()[0],
              AllOf(HasSubstr("no TOY, but TCP: rank 1 ("), HasSubstr("it is broken.")));
}

TEST(ToyTransport, that_was_requested_and_cannot_be_used_is_an_error) {
  Cluster cluster(2, with_toy([](int rank) {
                    return rank == 0 ? TransportCard{.request = "TOY=1"}
                                     : TransportCard{.obstacle = "it is broken."};
                  }));
  const Status status = cluster.begin();
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("TOY was requested (TOY=1 at rank 0"),
                                      HasSubstr("rank 1"), HasSubstr("it is broken.")));
}

}  // namespace
}  // namespace rdmacoll::fabric_test
