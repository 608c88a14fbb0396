#include "transport/rdma/devices_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rdmacoll::rdma {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

rdma::DeviceFacts a_device() {
  DeviceFacts device{.name = "mlx4_0", .firmware = "2.42", .numa_node = 1};
  device.ports.push_back({.number = 2,
                          .state = PortState::active,
                          .link = LinkLayer::infiniband,
                          .active_mtu = 4096,
                          .gbit_per_s = 56,
                          .lid = 7,
                          .gids = {{.index = 0, .type = GidType::infiniband}},
                          .pkeys = {0xffff}});
  return device;
}

TEST(DevicesJson, has_facts_and_choice) {
  const std::vector<DeviceFacts> devices = {a_device()};
  EXPECT_THAT(
      devices_json({}, devices, "", {}),
      AllOf(HasSubstr(R"("error": null, "warning": null, "devices": [{"name": "mlx4_0")"),
            HasSubstr(R"("firmware": "2.42")"), HasSubstr(R"("software": false, "numa_node": 1)"),
            HasSubstr(R"("ports": [{"number": 2, "state": "active", "link_layer": "InfiniBand")"),
            HasSubstr(R"("mtu": 4096, "gbit_per_s": 56, "lid": 7)"),
            HasSubstr(R"("gids": [{"index": 0, "gid": "::", "type": "InfiniBand")"),
            HasSubstr(R"("rails": [{"device": "mlx4_0", "port": 2, "gid_index": 0)"),
            HasSubstr(R"("text": "mlx4_0 port 2 (InfiniBand, 56 Gbit/s, LID 7))"),
            HasSubstr(R"("unusable": null}])"), HasSubstr(R"("software": false}])"),
            HasSubstr(R"("choice_error": null})")));
  EXPECT_THAT(devices_json({}, devices, "", {.pkey_index = 4}),
              HasSubstr(R"("unusable": "has no PKEY 4, which was requested, but PKEYs 0 0xffff")"));
}

TEST(DevicesJson, has_the_sentence_where_nothing_is_known_or_nothing_fits) {
  EXPECT_EQ(devices_json({Code::failed, "no library"}, {}, "", {}),
            R"({"error": "no library", "warning": null, "devices": [], "rails": [], )"
            R"("choice_error": null})");
  const std::vector<DeviceFacts> devices = {a_device()};
  EXPECT_THAT(devices_json({}, devices, "mind the forks", {.devices = "mlx5_0"}),
              AllOf(HasSubstr(R"("warning": "mind the forks")"), HasSubstr(R"("rails": [])"),
                    HasSubstr(R"("choice_error": "RDMACOLL_DEVICE=mlx5_0: )")));
}

}  // namespace
}  // namespace rdmacoll::rdma
