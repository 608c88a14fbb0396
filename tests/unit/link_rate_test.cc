// The rates of the links between nodes, and the link model that follows from them.
#include "bootstrap/link_rate.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "algorithm_names.h"
#include "base/text.h"
#include "collectives/choose.h"
#include "own_path.h"

namespace rdmacoll {
namespace {

SocketAddress host(const char* text) { return *SocketAddress::parse_host(text); }

TEST(LinkRate, is_that_of_the_interface_on_whose_network_the_peer_is) {
  const std::vector<InterfaceAddress> ours = {
      {"lo", host("127.0.0.1"), 8, true},  {"eth0", host("192.168.4.7"), 24, true},
      {"ib0", host("10.1.0.7"), 16, true}, {"ib1", host("10.2.0.7"), 16, false},
      {"ib2", host("fd00::7"), 64, true},  {"eth1:2", host("10.1.4.7"), 24, true}};
  EXPECT_EQ(interface_towards(host("10.1.9.9"), ours), "ib0");
  EXPECT_EQ(interface_towards(host("10.1.4.9"), ours), "eth1");
  EXPECT_EQ(interface_towards(host("192.168.4.1"), ours), "eth0");
  EXPECT_EQ(interface_towards(host("fd00::9"), ours), "ib2");
  EXPECT_EQ(interface_towards(host("10.2.0.9"), ours), "");  // it is down
  EXPECT_EQ(interface_towards(host("8.8.8.8"), ours), "");   // behind a router
}

TEST(LinkRate, is_unknown_where_the_kernel_does_not_say_it) {
  const std::filesystem::path root = own_path("link_rate");
  std::filesystem::remove_all(root);
  const auto write = [&](const char* interface, const char* text) {
    std::filesystem::create_directories(root / interface);
    std::ofstream(root / interface / "speed") << text;
  };
  write("eth0", "1000\n");
  write("eth1", "25000\n");
  write("virtual", "-1\n");
  write("old", "4294967295\n");
  write("odd", "");
  EXPECT_EQ(interface_gbit_per_s(root, "eth0"), 1);
  EXPECT_EQ(interface_gbit_per_s(root, "eth1"), 25);
  for (const char* unknown : {"virtual", "old", "odd", "missing", ""}) {
    EXPECT_EQ(interface_gbit_per_s(root, unknown), 0) << unknown;
  }
  std::filesystem::remove_all(root);
}

LinkModel at(LinkModel links, double times) {
  links.network.bytes_per_us *= times;
  return links;
}

TEST(LinkRate, moves_where_a_ring_begins_over_tcp) {
  const auto chosen = [](const LinkModel& links, double times, uint64_t bytes) {
    const Facts facts{.ranks = 4, .one_node = false, .bytes = bytes};
    return choose(AlgorithmRow::Result::sum, tuning_for(at(links, times)), facts).algorithm;
  };
  EXPECT_EQ(chosen(kSocketLinks, 0.1, 64 << 10), named::direct);
  EXPECT_EQ(chosen(kSocketLinks, 0.1, 128 << 10), named::ring);
  EXPECT_EQ(chosen(kSocketLinks, 1, 512 << 10), named::direct);
  EXPECT_EQ(chosen(kSocketLinks, 1, 1 << 20), named::ring);
}

// On slow links, bytes cost more than rounds from smaller sizes on. choose_test checks the sizes of
// the jumps.
TEST(LinkRate, decides_where_bytes_cost_more_than_rounds) {
  const std::vector<int> nodes = even_nodes(4, 2);
  const Shape shape{.ranks = 4, .nodes = nodes};
  const auto chosen = [&](double gbit, uint64_t bytes) {
    const Facts facts{.ranks = 4, .one_node = false, .bytes = bytes, .spread = Spread(shape)};
    return choose(AlgorithmRow::Result::sum, tuning_for(at(kSocketLinks, gbit / kSocketLinksGbit)),
                  facts)
        .algorithm;
  };
  for (const double gbit : {1, 10, 25}) {
    EXPECT_EQ(chosen(gbit, 1024), named::leaders) << gbit;
    EXPECT_EQ(chosen(gbit, 1 << 20), named::halving_doubling) << gbit;
  }
  EXPECT_EQ(chosen(1, 16 << 10), named::halving_doubling);
  EXPECT_EQ(chosen(10, 16 << 10), named::leaders);
  EXPECT_EQ(chosen(10, 64 << 10), named::halving_doubling);
  EXPECT_EQ(chosen(25, 64 << 10), named::leaders);
}

}  // namespace
}  // namespace rdmacoll
