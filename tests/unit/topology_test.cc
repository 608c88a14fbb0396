// Distances in recorded PCIe trees.
#include "cuda/topology.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "unit/pci_tree_folder.h"

namespace rdmacoll::cuda {
namespace {

std::string recorded(const std::string& name) {
  return cat(RC_TEST_DATA, "/pci_trees/", name, ".txt");
}

NicPlace nic(const PciTree& tree, const std::string& name) {
  for (NicPlace& each : tree.nics()) {
    if (each.name == name) return each;
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

// "PIX", of two devices of a tree.
std::string distance(const PciTree& tree, const std::string& gpu, const std::string& nic_name) {
  return std::string(text(tree.way(tree.place(gpu), nic(tree, nic_name).place).distance));
}

TEST(Topology, tells_the_two_sockets_of_k80_boards) {
  const PciTreeFolder folder(recorded("k80_two_sockets"));
  const PciTree tree(folder.path());
  EXPECT_TRUE(tree.is_readable());
  EXPECT_EQ(tree.numa_nodes(), 2);
  EXPECT_EQ(tree.nvidia_gpus(), (std::vector<std::string>{"0000:06:00.0", "0000:07:00.0",
                                                          "0000:84:00.0", "0000:85:00.0"}));
  // The board has a switch of its own below that of the mainboard.
  EXPECT_EQ(distance(tree, "0000:06:00.0", "mlx4_0"), "PXB");
  EXPECT_EQ(distance(tree, "0000:07:00.0", "mlx4_0"), "PXB");
  EXPECT_EQ(distance(tree, "0000:84:00.0", "mlx4_0"), "SYS");
  const PciPlace one = tree.place("0000:06:00.0");
  EXPECT_EQ(one.root, "pci0000:00");
  EXPECT_EQ(one.bridges.size(), 5U);
  EXPECT_EQ(one.bridges[3].vendor, 0x10b5);
  EXPECT_EQ(one.numa_node, 0);
  EXPECT_EQ(one.iommu_group, -1);
  EXPECT_EQ(tree.way(one, nic(tree, "mlx4_0").place).shared_switch, "PLX switch 0000:02:00.0");
  // The two GPUs of one board.
  EXPECT_EQ(tree.way(one, tree.place("0000:07:00.0")).distance, Distance::pix);
  EXPECT_EQ(tree.way(tree.place("0000:84:00.0"), tree.place("0000:06:00.0")).distance,
            Distance::sys);
  EXPECT_EQ(nic(tree, "mlx4_0").driver, "mlx4_core");
}

TEST(Topology, tells_switches_root_ports_and_software_of_a_dgx_1) {
  const PciTreeFolder folder(recorded("dgx1_v100"));
  const PciTree tree(folder.path());
  EXPECT_EQ(distance(tree, "0000:06:00.0", "mlx5_0"), "PIX");
  EXPECT_EQ(distance(tree, "0000:07:00.0", "mlx5_0"), "PIX");
  EXPECT_EQ(distance(tree, "0000:06:00.0", "mlx5_1"), "PHB");
  EXPECT_EQ(distance(tree, "0000:06:00.0", "mlx5_2"), "SYS");
  EXPECT_EQ(distance(tree, "0000:06:00.0", "rxe0"), "?");
  EXPECT_TRUE(nic(tree, "rxe0").is_software);
  EXPECT_EQ(nic(tree, "rxe0").driver, "");
  EXPECT_FALSE(nic(tree, "mlx5_0").is_software);
}

TEST(Topology, tells_cascades_of_switches) {
  const PciTreeFolder folder(recorded("dgx_a100"));
  const PciTree tree(folder.path());
  EXPECT_EQ(distance(tree, "0000:07:00.0", "mlx5_0"), "PXB");
  EXPECT_EQ(distance(tree, "0000:07:00.0", "mlx5_4"), "SYS");
  EXPECT_EQ(tree.way(tree.place("0000:07:00.0"), nic(tree, "mlx5_0").place).shared_switch,
            "Broadcom switch 0000:01:00.0");
}

TEST(Topology, tells_host_bridges_of_one_socket) {
  const PciTreeFolder folder(recorded("hgx_h100"));
  const PciTree tree(folder.path());
  EXPECT_EQ(distance(tree, "0000:1b:00.0", "mlx5_0"), "PIX");
  EXPECT_EQ(distance(tree, "0000:3d:00.0", "mlx5_0"), "NODE");
  EXPECT_EQ(distance(tree, "0000:1b:00.0", "mlx5_4"), "SYS");
  const PciWay way = tree.way(tree.place("0000:1b:00.0"), nic(tree, "mlx5_0").place);
  EXPECT_EQ(way.is_translated, Known::no) << "the IOMMU passes through";
  EXPECT_EQ(way.redirects, Known::no) << "ACS would have made two groups";
}

TEST(Topology, reads_acs_from_registers_and_otherwise_from_groups) {
  const PciTreeFolder folder(recorded("acs_and_iommu"));
  const PciTree tree(folder.path());
  const auto way = [&](const std::string& gpu, const std::string& name) {
    return tree.way(tree.place(gpu), nic(tree, name).place);
  };
  EXPECT_EQ(way("0000:03:00.0", "mlx5_0").redirects, Known::yes);
  EXPECT_EQ(way("0000:03:00.0", "mlx5_0").is_translated, Known::yes);
  EXPECT_EQ(way("0000:13:00.0", "mlx5_1").redirects, Known::no);
  EXPECT_EQ(way("0000:13:00.0", "mlx5_1").is_translated, Known::no);
  EXPECT_EQ(way("0000:23:00.0", "mlx5_2").redirects, Known::yes) << "by the groups";
  EXPECT_EQ(way("0000:23:00.0", "mlx5_2").is_translated, Known::no);
  for (const char* name : {"mlx5_0", "mlx5_1", "mlx5_2"}) {
    EXPECT_EQ(nic(tree, name).place.bridges.size(), 3U);
  }
  EXPECT_EQ(distance(tree, "0000:03:00.0", "mlx5_0"), "PIX");
  EXPECT_EQ(distance(tree, "0000:03:00.0", "mlx5_1"), "PHB");
}

TEST(Topology, does_not_know_acs_without_root_privileges_nor_groups) {
  const PciTreeFolder folder(recorded("dgx1_v100"));
  const PciTree tree(folder.path());
  EXPECT_EQ(tree.way(tree.place("0000:06:00.0"), nic(tree, "mlx5_0").place).redirects,
            Known::unknown);
  EXPECT_EQ(acs_redirects(""), Known::unknown);
  EXPECT_EQ(acs_redirects(std::string(64, '\0')), Known::unknown);
  EXPECT_EQ(acs_redirects(std::string(4096, '\0')), Known::no);
  // A list that leads back to its begin ends.
  std::string loop(4096, '\0');
  loop[0x100] = 1;
  loop[0x103] = 0x10;
  EXPECT_EQ(acs_redirects(loop), Known::no);
  // A list that leads beyond the bytes ends.
  loop.resize(0x104);
  EXPECT_EQ(acs_redirects(loop), Known::no);
}

TEST(Topology, tells_a_flat_tree_of_a_virtual_machine) {
  const PciTreeFolder azure(recorded("azure_ndv4"));
  const PciTree tree(azure.path());
  const PciWay way = tree.way(tree.place("0001:00:00.0"), nic(tree, "mlx5_0").place);
  EXPECT_TRUE(way.is_flat);
  EXPECT_EQ(way.distance, Distance::unknown);

  PciTreeFolder folder(recorded("h200_virtual_machine"));
  EXPECT_EQ(PciTree(folder.path()).nvidia_gpus(), std::vector<std::string>{"0000:00:06.0"});
  folder.add("device pci0000:00/0000:00:07.0 vendor=0x15b3 class=0x020700 numa=-1");
  folder.add("nic mlx5_0 pci0000:00/0000:00:07.0");
  const PciTree firecracker(folder.path());
  EXPECT_EQ(distance(firecracker, "0000:00:06.0", "mlx5_0"), "?");
  EXPECT_TRUE(firecracker.place("0000:00:06.0").is_flat());
}

TEST(Topology, does_not_know_a_distance_without_numa_nodes_or_without_a_tree) {
  PciTreeFolder folder;
  folder.add("device pci0000:00/0000:00:01.0/0000:01:00.0 vendor=0x10de class=0x030200 numa=-1");
  folder.add("device pci0000:40/0000:40:01.0/0000:41:00.0 vendor=0x15b3 class=0x020700 numa=-1");
  folder.add("device pci0000:00/0000:00:01.0 class=0x060400");
  folder.add("device pci0000:40/0000:40:01.0 class=0x060400");
  folder.add("nic mlx5_0 pci0000:40/0000:40:01.0/0000:41:00.0");
  folder.add("nodes 2");
  EXPECT_EQ(distance(PciTree(folder.path()), "0000:01:00.0", "mlx5_0"), "?");
  // A machine with one NUMA node has the same node for both.
  std::filesystem::remove(folder.path() + "/devices/system/node/node1");
  EXPECT_EQ(distance(PciTree(folder.path()), "0000:01:00.0", "mlx5_0"), "NODE");

  const PciTreeFolder empty;
  const PciTree none(empty.path());
  EXPECT_FALSE(none.is_readable());
  EXPECT_EQ(none.numa_nodes(), 0);
  EXPECT_TRUE(none.nics().empty());
  EXPECT_TRUE(none.nvidia_gpus().empty());
  EXPECT_EQ(none.place("0000:01:00.0").root, "");
  EXPECT_EQ(none.place("0000:01:00.0").address, "0000:01:00.0");
  EXPECT_EQ(none.way(none.place("0000:01:00.0"), {}).distance, Distance::unknown);
  EXPECT_FALSE(PciTree("/nonexistent").is_readable());
}

TEST(Topology, writes_addresses_as_the_kernel_does) {
  EXPECT_EQ(pci_address("00000000:83:00.0"), "0000:83:00.0");
  EXPECT_EQ(pci_address("0000:0A:00.0"), "0000:0a:00.0");
  EXPECT_EQ(pci_address("83:00.0"), "0000:83:00.0");
  EXPECT_EQ(pci_address("00010000:83:00.0"), "10000:83:00.0");
  EXPECT_EQ(pci_address("10000:83:00.0"), "10000:83:00.0");
  EXPECT_EQ(pci_address(""), "");
}

}  // namespace
}  // namespace rdmacoll::cuda
