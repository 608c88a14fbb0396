#include "bootstrap/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/text.h"

namespace rdmacoll {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Card a_card(const std::string& order = "run") {
  Card card{.abi = 1,
            .host = "node7",
            .pid = 4711,
            .node_key = "boot:42",
            .cpus = "0-3,8",
            .numa_node = 3,
            .uid = 1000,
            .unix_name = "rdmacoll-00ff",
            .settings = {{"RDMACOLL_ORDER", order}, {"RDMACOLL_CHUNK_SIZE", "4194304"}}};
  card.tcp = {*SocketAddress::parse("10.0.0.1:4711"), *SocketAddress::parse("[fd00::1]:4712")};
  card.transports = {{"rdma", {.obstacle = "no device."}}, {"tcp", {.is_off = true}}};
  return card;
}

TEST(Fingerprint, equal_cards_pass) {
  EXPECT_TRUE(compare_fingerprints({a_card(), a_card(), a_card()}).ok());
  EXPECT_TRUE(compare_fingerprints({a_card()}).ok());
}

TEST(Fingerprint, lists_each_difference_with_each_ranks_value) {
  std::vector<Card> cards = {a_card(), a_card("canonical"), a_card()};
  cards[2].settings["RDMACOLL_TRANSPORT"] = "tcp";
  const Status status = compare_fingerprints(cards);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(), HasSubstr("RDMACOLL_ORDER: ranks 0, 2: run; rank 1: canonical"));
  EXPECT_THAT(status.message(), HasSubstr("RDMACOLL_TRANSPORT: ranks 0, 1: (none); rank 2: tcp"));
  EXPECT_THAT(status.message(), Not(HasSubstr("RDMACOLL_CHUNK_SIZE")));
}

TEST(Fingerprint, lists_different_builds) {
  std::vector<Card> cards = {a_card(), a_card()};
  cards[1].wire = kWireVersion + 1;
  cards[0].abi = 3;
  const Status status = compare_fingerprints(cards);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(), HasSubstr(cat("wire version: rank 0: ", kWireVersion,
                                              "; rank 1: ", kWireVersion + 1)));
  EXPECT_THAT(status.message(), HasSubstr("ABI version: rank 0: 3; rank 1: 1"));
}

TEST(Fingerprint, does_not_list_a_thousand_ranks) {
  std::vector<Card> cards(1000, a_card());
  cards[500] = a_card("canonical");
  EXPECT_THAT(compare_fingerprints(cards).message(),
              HasSubstr("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 991 others: run; rank 500: canonical"));
}

TEST(FingerprintCard, says_which_containers_share_a_machine) {
  Card card = a_card(), other = a_card(), elsewhere = a_card(), unknown = a_card();
  other.node_key = "boot:43";
  elsewhere.node_key = "toob:42";
  unknown.node_key = ":42";
  EXPECT_EQ(machine_key(card), machine_key(other));
  EXPECT_NE(machine_key(card), machine_key(elsewhere));
  EXPECT_EQ(machine_key(unknown), "");
}

TEST(FingerprintCard, comes_back_as_it_went) {
  Card card = a_card();
  card.host = "a \"host\"\n\\ \x01 \xc3\xa9";
  card.transports["rdma"] = {.obstacle = "no \"port\"",
                             .has_devices = true,
                             .request = "TF_RDMA_DEV_NAME=\"a b\"",
                             .pool_bytes = 4096};
  card.transports["tcp"] = {.is_off = true};
  Card back;
  const std::string text = to_json(card);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  ASSERT_TRUE(parse_card(text, 0, back).ok()) << text;
  EXPECT_EQ(back.host, card.host);
  EXPECT_EQ(back.pid, card.pid);
  EXPECT_EQ(back.node_key, card.node_key);
  EXPECT_EQ(back.cpus, "0-3,8");
  EXPECT_EQ(back.numa_node, 3);
  EXPECT_EQ(back.uid, card.uid);
  EXPECT_EQ(back.unix_name, card.unix_name);
  EXPECT_EQ(back.settings, card.settings);
  ASSERT_EQ(back.transports.size(), 2u);
  const TransportCard rdma = back.transports["rdma"];
  EXPECT_EQ(rdma.obstacle, card.transports["rdma"].obstacle);
  EXPECT_FALSE(rdma.is_off);
  EXPECT_TRUE(rdma.has_devices);
  EXPECT_EQ(rdma.request, card.transports["rdma"].request);
  EXPECT_EQ(rdma.pool_bytes, 4096u);
  EXPECT_TRUE(back.transports["tcp"].is_off);
  EXPECT_FALSE(back.transports["tcp"].has_devices);
  ASSERT_EQ(back.tcp.size(), 2u);
  EXPECT_EQ(back.tcp[0].text(), "10.0.0.1:4711");
  EXPECT_EQ(back.tcp[1].text(), "[fd00::1]:4712");
  EXPECT_EQ(to_json(back), text);
}

TEST(FingerprintCard, of_another_version_is_read_as_far_as_the_version) {
  Card card;
  std::string text = to_json(a_card());
  const std::string own = cat("\"wire\":", kWireVersion);
  text.replace(text.find(own), own.size(), cat("\"wire\":", kWireVersion + 1));
  text += "and more";
  ASSERT_TRUE(parse_card(text, 0, card).ok());
  EXPECT_EQ(card.wire, kWireVersion + 1);
}

TEST(FingerprintCard, refuses_what_it_did_not_write) {
  const std::string good = to_json(a_card());
  std::vector<std::string> bad = {"", "{}", "null", good + " ", good + good, " " + good};
  const auto edit = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    ASSERT_NE(text.find(from), std::string::npos) << from;
    bad.push_back(text.replace(text.find(from), from.size(), to));
  };
  edit("4711,", "-4711,");
  edit("4711,", "99999999999999999999,");
  edit("10.0.0.1:4711", "10.0.0.1:0");
  edit("10.0.0.1:4711", "10.0.0.1:70000");
  edit("10.0.0.1:4711", "example.org:80");
  edit("10.0.0.1:4711", "fd00::1:4711");
  edit("rdmacoll-00ff", "../escape");
  edit("rdmacoll-00ff", std::string(101, 'a'));
  edit("node7", std::string(5000, 'a'));
  edit("node7", "\\u12");
  edit("node7", "\n");
  edit("\"host\"", "\"tsoh\"");
  edit("RDMACOLL_ORDER", "RDMACOLL_CHUNK_SIZE");
  edit("\"tcp\":{", "\"rdma\":{");
  edit("\"off\":1", "\"off\":2");
  bad.push_back(std::string(100'000, '['));
  for (const std::string& text : bad) {
    Card card;
    const Status status = parse_card(text, 5, card);
    EXPECT_EQ(status.code(), Code::invalid) << text;
    EXPECT_THAT(status.message(), HasSubstr("rank 5"));
  }
  for (std::size_t length = 0; length < good.size(); ++length) {
    Card card;
    EXPECT_FALSE(parse_card(std::string_view(good).substr(0, length), 0, card).ok()) << length;
  }
}

TEST(FingerprintCard, survives_noise) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const std::string good = to_json(a_card());
  for (int turn = 0; turn < 20'000; ++turn) {
    std::string text = good;
    for (int i = 0; i < 3; ++i) text[random() % text.size()] = static_cast<char>(random());
    Card card;
    const Status status = parse_card(text, 0, card);
    if (status.ok() && card.wire == kWireVersion) {
      Card back;  // an accepted text is a valid card
      EXPECT_TRUE(parse_card(to_json(card), 0, back).ok()) << text;
    }
  }
}

InterfaceAddress on(const std::string& name, const std::string& address, int bits,
                    bool is_up = true) {
  return {name, *SocketAddress::parse_host(address), bits, is_up};
}

const std::vector<InterfaceAddress> kHost = {
    on("lo", "127.0.0.1", 8),  on("lo", "::1", 128),         on("eth0", "10.1.2.3", 16),
    on("eth0", "fd00::3", 64), on("ib0", "192.168.7.3", 24), on("docker0", "172.17.0.1", 16, false),
};

std::string chosen(const std::string& setting,
                   const std::vector<InterfaceAddress>& present = kHost) {
  std::vector<SocketAddress> addresses;
  const Status status = choose_addresses(present, setting, addresses);
  if (!status.ok()) return status.message();
  std::vector<std::string> texts;
  for (const SocketAddress& address : addresses) texts.push_back(address.host());
  return join(texts, " ");
}

TEST(FingerprintInterfaces, automatic_takes_all_that_are_up_and_loopback_last) {
  EXPECT_EQ(chosen(""), "10.1.2.3 fd00::3 192.168.7.3 127.0.0.1");
  EXPECT_EQ(chosen("", {}), "127.0.0.1");
}

TEST(FingerprintInterfaces, are_chosen_by_name_or_network) {
  EXPECT_EQ(chosen("eth0"), "10.1.2.3 fd00::3");
  EXPECT_EQ(chosen("192.168.0.0/16"), "192.168.7.3");
  EXPECT_EQ(chosen("fd00::/8,ib0"), "fd00::3 192.168.7.3");
  EXPECT_EQ(chosen("10.1.2.3"), "10.1.2.3");
  EXPECT_EQ(chosen("0.0.0.0/0"), "127.0.0.1 10.1.2.3 192.168.7.3");
  EXPECT_EQ(chosen("lo"), "127.0.0.1 ::1");
}

TEST(FingerprintInterfaces, that_do_not_exist_are_refused_with_those_that_do) {
  for (const std::string wrong : {"eth7", "10.9.0.0/16", "docker0", "10.1.2.3/99", "eth0,eth7"}) {
    EXPECT_THAT(chosen(wrong), HasSubstr("RDMACOLL_INTERFACE=" + wrong));
    EXPECT_THAT(chosen(wrong), HasSubstr("ib0 192.168.7.3/24"));
  }
}

TEST(FingerprintInterfaces, near_addresses_are_called_first) {
  std::vector<SocketAddress> theirs;
  for (const char* host : {"127.0.0.1", "11.0.0.1", "192.168.7.9", "fd00::9"}) {
    theirs.push_back(*SocketAddress::parse_host(host));
  }
  const auto order = [&](bool same_host) {
    std::vector<std::string> texts;
    for (const auto& address : dial_order(theirs, kHost, same_host))
      texts.push_back(address.host());
    return join(texts, " ");
  };
  EXPECT_EQ(order(false), "192.168.7.9 fd00::9 11.0.0.1");
  EXPECT_EQ(order(true), "127.0.0.1 192.168.7.9 fd00::9 11.0.0.1");
}

}  // namespace
}  // namespace rdmacoll
