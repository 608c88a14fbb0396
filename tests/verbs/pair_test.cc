// Tests two connected queue pairs: every kind of request, errors, flushes, events.
#include <poll.h>

#include "verbs/verbs_fixture.h"

namespace rdmacoll::rdma {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(On, VerbsPair, testing::Values(On::one_device, On::two_devices),
                         [](const auto& info) {
                           return info.param == On::one_device ? "one_device" : "two_devices";
                         });

bool is_readable(int fd, int timeout_ms) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, timeout_ms) == 1;
}

TEST_P(VerbsPair, sends_both_ways) {
  for (auto [from, to] : {std::pair{&first_, &second_}, std::pair{&second_, &first_}}) {
    to->post_receive(41, 4096, 3000);
    const Sge piece = from->piece(100, 3000);
    from->post({.is_signalled = true, .id = 42, .pieces = {&piece, 1}});
    const Completion sent = from->next();
    EXPECT_EQ(sent.status, 0) << completion_text(sent.status);
    EXPECT_EQ(sent.kind, CompletionKind::sent);
    EXPECT_EQ(sent.id, 42u);
    const Completion received = to->next();
    EXPECT_EQ(received.status, 0) << completion_text(received.status);
    EXPECT_EQ(received.kind, CompletionKind::received);
    EXPECT_EQ(received.id, 41u);
    EXPECT_EQ(received.bytes, 3000u);
    EXPECT_TRUE(same(*from, 100, *to, 4096, 3000));
  }
}

TEST_P(VerbsPair, gathers_pieces_and_writes_where_the_key_says) {
  const std::array pieces = {first_.piece(0, 10), first_.piece(5000, 3000)};
  first_.post(write(pieces, 77, 1));
  EXPECT_EQ(first_.next().status, 0);
  EXPECT_TRUE(same(first_, 0, second_, 77, 10));
  EXPECT_TRUE(same(first_, 5000, second_, 87, 3000));
  EXPECT_TRUE(second_.has_none());  // a plain write is silent
}

TEST_P(VerbsPair, tells_of_a_write_with_its_immediate) {
  second_.post_receive(7, 0, 0);
  second_.post_receive(8, 0, 0);
  const Sge piece = first_.piece(0, 4096);
  SendRequest request = write({&piece, 1}, 4096, 2);
  request.kind = SendKind::write_with_immediate;
  request.immediate = 0x01020304;
  first_.post(request);
  request.pieces = {};  // the request has only the immediate
  request.immediate = 0xfffefdfc;
  request.id = 3;
  first_.post(request);
  for (const auto& [id, immediate] : {std::pair{7u, 0x01020304u}, std::pair{8u, 0xfffefdfcu}}) {
    const Completion received = second_.next();
    EXPECT_EQ(received.status, 0);
    EXPECT_EQ(received.kind, CompletionKind::received_immediate);
    EXPECT_EQ(received.id, id);
    EXPECT_EQ(received.immediate, immediate);
  }
  EXPECT_TRUE(same(first_, 0, second_, 4096, 4096));
  EXPECT_EQ(first_.next().id, 2u);
  EXPECT_EQ(first_.next().id, 3u);
}

TEST_P(VerbsPair, has_taken_an_inline_payload_when_the_call_returns) {
  ASSERT_GE(first_.pair->granted().inline_bytes, 64u);
  std::array<std::byte, 64> foreign;  // not registered, so no device can read it
  std::memcpy(foreign.data(), first_.memory.data(), foreign.size());
  const Sge piece{foreign.data(), foreign.size(), 0};
  SendRequest request = write({&piece, 1}, 1000, 5);
  request.is_inline = true;
  first_.post(request);
  foreign.fill(std::byte{0});
  EXPECT_EQ(first_.next().status, 0);
  EXPECT_TRUE(same(first_, 0, second_, 1000, 64));
}

TEST_P(VerbsPair, keeps_the_order_of_a_chain_and_completes_its_signalled_end_alone) {
  constexpr std::size_t kChain = 12;
  std::vector<ReceiveRequest> receives;
  for (std::size_t i = 0; i < kChain; ++i) {
    receives.push_back({100 + i, second_.piece(4096 + i * 100, 100)});
  }
  Status status;
  ASSERT_EQ(second_.pair->post_receives(receives, status), kChain) << status.message();
  for (int turn = 0; turn < 2; ++turn) {  // the first turn's space is free again in the second
    std::vector<Sge> pieces;
    for (std::size_t i = 0; i < kChain / 2; ++i) pieces.push_back(first_.piece(i * 333, 100));
    std::vector<SendRequest> chain;
    for (std::size_t i = 0; i < kChain / 2; ++i) {
      chain.push_back(
          {.is_signalled = i + 1 == kChain / 2, .id = 200 + i, .pieces = {&pieces[i], 1}});
    }
    ASSERT_EQ(first_.pair->post_sends(chain, status), chain.size()) << status.message();
    EXPECT_EQ(first_.next().id, 200 + kChain / 2 - 1);
    for (std::size_t i = 0; i < kChain / 2; ++i) {
      const std::size_t slot = turn * kChain / 2 + i;
      EXPECT_EQ(second_.next().id, 100 + slot);
      EXPECT_TRUE(same(first_, i * 333, second_, 4096 + slot * 100, 100)) << slot;
    }
  }
  EXPECT_TRUE(first_.has_none());
}

TEST_P(VerbsPair, a_full_queue_says_how_many_it_took) {
  connect_again({.rnr_retries = 7});  // 7: the sends wait for the receives below without limit
  const Sge piece = first_.piece(0, 8);
  const std::size_t granted = first_.pair->granted().sends;
  std::vector<SendRequest> chain(granted * 2 + 64);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    chain[i] = {.is_signalled = true, .id = i, .pieces = {&piece, 1}};
  }
  Status status;
  const std::size_t taken = first_.pair->post_sends(chain, status);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_GE(taken, granted);
  ASSERT_LT(taken, chain.size());  // some devices take up to twice what they granted
  EXPECT_EQ(first_.pair->post_sends(chain, status), 0u);
  EXPECT_TRUE(status.ok()) << status.message();
  for (std::size_t i = 0; i < taken; ++i) {
    second_.post_receive(i, 0, 8);
    EXPECT_EQ(second_.next().id, i);
    EXPECT_EQ(first_.next().id, i);
  }
  EXPECT_TRUE(first_.has_none());
}

TEST_P(VerbsPair, a_wrong_key_is_an_error_with_words_and_flushes_the_rest) {
  const Sge piece = first_.piece(0, 64);
  SendRequest wrong = write({&piece, 1}, 0, 1);
  wrong.remote_key ^= 0x5a5a00;
  const std::array chain = {wrong, write({&piece, 1}, 0, 2)};
  Status status;
  ASSERT_EQ(first_.pair->post_sends(chain, status), 2u) << status.message();
  const Completion failed = first_.next();
  EXPECT_EQ(failed.id, 1u);
  EXPECT_EQ(failed.queue_pair, first_.pair->local().queue_pair);
  EXPECT_THAT(completion_text(failed.status), HasSubstr("remote access error"));
  const Completion flushed = first_.next();
  EXPECT_EQ(flushed.id, 2u);
  EXPECT_EQ(flushed.status, kFlushed);
}

TEST_P(VerbsPair, a_write_beyond_the_registration_is_refused) {
  const Sge piece = first_.piece(0, 64);
  first_.post(write({&piece, 1}, kMemoryBytes - 63, 1));
  EXPECT_THAT(completion_text(first_.next().status), HasSubstr("remote access error"));
}

TEST_P(VerbsPair, a_receiver_that_is_not_ready_is_an_error_after_finite_retries) {
  connect_again({.rnr_retries = 2});
  const Sge piece = first_.piece(0, 64);
  first_.post({.is_signalled = true, .id = 1, .pieces = {&piece, 1}});
  EXPECT_THAT(completion_text(first_.next().status), HasSubstr("had no receive posted"));
}

TEST_P(VerbsPair, that_was_failed_flushes_what_was_posted) {
  first_.post_receive(1, 0, 64);
  first_.post_receive(2, 64, 64);
  first_.pair->fail();
  const Completion one = first_.next();
  const Completion two = first_.next();
  EXPECT_EQ(one.status, kFlushed);
  EXPECT_EQ(two.status, kFlushed);
  EXPECT_EQ(one.id + two.id, 3u);
  first_.pair->fail();  // a second call does no harm
}

TEST_P(VerbsPair, refuses_an_mtu_that_does_not_exist) {
  const Status status = first_.pair->connect(second_.pair->local(), {.mtu = 1500});
  EXPECT_THAT(status.message(), HasSubstr("1500"));
}

TEST_P(VerbsPair, refuses_a_way_that_does_not_exist) {
  std::unique_ptr<QueuePair> pair;
  ASSERT_TRUE(first_.device
                  ->create_queue_pair(kLimits, first_.rail.port, first_.rail.gid_index,
                                      first_.rail.pkey_index, pair)
                  .ok());
  const End end = second_.pair->local();
  constexpr int kUnusedGid = 255;
  const Status status = pair->connect(end, {.gid_index = kUnusedGid, .mtu = end.mtu});
  EXPECT_THAT(status.message(), AllOf(HasSubstr(first_.rail.device), HasSubstr(end.gid.text()),
                                      HasSubstr("cannot be set up")));
}

TEST_P(VerbsPair, wakes_a_sleeper_once_for_each_arming) {
  const int fd = second_.device->completion_fd();
  const Sge piece = first_.piece(0, 16);
  const SendRequest silent{.id = 9, .pieces = {&piece, 1}};
  // The loop has more turns than the number of events that are acknowledged together.
  for (uint64_t turn = 0; turn < 70; ++turn) {
    second_.post_receive(turn, 0, 16);
    ASSERT_TRUE(second_.device->arm().ok());
    ASSERT_TRUE(second_.has_none());  // no completion came before the device was armed
    SendRequest request = silent;
    request.is_signalled =
        turn % 8 == 7;  // without signals, the queue would never have space again
    first_.post(request);
    ASSERT_TRUE(is_readable(fd, 20'000)) << turn;
    second_.device->take_completion_events();
    EXPECT_EQ(second_.next().id, turn);
    if (request.is_signalled) {
      EXPECT_EQ(first_.next().id, 9u);
    }
    second_.device->take_completion_events();  // the sender's event, if one device is both ends
    ASSERT_FALSE(is_readable(fd, 0)) << turn;
  }
  // A device that is not armed raises no event.
  second_.post_receive(99, 0, 16);
  first_.post({.is_signalled = true, .id = 9, .pieces = {&piece, 1}});
  EXPECT_EQ(second_.next().id, 99u);
  EXPECT_FALSE(is_readable(fd, 50));
}

TEST_P(VerbsPair, has_no_async_event_when_all_is_well) {
  AsyncEvent event;
  EXPECT_FALSE(first_.device->take_async_event(event)) << event.text;
  EXPECT_FALSE(is_readable(first_.device->async_fd(), 0));
}

// Runs only in the guest. "b1" there is the far end of the first device's cable.
TEST(VerbsCable, that_is_pulled_and_put_back_is_two_events_of_the_port) {
  std::unique_ptr<Device> device;
  ASSERT_TRUE(verbs().open({.device = test_devices()[0], .completions = 16}, device).ok());
  for (const auto& [command, kind] : {std::pair{"ip link set b1 down", EventKind::port_down},
                                      std::pair{"ip link set b1 up", EventKind::port_up}}) {
    ASSERT_EQ(std::system(command), 0);
    bool seen = false;
    while (!seen && is_readable(device->async_fd(), 20'000)) {
      AsyncEvent event;
      while (device->take_async_event(event)) {
        if (event.kind != kind) continue;
        seen = true;
        EXPECT_EQ(event.port, 1);
        EXPECT_FALSE(event.text.empty());
      }
    }
    EXPECT_TRUE(seen) << command;
  }
}

}  // namespace
}  // namespace rdmacoll::rdma
