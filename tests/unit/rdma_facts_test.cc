// Facts read from the kernel's files, and the messages of failed verbs calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/text.h"
#include "transport/rdma/error_texts.h"
#include "transport/rdma/sysfs.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll::rdma {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A folder like /sys/class/infiniband.
class RdmaSysfs : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "sysfs-" + std::string(6, 'X');
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& file, const std::string& text) {
    const fs::path path = root_ / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  // Makes a device link as the kernel does: mlx5_0 is under a bus, rxe0 under none.
  void link(const std::string& name, const std::string& under) {
    fs::create_directories(root_ / under / name);
    fs::create_directories(root_ / "class");
    fs::create_symlink(root_ / under / name, root_ / "class" / name);
  }
  Sysfs sysfs() const { return Sysfs(root_ / "class"); }

  fs::path root_;
};

TEST_F(RdmaSysfs, tells_software_from_hardware_by_its_place) {
  link("mlx5_0", "devices/pci0000:00/infiniband");
  link("fast", "devices/virtual/infiniband");
  link("old", "devices/pci0000:00/eth0/infiniband");
  put("class/old/parent", "eth0");
  EXPECT_THAT(sysfs().devices(), ElementsAre("fast", "mlx5_0", "old"));
  EXPECT_FALSE(sysfs().is_software("mlx5_0"));
  EXPECT_TRUE(sysfs().is_software("fast"));
  EXPECT_TRUE(sysfs().is_software("old"));
}

TEST_F(RdmaSysfs, has_the_facts_that_the_library_lacks) {
  link("mlx5_0", "devices/pci0000:00/infiniband");
  put("class/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)");
  put("class/mlx5_0/ports/2/rate", "2.5 Gb/sec (1X SDR)");
  put("class/mlx5_0/device/numa_node", "1");
  put("class/mlx5_0/node_guid", "0011:2233:4455:6677");
  EXPECT_EQ(sysfs().gbit_per_s("mlx5_0", 1), 100);
  EXPECT_EQ(sysfs().gbit_per_s("mlx5_0", 2), 2.5);
  EXPECT_EQ(sysfs().numa_node("mlx5_0"), 1);
  EXPECT_EQ(sysfs().node_guid("mlx5_0"), "0011:2233:4455:6677");
}

TEST_F(RdmaSysfs, gives_gids_with_type_and_interface_and_leaves_empty_ones_out) {
  link("rxe0", "devices/virtual/infiniband");
  const std::string port = "class/rxe0/ports/1/";
  put(port + "link_layer", "Ethernet");
  put(port + "gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001");
  put(port + "gids/1", "0000:0000:0000:0000:0000:0000:0000:0000");
  put(port + "gids/2", "0000:0000:0000:0000:0000:ffff:0a09:0001");
  put(port + "gid_attrs/types/0", "IB/RoCE v1");
  put(port + "gid_attrs/types/2", "RoCE v2");
  put(port + "gid_attrs/ndevs/2", "v1");
  const std::vector<GidFacts> gids = sysfs().gids("rxe0", 1, 4);
  ASSERT_EQ(gids.size(), 2u);
  EXPECT_EQ(gids[0].type, GidType::roce_v1);
  EXPECT_EQ(gids[1].index, 2);
  EXPECT_EQ(gids[1].gid.text(), "::ffff:10.9.0.1");
  EXPECT_EQ(gids[1].type, GidType::roce_v2);
  EXPECT_EQ(gids[1].interface, "v1");
  put(port + "link_layer", "InfiniBand");
  EXPECT_EQ(sysfs().gids("rxe0", 1, 1)[0].type, GidType::infiniband);
}

TEST_F(RdmaSysfs, knows_nothing_of_what_is_not_there) {
  EXPECT_TRUE(sysfs().devices().empty());
  EXPECT_EQ(sysfs().gbit_per_s("mlx5_0", 1), 0);
  EXPECT_EQ(sysfs().numa_node("mlx5_0"), -1);
  EXPECT_TRUE(sysfs().gids("mlx5_0", 1, 4).empty());
  EXPECT_FALSE(sysfs().is_software("mlx5_0"));
}

TEST(RdmaComplaints, name_why_no_device_is_listed) {
  const auto said = [](const KernelView& kernel) { return nothing_listed(kernel).message(); };
  EXPECT_TRUE(nothing_listed({.has_verbs_class = true}).ok());
  EXPECT_THAT(said({}), HasSubstr("modprobe ib_uverbs"));
  EXPECT_THAT(said({.devices = {"mlx5_0"}}),
              AllOf(HasSubstr("mlx5_0"), HasSubstr("modprobe ib_uverbs")));
  EXPECT_THAT(said({.devices = {"mlx5_0"}, .has_verbs_class = true}),
              AllOf(HasSubstr("mlx5_0"), HasSubstr("--device=/dev/infiniband")));
  EXPECT_THAT(said({.devices = {"mlx5_0"},
                    .has_verbs_class = true,
                    .device_files = {"/dev/infiniband/uverbs0"}}),
              AllOf(HasSubstr("mlx5_0"), HasSubstr("uverbs0"), HasSubstr("ibverbs-providers")));
}

TEST(RdmaComplaints, of_a_registration_say_need_have_and_cure) {
  const auto said = [](int error, const MemoryLimit& limit) {
    return not_registered("mlx5_0", 1 << 20, error, limit).message();
  };
  EXPECT_THAT(said(ENOMEM, {.allowed = 65536, .pinned = 4096}),
              AllOf(HasSubstr("1 MiB of memory on mlx5_0"), HasSubstr("RLIMIT_MEMLOCK) is 64 KiB"),
                    HasSubstr("4 KiB of it are in use"), HasSubstr("1028 KiB are needed"),
                    HasSubstr("ulimit -l unlimited")));
  EXPECT_THAT(said(ENOMEM, {}), AllOf(HasSubstr("is unlimited"), Not(HasSubstr("ulimit"))));
  EXPECT_THAT(said(ENOMEM, {.allowed = 1 << 30}),
              AllOf(HasSubstr("is 1 GiB"), HasSubstr("RDMACOLL_BUF_SIZE")));
  EXPECT_THAT(said(EFAULT, {.allowed = 0}),
              AllOf(HasSubstr("bad address"), Not(HasSubstr("RLIMIT_MEMLOCK"))));
}

TEST(RdmaComplaints, of_a_path_name_both_ends) {
  Gid remote;
  remote.raw[15] = 9;
  EXPECT_THAT(no_path("rxe1", 1, {}, remote, 0, ETIMEDOUT).message(),
              AllOf(HasSubstr("rxe1 port 1"), HasSubstr("GID ::9"),
                    HasSubstr("connection timed out"), HasSubstr("ping")));
  EXPECT_THAT(no_path("mlx4_0", 2, {}, remote, 42, EINVAL).message(),
              AllOf(HasSubstr("mlx4_0 port 2"), HasSubstr("LID 42"), Not(HasSubstr("ping"))));
  EXPECT_THAT(not_opened(EACCES), HasSubstr("/dev/infiniband/uverbs*"));
}

TEST(RdmaCompletion, has_plain_words_and_the_number) {
  EXPECT_EQ(completion_text(12), "no answer from the other end: retry counter exceeded (12)");
  EXPECT_THAT(completion_text(kFlushed), HasSubstr("flushed"));
  EXPECT_THAT(completion_text(10), HasSubstr("remote access error"));
  EXPECT_EQ(completion_text(99), "unknown completion status (99)");
  EXPECT_EQ(completion_text(-1), "unknown completion status (-1)");
}

}  // namespace
}  // namespace rdmacoll::rdma
