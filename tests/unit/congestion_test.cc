// The congestion control of TCP connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <string>

#include "bootstrap/sockets.h"

namespace rdmacoll {
namespace {

using ::testing::HasSubstr;

std::string control_of(const Fd& socket) {
  char name[16] = {};  // TCP_CA_NAME_MAX
  socklen_t bytes = sizeof name;
  EXPECT_EQ(::getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
  return name;
}

TEST(Congestion, control_is_set_before_the_connection_at_both_ends) {
  sockaddr_in loopback{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  SocketAddress address(reinterpret_cast<const sockaddr*>(&loopback));
  // Every kernel has "reno", and allows it to every user.
  Fd listener, caller;
  ASSERT_TRUE(listen_at(tcp_endpoint(address, "reno"), listener).ok());
  EXPECT_EQ(control_of(listener), "reno");
  address = local_address(listener.get());
  ASSERT_EQ(start_connect(tcp_endpoint(address, "reno"), caller), 0);
  EXPECT_EQ(control_of(caller), "reno");
  pollfd called{.fd = listener.get(), .events = POLLIN};
  ASSERT_EQ(::poll(&called, 1, 10'000), 1);
  const Fd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted);
  EXPECT_EQ(control_of(accepted), "reno");
}

TEST(Congestion, control_is_tried_before_it_is_needed) {
  EXPECT_TRUE(try_congestion_control("reno").ok());
  const Status status = try_congestion_control("nonesuch");
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(), HasSubstr("RDMACOLL_TCP_CONGESTION=nonesuch: the kernel does not "
                                          "have it (no such file or directory). It allows "
                                          "everybody: "));
  EXPECT_THAT(status.message(), HasSubstr("reno"));
}

}  // namespace
}  // namespace rdmacoll
