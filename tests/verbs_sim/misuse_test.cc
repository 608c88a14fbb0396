// If a user violates the rules of the verbs, the program ends and names the violation.
#include "verbs_sim/fixture.h"

namespace rdmacoll::verbs_sim {
namespace {

void post_pieces(Host& host, std::vector<rdma::Sge> pieces, bool is_inline = false) {
  const rdma::SendRequest request{
      .is_signalled = true, .is_inline = is_inline, .id = 1, .pieces = pieces};
  Status status;
  host.queue_pair->post_sends({&request, 1}, status);
}

TEST(VerbsSimMisuseDeathTest, memory_outside_a_registration) {
  Pair pair({});
  pair.connect();
  Host& host = pair.left();
  EXPECT_DEATH(post_pieces(host, {host.piece(4090, 7)}), "not in the registration");
  rdma::Sge piece = host.piece(0, 8);
  piece.local_key = host.keys().remote;
  EXPECT_DEATH(post_pieces(host, {piece}), "not in the registration");
  EXPECT_DEATH(host.post_receive(1, 4090, 7), "not in the registration");
  post_pieces(host, {host.piece(4090, 6)});  // access up to the last byte is allowed
}

TEST(VerbsSimMisuseDeathTest, more_than_was_granted) {
  Pair pair({});
  pair.connect();
  Host& host = pair.left();
  EXPECT_DEATH(post_pieces(host, {host.piece(0, 65)}, true), "65 bytes in a message.*inline");
  const rdma::Sge piece = host.piece(0, 1);
  EXPECT_DEATH(post_pieces(host, {piece, piece, piece}), "3 pieces, granted were 2");
}

TEST(VerbsSimMisuseDeathTest, a_registration_that_goes_before_its_requests) {
  Pair pair({});
  pair.connect();
  ASSERT_TRUE(pair.right().post_receive(1, 0, 8));
  EXPECT_DEATH(pair.right().registration.reset(), "has posted requests");
  ASSERT_TRUE(pair.left().post_send(1, 0, 8));
  EXPECT_TRUE(pair.fabric.run());
  EXPECT_DEATH(pair.left().registration.reset(), "has posted requests") << "not polled";
  EXPECT_EQ(pair.left().poll().size(), 1u);
  pair.left().registration.reset();
}

TEST(VerbsSimMisuseDeathTest, a_completion_queue_that_overflows) {
  HostOptions small{soft_roce(0)};
  small.completions = 4;
  Pair pair({}, small, {soft_roce(1)});
  pair.connect();
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(pair.left().post_write(i, 0, 8, pair.right(), 0));
  EXPECT_TRUE(pair.fabric.run());
  ASSERT_TRUE(pair.left().post_write(5, 0, 8, pair.right(), 0));
  EXPECT_DEATH(pair.fabric.run(), "overflows at 4 entries");
  EXPECT_EQ(pair.left().poll().size(), 4u);
  EXPECT_EQ(pair.finish(pair.left()).size(), 1u);
}

TEST(VerbsSimMisuseDeathTest, a_send_queue_without_any_signal) {
  Pair pair({});
  pair.connect();
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(pair.right().post_receive(i, 0, 8) && pair.left().post_send(i, 0, 8, false));
  }
  EXPECT_DEATH(pair.left().post_send(8, 0, 8), "none is ever given back");
}

TEST(VerbsSimMisuseDeathTest, an_order_of_calls_that_is_none) {
  Pair pair({});
  EXPECT_DEATH(pair.left().post_send(1, 0, 8), "before it is connected");
  pair.connect();
  EXPECT_DEATH(pair.connect(), "is connected again");
  EXPECT_DEATH(pair.left().device.reset(), "outlive their device rxe0");
  EXPECT_DEATH(
      {
        SimFabric fabric({});
        std::unique_ptr<rdma::Device> device;
        ASSERT_TRUE(fabric.add_host({soft_roce(0)}).open({"rxe0", 4}, device).ok());
        fabric.~SimFabric();
      },
      "1 devices outlive their fabric");
}

}  // namespace
}  // namespace rdmacoll::verbs_sim
