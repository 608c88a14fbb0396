#include "transport/rdma/choose_device.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"

namespace rdmacoll::rdma {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint16_t kFull = 0xffff;
constexpr uint16_t kLimited = 0x7fff;

Gid gid(const std::string& text) {
  Gid made;
  EXPECT_EQ(::inet_pton(AF_INET6, text.c_str(), made.raw.data()), 1) << text;
  return made;
}

GidFacts v1(int index, const std::string& text) {
  return {.index = index, .gid = gid(text), .type = GidType::roce_v1, .interface = "eth0"};
}
GidFacts v2(int index, const std::string& text) {
  return {.index = index, .gid = gid(text), .type = GidType::roce_v2, .interface = "eth0"};
}

PortFacts ethernet(std::vector<GidFacts> gids, PortState state = PortState::active,
                   int number = 1) {
  return {.number = number,
          .state = state,
          .link = LinkLayer::ethernet,
          .active_mtu = 4096,
          .gbit_per_s = 100,
          .gids = std::move(gids),
          .pkeys = {kFull}};
}

PortFacts infiniband(uint16_t lid, std::vector<uint16_t> pkeys = {kFull},
                     PortState state = PortState::active, int number = 1) {
  return {.number = number,
          .state = state,
          .link = LinkLayer::infiniband,
          .active_mtu = 4096,
          .gbit_per_s = 56,
          .lid = lid,
          .gids = {{.index = 0, .gid = gid("fe80::2:c903:a:b1"), .type = GidType::infiniband}},
          .pkeys = std::move(pkeys)};
}

DeviceFacts device(const std::string& name, std::vector<PortFacts> ports, bool software = false) {
  return {.name = name, .is_software = software, .ports = std::move(ports)};
}

// Recorded machines.
DeviceFacts rxe() {
  return device("rxe1", {ethernet({v2(0, "fe80::1"), v2(1, "::ffff:10.9.0.1")})}, true);
}
DeviceFacts rxe_with_only_link_local() {
  return device("rxe1", {ethernet({v2(0, "fe80::1")})}, true);
}
// Each address has a v1 GID and then a v2 GID.
DeviceFacts mlx5_roce(const std::string& name = "mlx5_0") {
  return device(name, {ethernet({v1(0, "fe80::1"), v2(1, "fe80::1"), v1(2, "::ffff:10.1.0.1"),
                                 v2(3, "::ffff:10.1.0.1"), v1(4, "fd00::1"), v2(5, "fd00::1")})});
}
DeviceFacts mlx5_with_two_ports() {
  return device("mlx5_0", {ethernet({v2(0, "::ffff:10.1.0.1")}, PortState::down, 1),
                           ethernet({v2(0, "fe80::2"), v2(1, "fd00::2")}, PortState::active, 2)});
}
DeviceFacts mlx4_infiniband() {
  return device("mlx4_0", {infiniband(7), infiniband(0, {kFull}, PortState::down, 2)});
}

// "device:port/gid_index/pkey_index ..." or the error's sentence.
std::string chosen(const std::vector<DeviceFacts>& present, const DeviceRequest& wish = {}) {
  std::vector<Rail> rails;
  const Status status = choose_rails(present, wish, rails);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), Code::invalid);
    EXPECT_TRUE(rails.empty());
    return status.message();
  }
  std::vector<std::string> texts;
  for (const Rail& rail : rails) {
    texts.push_back(cat(rail.device, ":", rail.port, "/", rail.gid_index, "/", rail.pkey_index));
  }
  return join(texts, " ");
}

Rail only_rail(const std::vector<DeviceFacts>& present, const DeviceRequest& wish = {}) {
  std::vector<Rail> rails;
  EXPECT_TRUE(choose_rails(present, wish, rails).ok());
  EXPECT_EQ(rails.size(), 1u);
  return rails.empty() ? Rail{} : rails[0];
}

TEST(ChooseDevice, none_is_an_error_with_the_cure) {
  EXPECT_THAT(chosen({}), AllOf(HasSubstr("no RDMA device is present"),
                                HasSubstr("load the adapter's driver")));
  EXPECT_THAT(chosen({}, {.devices = "mlx5_0"}),
              AllOf(HasSubstr("RDMACOLL_DEVICE=mlx5_0"), HasSubstr("no RDMA device is present")));
}

TEST(ChooseDevice, names_the_wish_that_stands_in_the_way) {
  EXPECT_THAT(chosen({rxe()}, {.gid_index = 99}),
              AllOf(HasSubstr("Requested: RDMACOLL_GID_INDEX=99. Request a port that is there"),
                    Not(HasSubstr("Bring"))));
  EXPECT_THAT(chosen({rxe()}, {.port = 9, .pkey_index = 7}),
              HasSubstr("RDMACOLL_DEVICE_PORT=9, RDMACOLL_PKEY=7"));
  EXPECT_THAT(chosen({rxe()}, {.devices = "rxe7", .devices_by = "TF_RDMA_DEV_NAME"}),
              AllOf(HasSubstr("TF_RDMA_DEV_NAME=rxe7: "), HasSubstr("or unset TF_RDMA_DEV_NAME")));
}

TEST(ChooseDevice, takes_the_gid_by_its_type_and_scope_and_not_by_its_index) {
  EXPECT_EQ(chosen({rxe()}), "rxe1:1/1/0");
  EXPECT_EQ(chosen({rxe_with_only_link_local()}), "rxe1:1/0/0");
  EXPECT_EQ(chosen({mlx5_roce()}), "mlx5_0:1/3/0");
  EXPECT_EQ(chosen({device("a", {ethernet({v2(0, "::ffff:10.0.0.1"), v2(1, "fe80::1")})})}),
            "a:1/0/0");
  EXPECT_EQ(chosen({device("a", {ethernet({v2(0, "fe80::1"), v2(1, "fd00::1")})})}), "a:1/1/0");
  EXPECT_EQ(chosen({device("a", {ethernet({v2(0, "::ffff:169.254.1.1"), v2(4, "2001:db8::1")})})}),
            "a:1/4/0");
}

TEST(ChooseDevice, does_not_take_roce_v1_unless_told) {
  const std::vector<DeviceFacts> old = {device("mlx4_0", {ethernet({v1(0, "::ffff:10.1.0.1")})})};
  EXPECT_THAT(chosen(old), AllOf(HasSubstr("mlx4_0 (port 1 has no RoCE v2 GID"),
                                 HasSubstr("0 ::ffff:10.1.0.1 RoCE v1")));
  EXPECT_EQ(chosen(old, {.gid_index = 0}), "mlx4_0:1/0/0");
  EXPECT_THAT(chosen({device("a", {ethernet({})})}), HasSubstr("no GID"));
}

TEST(ChooseDevice, skips_ports_that_are_not_active) {
  EXPECT_EQ(chosen({mlx5_with_two_ports()}), "mlx5_0:2/1/0");
  for (const PortState state :
       {PortState::down, PortState::init, PortState::armed, PortState::other}) {
    const std::string all =
        chosen({device("mlx5_0", {ethernet({v2(0, "fd00::1")}, state, 1)}), device("mlx5_1", {})});
    EXPECT_THAT(all, AllOf(HasSubstr(cat("mlx5_0 (port 1 is ", text(state), ")")),
                           HasSubstr("mlx5_1 (no ports)")));
  }
}

TEST(ChooseDevice, takes_hardware_before_software) {
  EXPECT_EQ(chosen({rxe(), mlx5_roce()}), "mlx5_0:1/3/0");
  EXPECT_EQ(chosen({rxe(), mlx4_infiniband()}), "mlx4_0:1/0/0");
  const DeviceFacts down = device("mlx5_0", {ethernet({v2(0, "fd00::1")}, PortState::down)});
  EXPECT_EQ(chosen({down, rxe()}), "rxe1:1/1/0");
  EXPECT_THAT(only_rail({down, rxe()}).reason, HasSubstr("since no hardware has one"));
}

TEST(ChooseDevice, passes_over_a_device_that_cannot_carry_data) {
  DeviceFacts closed = mlx5_roce("mlx5_0");
  closed.unusable = "cannot be opened: permission denied";
  EXPECT_EQ(chosen({closed, mlx5_roce("mlx5_1")}), "mlx5_1:1/3/0");
  EXPECT_THAT(chosen({closed}), HasSubstr("mlx5_0 cannot be opened: permission denied"));
  EXPECT_THAT(chosen({closed}, {.devices = "mlx5_0"}),
              HasSubstr("mlx5_0 cannot be opened: permission denied"));
}

TEST(ChooseDevice, on_infiniband_takes_lid_gid_0_and_a_pkey_with_full_membership) {
  const Rail rail = only_rail({mlx4_infiniband()});
  EXPECT_EQ(rail.lid, 7);
  EXPECT_EQ(rail.gid_index, 0);
  EXPECT_EQ(rail.gid, gid("fe80::2:c903:a:b1"));
  EXPECT_EQ(rail.text(), "mlx4_0 port 1 (InfiniBand, 56 Gbit/s, LID 7)");
  EXPECT_EQ(chosen({device("a", {infiniband(7, {kLimited, 0, 0x8001, kFull})})}), "a:1/0/2");
  EXPECT_THAT(only_rail({device("a", {infiniband(7, {kLimited, 0x8001})})}).reason,
              HasSubstr("PKEY 1 is the first with full membership"));
  EXPECT_THAT(chosen({device("a", {infiniband(7, {kLimited, 0})})}),
              HasSubstr("full member of no partition"));
  EXPECT_THAT(chosen({device("a", {infiniband(0)})}), HasSubstr("no LID"));
}

TEST(ChooseDevice, several_devices_are_several_rails) {
  const std::vector<DeviceFacts> two = {mlx5_roce("mlx5_0"), mlx5_roce("mlx5_1")};
  EXPECT_EQ(chosen(two), "mlx5_0:1/3/0");
  EXPECT_EQ(chosen(two, {.devices = "mlx5_1,mlx5_0"}), "mlx5_1:1/3/0 mlx5_0:1/3/0");
  EXPECT_EQ(chosen(two, {.devices = "mlx5_0, mlx5_1:1"}), "mlx5_0:1/3/0 mlx5_1:1/3/0");
  EXPECT_EQ(chosen({device("b", {infiniband(1), infiniband(2, {kFull}, PortState::active, 2)})},
                   {.devices = "b:1,b:2"}),
            "b:1/0/0 b:2/0/0");
  EXPECT_THAT(chosen(two, {.devices = "mlx5_0,mlx5_0:1"}), HasSubstr("twice"));
}

TEST(ChooseDevice, a_wish_that_cannot_be_fulfilled_lists_what_there_is) {
  const std::vector<DeviceFacts> present = {mlx5_with_two_ports(), rxe()};
  EXPECT_EQ(chosen(present, {.devices = "rxe1"}), "rxe1:1/1/0");
  EXPECT_EQ(chosen(present, {.devices = "mlx5_0:2"}), "mlx5_0:2/1/0");
  EXPECT_THAT(chosen(present, {.devices = "mlx5_7"}),
              AllOf(HasSubstr("RDMACOLL_DEVICE=mlx5_7"), HasSubstr("no RDMA device mlx5_7"),
                    HasSubstr("mlx5_0 (port 1 is down; port 2 can be used)"),
                    HasSubstr("rxe1 (port 1 can be used)")));
  EXPECT_THAT(chosen(present, {.devices = "mlx5_0:1"}), HasSubstr("port 1 is down"));
  EXPECT_THAT(chosen(present, {.devices = "mlx5_0:3"}), HasSubstr("has no port 3"));
  EXPECT_THAT(chosen(present, {.devices = "rxe1,mlx5_7"}), HasSubstr("no RDMA device mlx5_7"));
  EXPECT_THAT(chosen({device("a", {ethernet({}, PortState::init)})}, {.devices = "a"}),
              AllOf(HasSubstr("no port that can be used"), HasSubstr("initializing")));
}

TEST(ChooseDevice, what_names_no_device_is_refused) {
  for (const char* wrong : {",", "rxe1,", ":1", "rxe1:", "rxe1:x", "rxe1:0", "rxe1:-1", "rxe1:1:1",
                            "rxe1:99999999999"}) {
    EXPECT_THAT(chosen({rxe()}, {.devices = wrong}), HasSubstr("names no device")) << wrong;
  }
}

TEST(ChooseDevice, a_gid_index_that_was_asked_for_is_taken_or_refused) {
  EXPECT_EQ(chosen({rxe()}, {.gid_index = 0}), "rxe1:1/0/0");
  EXPECT_EQ(chosen({mlx5_roce()}, {.devices = "mlx5_0", .gid_index = 5}), "mlx5_0:1/5/0");
  EXPECT_EQ(only_rail({mlx5_roce()}, {.gid_index = 5}).gid, gid("fd00::1"));
  EXPECT_THAT(chosen({rxe()}, {.gid_index = 9}),
              AllOf(HasSubstr("no GID 9, which was requested"),
                    HasSubstr("0 fe80::1 RoCE v2, 1 ::ffff:10.9.0.1 RoCE v2")));
}

TEST(ChooseDevice, a_port_that_was_asked_for_is_that_of_every_device_named_without_one) {
  const DeviceFacts both =
      device("mlx4_0", {infiniband(7), infiniband(8, {kFull}, PortState::active, 2)});
  EXPECT_EQ(chosen({both}, {.port = 2}), "mlx4_0:2/0/0");
  EXPECT_EQ(chosen({both}, {.devices = "mlx4_0", .port = 2}), "mlx4_0:2/0/0");
  EXPECT_EQ(chosen({both}, {.devices = "mlx4_0:1", .port = 2}), "mlx4_0:1/0/0");
  EXPECT_THAT(only_rail({both}, {.devices = "mlx4_0", .port = 2}).reason,
              HasSubstr("mlx4_0 port 2 was requested"));
  EXPECT_THAT(chosen({both}, {.devices = "mlx4_0", .port = 3}), HasSubstr("mlx4_0 has no port 3"));
  EXPECT_THAT(chosen({rxe()}, {.port = 2}), HasSubstr("RDMACOLL_DEVICE_PORT=2"));
  EXPECT_THAT(chosen({mlx5_with_two_ports()}, {.devices = "mlx5_0", .port = 1}),
              HasSubstr("port 1 is down"));
}

TEST(ChooseDevice, a_pkey_that_was_asked_for_is_taken_or_refused) {
  const DeviceFacts device_of_three = device("mlx4_0", {infiniband(7, {kFull, 0x0012, 0})});
  EXPECT_EQ(chosen({device_of_three}), "mlx4_0:1/0/0");
  // A limited membership too: full members answer it.
  EXPECT_EQ(chosen({device_of_three}, {.pkey_index = 1}), "mlx4_0:1/0/1");
  for (const int none : {2, 3}) {
    EXPECT_THAT(chosen({device_of_three}, {.pkey_index = none}),
                AllOf(HasSubstr(cat("no PKEY ", none)), HasSubstr("0 0xffff, 1 0x12")));
  }
}

TEST(ChooseDevice, a_rail_tells_what_it_is_and_why) {
  const Rail automatic = only_rail({rxe()});
  EXPECT_EQ(automatic.text(),
            "rxe1 port 1 (Ethernet, 100 Gbit/s, GID 1 ::ffff:10.9.0.1, in software)");
  EXPECT_THAT(automatic.reason, HasSubstr("GID 1 is RoCE v2, IPv4"));
  EXPECT_TRUE(automatic.is_software);
  EXPECT_EQ(automatic.mtu, 4096u);
  EXPECT_THAT(only_rail({rxe_with_only_link_local()}).reason, HasSubstr("link-local"));
  EXPECT_THAT(only_rail({mlx5_roce()}, {.devices = "mlx5_0:1"}).reason,
              AllOf(HasSubstr("mlx5_0:1 was requested"), Not(HasSubstr("first active"))));
}

TEST(RdmaGid, has_the_usual_text) {
  EXPECT_EQ(gid("fe80::1").text(), "fe80::1");
  EXPECT_EQ(gid("::ffff:10.9.0.1").text(), "::ffff:10.9.0.1");
  EXPECT_TRUE(gid("::ffff:10.9.0.1").is_ipv4());
  EXPECT_FALSE(gid("::10.9.0.1").is_ipv4());
  EXPECT_TRUE(gid("febf::1").is_link_local());
  EXPECT_FALSE(gid("fec0::1").is_link_local());
  EXPECT_TRUE(Gid{}.is_zero());
}

}  // namespace
}  // namespace rdmacoll::rdma
