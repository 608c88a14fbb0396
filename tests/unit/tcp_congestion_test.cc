// The congestion control of TCP connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>

#include "transport/tcp/tcp_transport.h"
#include "unit/tcp_fixture.h"

namespace rdmacoll::tcp_test {
namespace {

using ::testing::HasSubstr;

std::string control_of(int socket) {
  char name[16] = {};  // TCP_CA_NAME_MAX
  socklen_t bytes = sizeof name;
  EXPECT_EQ(::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
  return name;
}

TEST(TcpCongestion, is_the_one_that_is_asked_for_on_every_stream) {
  // "reno" is in every kernel, and allowed to everybody.
  ManualClock clock;
  for (const bool asks : {true, false}) {
    const TcpOptions options{.streams = {.count = 2}, .congestion = asks ? "reno" : ""};
    TcpTransport transport{world_of(2, 0), clock, kPeerTimeout, options};
    for (int stream = 0; stream < 2; ++stream) {
      Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const int descriptor = socket.get();
      const std::string expected = asks ? "reno" : control_of(descriptor);
      if (stream == 0) transport.adopt(1, std::move(socket));
      if (stream > 0) transport.adopt_beside(1, stream, std::move(socket));
      EXPECT_EQ(control_of(descriptor), expected);
    }
  }
}

TEST(TcpCongestion, is_tried_before_it_is_needed) {
  EXPECT_TRUE(tcp::try_congestion_control("reno").ok());
  const Status status = tcp::try_congestion_control("nonesuch");
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(), HasSubstr("RDMACOLL_TCP_CONGESTION=nonesuch: the kernel does not "
                                          "have it (no such file or directory); choose one of "
                                          "those that it allows everybody: "));
  EXPECT_THAT(status.message(), HasSubstr("reno"));
}

}  // namespace
}  // namespace rdmacoll::tcp_test
