#include "bootstrap/path_check.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>

#include "base/fd.h"

namespace rdmacoll {
namespace {

using ::testing::HasSubstr;

// Returns both ends of a loopback connection whose segments have at most `segment_bytes` bytes. 0:
// the loopback's own size.
std::pair<Fd, Fd> connection(int segment_bytes) {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Fd left(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  for (const Fd* one : {&listener, &left}) {
    if (segment_bytes == 0) break;
    EXPECT_EQ(::setsockopt(one->get(), IPPROTO_TCP, TCP_MAXSEG, &segment_bytes, sizeof(int)), 0);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  EXPECT_EQ(::connect(left.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  Fd right(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return {std::move(left), std::move(right)};
}

std::size_t waiting_bytes(const Fd& socket) {
  std::array<char, 1 << 16> buffer{};
  const ssize_t count = ::recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  return count < 0 ? 0 : static_cast<std::size_t>(count);
}

class PathChecks : public testing::TestWithParam<int> {};

TEST_P(PathChecks, pass_on_a_good_path_and_read_no_byte_beyond_themselves) {
  auto [left, right] = connection(GetParam());
  PathCheck one, other;
  one.begin(left.get(), 0);
  other.begin(right.get(), 0);
  EXPECT_FALSE(one.done());
  for (int turn = 0; turn < 1000 && !one.done(); ++turn) {
    ASSERT_TRUE(other.done() || other.advance(right.get(), 0).ok());
    ASSERT_TRUE(one.advance(left.get(), 0).ok());
  }
  ASSERT_EQ(::send(left.get(), "next", 4, MSG_NOSIGNAL), 4);
  for (int turn = 0; turn < 1000 && !other.done(); ++turn) {
    ASSERT_TRUE(other.advance(right.get(), 0).ok());
  }
  EXPECT_TRUE(one.done() && other.done());
  EXPECT_FALSE(one.has_found_fault() || other.has_found_fault());
  EXPECT_EQ(waiting_bytes(right), 4);
  EXPECT_EQ(one.deadline(), kNever);
}

INSTANTIATE_TEST_SUITE_P(Segments, PathChecks, testing::Values(0, 1400, 8948));

// The stopped process's kernel takes the segment, so the path is good.
TEST(PathCheck, a_process_that_is_stopped_is_not_blamed_on_the_path) {
  auto [left, right] = connection(1400);
  PathCheck check;
  check.begin(left.get(), 0);
  ASSERT_TRUE(check.advance(left.get(), 0).ok());
  EXPECT_EQ(check.deadline(), kPathTimeout);
  ASSERT_TRUE(check.advance(left.get(), kPathTimeout - 1).ok());
  const Status status = check.advance(left.get(), kPathTimeout);
  EXPECT_THAT(status.message(), HasSubstr("does not answer within 5 s"));
  EXPECT_FALSE(check.has_found_fault());
}

TEST(PathCheck, a_length_that_cannot_be_ends_it) {
  auto [left, right] = connection(1400);
  PathCheck check;
  check.begin(left.get(), 0);
  const uint32_t length = 1 << 20;
  ASSERT_EQ(::send(right.get(), &length, sizeof length, MSG_NOSIGNAL), 4);
  Status status;
  for (int turn = 0; turn < 1000 && status.ok(); ++turn) status = check.advance(left.get(), 0);
  EXPECT_THAT(status.message(), HasSubstr("a segment of 1048576 bytes"));
}

TEST(PathCheck, other_sockets_have_nothing_to_check) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const Fd left(fds[0]), right(fds[1]);
  PathCheck check;
  check.begin(left.get(), 0);
  EXPECT_TRUE(check.done());
  EXPECT_EQ(waiting_bytes(right), 0);
}

}  // namespace
}  // namespace rdmacoll
