// Tests the facts that libibverbs reports of the devices, and the errors of opening and
// registering.
#include <sys/resource.h>

#include <algorithm>
#include <iostream>

#include "base/fd.h"
#include "transport/rdma/sysfs.h"
#include "verbs/verbs_fixture.h"

namespace rdmacoll::rdma {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

DeviceFacts facts_of(const std::string& name) {
  std::vector<DeviceFacts> present;
  EXPECT_TRUE(verbs().list(present).ok());
  const auto found = std::find_if(present.begin(), present.end(),
                                  [&](const DeviceFacts& each) { return each.name == name; });
  EXPECT_NE(found, present.end()) << name << " is not listed";
  return found == present.end() ? DeviceFacts{} : *found;
}

std::unique_ptr<Device> opened(const std::string& name) {
  std::unique_ptr<Device> device;
  const Status status = verbs().open({.device = name, .completions = 16}, device);
  EXPECT_TRUE(status.ok()) << status.message();
  return device;
}

TEST(VerbsDevice, is_listed_with_its_limits_and_ports) {
  for (const std::string& name : test_devices()) {
    const DeviceFacts facts = facts_of(name);
    EXPECT_EQ(facts.unusable, "");
    EXPECT_EQ(facts.node_guid.size(), 19u) << facts.node_guid;
    EXPECT_GE(facts.queue_depth_max, 1024);
    EXPECT_GE(facts.completions_max, 1024);
    EXPECT_GE(facts.scatter_max, 1);
    EXPECT_EQ(facts.is_software, name.rfind("rxe", 0) == 0);
    ASSERT_FALSE(facts.ports.empty());
    const PortFacts& port = facts.ports[0];
    EXPECT_EQ(port.number, 1);
    EXPECT_GE(port.active_mtu, 256u);
    EXPECT_LE(port.active_mtu, 4096u);
    EXPECT_GE(port.gbit_per_s, 1);
    EXPECT_GE(port.message_bytes_max, 1u << 20);
    EXPECT_FALSE(port.pkeys.empty());
    EXPECT_FALSE(port.gids.empty());
  }
}

// On older libraries, the kernel's files replace the query for GIDs. Both must agree.
TEST(VerbsDevice, has_the_gids_that_the_kernels_files_have) {
  const Sysfs sysfs;
  for (const std::string& name : test_devices()) {
    for (const PortFacts& port : facts_of(name).ports) {
      const std::vector<GidFacts> other = sysfs.gids(name, port.number, 256);
      ASSERT_EQ(port.gids.size(), other.size());
      for (std::size_t i = 0; i < other.size(); ++i) {
        EXPECT_EQ(port.gids[i].index, other[i].index);
        EXPECT_EQ(port.gids[i].gid, other[i].gid);
        EXPECT_EQ(port.gids[i].type, other[i].type);
        EXPECT_EQ(port.gids[i].interface, other[i].interface);
      }
    }
  }
}

TEST(VerbsDevice, gives_a_rail_with_a_gid_that_can_be_routed) {
  for (const std::string& name : test_devices()) {
    const Rail rail = rail_of(name);
    EXPECT_EQ(rail.device, name);
    EXPECT_FALSE(rail.reason.empty());
    if (rail.link == LinkLayer::infiniband) {
      EXPECT_NE(rail.lid, 0);
    } else {
      EXPECT_FALSE(rail.gid.is_link_local()) << rail.text();
    }
  }
}

TEST(VerbsDevice, that_is_not_there_is_named) {
  std::unique_ptr<Device> device;
  EXPECT_THAT(verbs().open({.device = "mlx9_9", .completions = 16}, device).message(),
              HasSubstr("mlx9_9"));
  EXPECT_EQ(device, nullptr);
}

TEST(VerbsDevice, refuses_more_completions_than_it_has) {
  const DeviceFacts facts = facts_of(test_devices()[0]);
  const auto many = static_cast<uint32_t>(facts.completions_max) + 1;
  std::unique_ptr<Device> device;
  EXPECT_THAT(verbs().open({.device = facts.name, .completions = many}, device).message(),
              AllOf(HasSubstr(cat(many)), HasSubstr(cat(facts.completions_max))));
}

TEST(VerbsDevice, refuses_a_queue_pair_that_is_too_deep_with_the_limit) {
  const auto device = opened(test_devices()[0]);
  const Rail rail = rail_of(test_devices()[0]);
  const int depth_max = device->facts().queue_depth_max;
  std::unique_ptr<QueuePair> pair;
  const Status status =
      device->create_queue_pair({.sends = static_cast<uint32_t>(depth_max) + 1, .receives = 1},
                                rail.port, rail.gid_index, rail.pkey_index, pair);
  EXPECT_THAT(status.message(), HasSubstr(cat("at most ", depth_max)));
}

TEST(VerbsDevice, grants_less_inline_where_more_is_asked_than_it_has) {
  const auto device = opened(test_devices()[0]);
  const Rail rail = rail_of(test_devices()[0]);
  std::unique_ptr<QueuePair> pair;
  const Status status =
      device->create_queue_pair({.sends = 4, .receives = 4, .inline_bytes = 1 << 16}, rail.port,
                                rail.gid_index, rail.pkey_index, pair);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_LT(pair->granted().inline_bytes, 1u << 16);
  EXPECT_GE(pair->granted().sends, 4u);
  EXPECT_LT(pair->local().first_packet, 1u << 24);
}

TEST(VerbsDevice, refuses_memory_that_is_not_there) {
  const auto device = opened(test_devices()[0]);
  std::unique_ptr<Registration> registration;
  const Status status = device->register_memory(nullptr, 4096, registration);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("4 KiB"), HasSubstr(test_devices()[0])));
}

TEST(VerbsDevice, leaves_no_descriptor_behind) {
  opened(test_devices()[0]);
  const int before = open_descriptors();
  {
    const auto device = opened(test_devices()[0]);
    EXPECT_EQ(open_descriptors(), before + 3);
  }
  EXPECT_EQ(open_descriptors(), before);
}

// Runs in a separate process, which gives up its privileges. Root may pin any amount of memory.
void register_as_nobody(std::size_t bytes) {
  const rlimit small{65536, 65536};
  if (::setrlimit(RLIMIT_MEMLOCK, &small) != 0) ::_exit(10);
  if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) ::_exit(11);
  const auto device = opened(test_devices()[0]);
  if (device == nullptr) ::_exit(12);
  std::vector<std::byte> memory(bytes);
  std::unique_ptr<Registration> registration;
  const Status status = device->register_memory(memory.data(), bytes, registration);
  std::cerr << status.message() << std::endl;
  ::_exit(status.ok() ? 0 : 1);
}

TEST(VerbsDeathTest, a_small_limit_on_pinned_memory_is_named) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(register_as_nobody(4096), testing::ExitedWithCode(0), "ok");
  EXPECT_EXIT(register_as_nobody(1 << 20), testing::ExitedWithCode(1),
              "registering 1 MiB .* is 64 KiB, .* are needed: `ulimit -l unlimited`");
}

}  // namespace
}  // namespace rdmacoll::rdma
