#include "bootstrap/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "base/fd.h"

namespace rdmacoll {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kHello = 88;
constexpr std::size_t kProof = 32;

std::vector<std::byte> secret_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Credentials rank_of(int rank, const std::string& secret = "a secret of 16 B",
                    const std::string& job = "job", uint32_t epoch = 1) {
  return {job, epoch, rank, 4, secret_of(secret)};
}

std::pair<Fd, Fd> sockets() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

std::vector<std::byte> receive(const Fd& socket, std::size_t bytes) {
  std::vector<std::byte> buffer(bytes);
  const ssize_t count = ::recv(socket.get(), buffer.data(), bytes, MSG_DONTWAIT);
  buffer.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  return buffer;
}

void transmit(const Fd& socket, std::span<const std::byte> bytes) {
  ASSERT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

// Advances both sides until neither can go on. A side that fails closes its socket.
struct Meeting {
  Fd left, right;
  Status dialer, listener;
  bool dialer_done = false, listener_done = false;
  int listener_peer = -1;
  bool dialer_refused = false, listener_refused = false;

  Meeting(const Credentials& a, int peer, const Credentials& b) {
    std::tie(left, right) = sockets();
    Handshake dial = Handshake::dial(a, Role::data, peer, 0);
    Handshake listen = Handshake::listen(b, Role::data, 0);
    for (int turn = 0; turn < 6; ++turn) {
      if (dialer.ok() && !dial.done()) dialer = dial.advance(left.get(), 0);
      if (!dialer.ok()) left.reset();
      if (listener.ok() && !listen.done()) listener = listen.advance(right.get(), 0);
      if (!listener.ok()) right.reset();
    }
    dialer_done = dialer.ok() && dial.done();
    listener_done = listener.ok() && listen.done();
    listener_peer = listen.peer();
    dialer_refused = dial.is_refused();
    listener_refused = listen.is_refused();
  }
};

TEST(Handshake, ranks_of_one_job_meet) {
  const Credentials a = rank_of(1), b = rank_of(2);
  Meeting meeting(a, 2, b);
  EXPECT_TRUE(meeting.dialer_done) << meeting.dialer.message();
  EXPECT_TRUE(meeting.listener_done) << meeting.listener.message();
  EXPECT_EQ(meeting.listener_peer, 1);
}

TEST(Handshake, says_which_stream_it_is) {
  Credentials a = rank_of(1), b = rank_of(2);
  a.streams = b.streams = 3;
  const auto meet = [&](int stream, Handshake& listen) {
    auto [left, right] = sockets();
    Handshake dial = Handshake::dial(a, Role::data, 2, 0, stream);
    Status status;
    for (int turn = 0; turn < 3 && status.ok() && !listen.done(); ++turn) {
      EXPECT_TRUE(dial.done() || dial.advance(left.get(), 0).ok());
      status = listen.advance(right.get(), 0);
    }
    return status;
  };
  for (const int stream : {0, 1, 2}) {
    Handshake listen = Handshake::listen(b, Role::data, 0);
    ASSERT_TRUE(meet(stream, listen).ok());
    EXPECT_EQ(listen.stream(), stream);
    EXPECT_EQ(listen.peer(), 1);
  }
  Handshake listen = Handshake::listen(b, Role::data, 0);
  EXPECT_THAT(meet(3, listen).message(), HasSubstr("it calls with stream 4 of 3"));
}

struct Refusal {
  Credentials caller;
  int callee;
  std::string dialer_says, listener_says;
};

TEST(Handshake, a_stranger_is_refused_on_both_sides_with_the_reason) {
  const Credentials home = rank_of(2);
  const std::vector<Refusal> cases = {
      {rank_of(1, "a wrong secret!!"), 2, "rank 2 does not know the secret", "another secret"},
      {rank_of(1, ""), 2, "does not know the secret", "another secret"},
      {rank_of(1, "a secret of 16 B", "other"), 2, "another job", "another job"},
      {rank_of(1, "a secret of 16 B", "job", 7), 2, "in epoch 1, not in epoch 7",
       "in epoch 7, not in epoch 1"},
      {rank_of(1), 3, "it is rank 2, not rank 3", "looking for rank 3 and found rank 2"},
      {rank_of(2), 2, "", "this rank, 2"},
      {rank_of(9), 2, "", "it says that it is rank 9 of 4"},
      {rank_of(-1), 2, "", "it says that it is rank -1 of 4"},
  };
  for (const Refusal& one : cases) {
    SCOPED_TRACE(one.listener_says);
    Meeting meeting(one.caller, one.callee, home);
    EXPECT_FALSE(meeting.dialer_done);
    EXPECT_FALSE(meeting.listener_done);
    EXPECT_THAT(meeting.dialer.message(), HasSubstr(one.dialer_says));
    EXPECT_THAT(meeting.listener.message(), HasSubstr(one.listener_says));
    for (const Status* status : {&meeting.dialer, &meeting.listener}) {
      EXPECT_FALSE(status->ok());
      EXPECT_THAT(status->message(), Not(HasSubstr("a secret of 16 B")));
      EXPECT_THAT(status->message(), Not(HasSubstr("a wrong secret!!")));
    }
  }
}

TEST(Handshake, only_a_wrong_secret_is_final) {
  const Credentials home = rank_of(2);
  EXPECT_TRUE(Meeting(rank_of(1, "a wrong secret!!"), 2, home).dialer_refused);
  EXPECT_FALSE(Meeting(rank_of(1, "a secret of 16 B", "other"), 2, home).dialer_refused);
  EXPECT_FALSE(Meeting(rank_of(1), 3, home).dialer_refused);
}

TEST(Handshake, a_recorded_call_is_refused) {
  const Credentials a = rank_of(1), b = rank_of(2);
  std::vector<std::byte> hello, proof;
  {  // a man in the middle records a good call
    auto [dial_end, middle_left] = sockets();
    auto [middle_right, listen_end] = sockets();
    Handshake dial = Handshake::dial(a, Role::data, 2, 0);
    Handshake listen = Handshake::listen(b, Role::data, 0);
    ASSERT_TRUE(dial.advance(dial_end.get(), 0).ok());
    transmit(middle_right, hello = receive(middle_left, 1000));
    ASSERT_TRUE(listen.advance(listen_end.get(), 0).ok());
    transmit(middle_left, receive(middle_right, 1000));
    ASSERT_TRUE(dial.advance(dial_end.get(), 0).ok());
    transmit(middle_right, proof = receive(middle_left, 1000));
    ASSERT_TRUE(listen.advance(listen_end.get(), 0).ok());
    ASSERT_TRUE(listen.done());
  }
  ASSERT_EQ(hello.size(), kHello);
  ASSERT_EQ(proof.size(), kProof);
  auto [replay, listen_end] = sockets();
  Handshake listen = Handshake::listen(b, Role::data, 0);
  transmit(replay, hello);
  ASSERT_TRUE(listen.advance(listen_end.get(), 0).ok());
  transmit(replay, proof);
  const Status status = listen.advance(listen_end.get(), 0);
  EXPECT_THAT(status.message(), HasSubstr("rank 1 does not know the secret"));
  EXPECT_FALSE(listen.done());
}

TEST(Handshake, a_reflected_proof_is_refused) {
  const Credentials a = rank_of(1), b = rank_of(2);
  auto [dial_end, middle_left] = sockets();
  auto [middle_right, listen_end] = sockets();
  Handshake dial = Handshake::dial(a, Role::data, 2, 0);
  Handshake listen = Handshake::listen(b, Role::data, 0);
  ASSERT_TRUE(dial.advance(dial_end.get(), 0).ok());
  transmit(middle_right, receive(middle_left, 1000));
  ASSERT_TRUE(listen.advance(listen_end.get(), 0).ok());
  const std::vector<std::byte> answer = receive(middle_right, 1000);
  ASSERT_EQ(answer.size(), kHello + kProof);
  transmit(middle_right, std::span(answer).subspan(kHello));  // its own proof, back
  EXPECT_THAT(listen.advance(listen_end.get(), 0).message(), HasSubstr("does not know the secret"));
}

TEST(Handshake, a_reflected_call_is_refused) {
  const Credentials a = rank_of(1);
  auto [dial_end, mirror] = sockets();
  Handshake dial = Handshake::dial(a, Role::data, 2, 0);
  ASSERT_TRUE(dial.advance(dial_end.get(), 0).ok());
  std::vector<std::byte> echo = receive(mirror, 1000);
  echo.resize(kHello + kProof);
  transmit(mirror, echo);
  EXPECT_THAT(dial.advance(dial_end.get(), 0).message(), HasSubstr("it is rank 1, not rank 2"));
}

// Any single changed bit, in any of the three messages.
TEST(Handshake, any_changed_byte_is_noticed) {
  const Credentials a = rank_of(1), b = rank_of(2);
  for (int message = 0; message < 3; ++message) {
    const std::size_t length = message == 0 ? kHello : message == 1 ? kHello + kProof : kProof;
    for (std::size_t at = 0; at < length; ++at) {
      auto [dial_end, middle_left] = sockets();
      auto [middle_right, listen_end] = sockets();
      Handshake dial = Handshake::dial(a, Role::data, 2, 0);
      Handshake listen = Handshake::listen(b, Role::data, 0);
      Status dialer = dial.advance(dial_end.get(), 0);
      Status listener;
      for (int turn = 0; turn < 3 && dialer.ok() && listener.ok(); ++turn) {
        const bool forth = turn != 1;
        std::vector<std::byte> bytes = receive(forth ? middle_left : middle_right, 1000);
        if (turn == message) bytes[at] ^= std::byte{0x40};
        transmit(forth ? middle_right : middle_left, bytes);
        if (forth) {
          listener = listen.advance(listen_end.get(), 0);
        } else {
          dialer = dial.advance(dial_end.get(), 0);
        }
      }
      EXPECT_FALSE(listener.ok() && dialer.ok()) << "message " << message << ", byte " << at;
      EXPECT_FALSE(listener.ok() && listen.done()) << "message " << message << ", byte " << at;
    }
  }
}

TEST(Handshake, garbage_is_refused) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const Credentials a = rank_of(1), b = rank_of(2);
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<std::byte> garbage(kHello + kProof);
    for (std::byte& byte : garbage) byte = static_cast<std::byte>(random());
    auto [unknown, end] = sockets();
    transmit(unknown, garbage);
    Handshake handshake =
        turn % 2 == 0 ? Handshake::listen(b, Role::data, 0) : Handshake::dial(a, Role::data, 2, 0);
    const Status status = handshake.advance(end.get(), 0);
    EXPECT_THAT(status.message(), HasSubstr("not rdmacoll"));
    if (turn % 2 == 1) continue;
    EXPECT_EQ(receive(unknown, kHello + kProof).size(), 0u) << "a unknown got an answer";
  }
}

TEST(Handshake, a_dribbling_caller_is_dropped_after_ten_seconds) {
  const Credentials a = rank_of(1), b = rank_of(2);
  auto [dial_end, middle] = sockets();
  auto [slow, listen_end] = sockets();
  Handshake dial = Handshake::dial(a, Role::data, 2, 0);
  ASSERT_TRUE(dial.advance(dial_end.get(), 0).ok());
  const std::vector<std::byte> hello = receive(middle, 1000);
  Handshake listen = Handshake::listen(b, Role::data, 0);
  Status status;
  std::size_t sent = 0;
  for (Nanoseconds now = 0; status.ok() && sent < hello.size(); now += kSecond, ++sent) {
    transmit(slow, std::span(hello).subspan(sent, 1));
    status = listen.advance(listen_end.get(), now);
  }
  EXPECT_EQ(sent, 11u);
  EXPECT_THAT(status.message(), HasSubstr("no end after 10 s"));
}

TEST(Handshake, of_a_door_for_several_worlds_takes_the_one_that_is_called) {
  const Credentials host = rank_of(2), secondary = rank_of(3, "another, of 16 B", "job ps");
  const Credentials twin = rank_of(1, "another, of 16 B", "job ps");  // in the same process
  const auto meet = [&](const Credentials& caller, int peer, Handshake& listen) {
    auto [left, right] = sockets();
    Handshake dial = Handshake::dial(caller, Role::data, peer, 0);
    Status status;
    for (int turn = 0; turn < 3 && status.ok() && !listen.done(); ++turn) {
      EXPECT_TRUE(dial.done() || dial.advance(left.get(), 0).ok());
      status = listen.advance(right.get(), 0);
    }
    return status;
  };
  const Credentials a = rank_of(0), b = rank_of(0, "another, of 16 B", "job ps");
  Handshake first = Handshake::listen(host, Role::data, 0, {&secondary, &twin});
  ASSERT_TRUE(meet(a, 2, first).ok());
  EXPECT_EQ(&first.credentials(), &host);
  Handshake second = Handshake::listen(host, Role::data, 0, {&secondary, &twin});
  ASSERT_TRUE(meet(b, 3, second).ok());
  EXPECT_EQ(&second.credentials(), &secondary);
  EXPECT_EQ(second.peer(), 0);
  Handshake third = Handshake::listen(host, Role::data, 0, {&secondary, &twin});
  EXPECT_THAT(meet(b, 2, third).message(), HasSubstr("it belongs to another job"));
  // A world refuses the secret of another world.
  const Credentials thief = rank_of(0, "a secret of 16 B", "job ps");
  Handshake fourth = Handshake::listen(host, Role::data, 0, {&secondary, &twin});
  auto [left, right] = sockets();
  Handshake dial = Handshake::dial(thief, Role::data, 3, 0);
  ASSERT_TRUE(dial.advance(left.get(), 0).ok());
  ASSERT_TRUE(fourth.advance(right.get(), 0).ok());
  EXPECT_THAT(dial.advance(left.get(), 0).message(), HasSubstr("does not know the secret"));
}

TEST(Handshake, works_byte_by_byte) {
  const Credentials a = rank_of(1), b = rank_of(2);
  auto [dial_end, middle_left] = sockets();
  auto [middle_right, listen_end] = sockets();
  Handshake dial = Handshake::dial(a, Role::data, 2, 0);
  Handshake listen = Handshake::listen(b, Role::data, 0);
  for (int turn = 0; turn < 1000 && !(dial.done() && listen.done()); ++turn) {
    ASSERT_TRUE(dial.done() || dial.advance(dial_end.get(), 0).ok());
    ASSERT_TRUE(listen.done() || listen.advance(listen_end.get(), 0).ok());
    transmit(middle_right, receive(middle_left, 1));
    transmit(middle_left, receive(middle_right, 1));
  }
  EXPECT_TRUE(dial.done() && listen.done());
}

TEST(Handshake, reads_no_byte_of_what_follows) {
  const Credentials a = rank_of(1), b = rank_of(2);
  auto [dial_end, middle_left] = sockets();
  auto [middle_right, listen_end] = sockets();
  Handshake dial = Handshake::dial(a, Role::data, 2, 0);
  Handshake listen = Handshake::listen(b, Role::data, 0);
  const std::vector<std::byte> frame(100, std::byte{0x5a});
  ASSERT_TRUE(dial.advance(dial_end.get(), 0).ok());
  transmit(middle_right, receive(middle_left, 1000));
  ASSERT_TRUE(listen.advance(listen_end.get(), 0).ok());
  std::vector<std::byte> answer = receive(middle_right, 1000);
  answer.insert(answer.end(), frame.begin(), frame.end());
  transmit(middle_left, answer);
  ASSERT_TRUE(dial.advance(dial_end.get(), 0).ok());
  std::vector<std::byte> proof = receive(middle_left, 1000);
  proof.insert(proof.end(), frame.begin(), frame.end());
  transmit(middle_right, proof);
  ASSERT_TRUE(listen.advance(listen_end.get(), 0).ok());
  EXPECT_TRUE(dial.done() && listen.done());
  EXPECT_EQ(receive(dial_end, 1000), frame);
  EXPECT_EQ(receive(listen_end, 1000), frame);
}

}  // namespace
}  // namespace rdmacoll
