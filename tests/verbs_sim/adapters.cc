#include "verbs_sim/adapters.h"

#include "base/text.h"

namespace rdmacoll::verbs_sim {
namespace {

using rdma::Gid;
using rdma::GidType;
using rdma::LinkLayer;
using rdma::PortState;

uint8_t low_byte(int value) { return static_cast<uint8_t>(value); }

Gid link_local(int host, int number) {
  Gid gid;
  gid.raw[0] = 0xfe;
  gid.raw[1] = 0x80;
  gid.raw[13] = low_byte(number + 1);
  gid.raw[14] = low_byte(host >> 8);
  gid.raw[15] = low_byte(host + 1);
  return gid;
}

Gid ipv4(int host, int number) {
  Gid gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 10;
  gid.raw[13] = low_byte(number + 9);
  gid.raw[14] = low_byte(host >> 8);
  gid.raw[15] = low_byte(host + 1);
  return gid;
}

AdapterModel hardware(const std::string& name, int host, int number) {
  AdapterModel model;
  model.facts.name = name;
  model.facts.firmware = "16.35.2000";
  model.facts.node_guid = cat("0c42:a103:", 1000 + number, ":", 1000 + host);
  model.facts.numa_node = 0;
  model.facts.queue_depth_max = 32768;
  model.facts.completions_max = 4194303;
  model.facts.scatter_max = 30;
  model.facts.reads_in_flight_max = 16;
  model.facts.ports.push_back({.number = 1,
                               .state = PortState::active,
                               .active_mtu = 4096,
                               .gbit_per_s = 100,
                               .message_bytes_max = uint64_t{1} << 30});
  return model;
}

}  // namespace

AdapterModel soft_roce(int host, int number) {
  AdapterModel model = hardware(cat("rxe", number), host, number);
  model.facts.firmware.clear();
  model.facts.is_software = true;
  model.facts.numa_node = -1;
  model.facts.queue_depth_max = 1048576;
  model.facts.completions_max = 32767;
  model.facts.scatter_max = 32;
  model.facts.reads_in_flight_max = 128;
  rdma::PortFacts& port = model.facts.ports[0];
  port.link = LinkLayer::ethernet;
  port.active_mtu = 1024;
  port.gbit_per_s = 2.5;
  port.message_bytes_max = 8 << 20;
  const std::string interface = cat("eth", number);
  port.gids = {{0, link_local(host, number), GidType::roce_v2, interface},
               {1, ipv4(host, number), GidType::roce_v2, interface}};
  port.pkeys = {0xffff};
  return model;
}

AdapterModel ethernet(int host, int number) {
  AdapterModel model = hardware(cat("mlx5_", number), host, number);
  rdma::PortFacts& port = model.facts.ports[0];
  port.link = LinkLayer::ethernet;
  port.active_mtu = 1024;
  const std::string interface = cat("eth", number);
  port.gids = {{0, link_local(host, number), GidType::roce_v1, interface},
               {1, link_local(host, number), GidType::roce_v2, interface},
               {2, ipv4(host, number), GidType::roce_v1, interface},
               {3, ipv4(host, number), GidType::roce_v2, interface}};
  port.pkeys = {0xffff};
  return model;
}

AdapterModel infiniband(int host, int number, int subnet) {
  AdapterModel model = hardware(cat("mlx5_", number), host, number);
  rdma::PortFacts& port = model.facts.ports[0];
  port.link = LinkLayer::infiniband;
  port.lid = static_cast<uint16_t>(7 + host + 100 * number);
  Gid gid = link_local(host, number);
  gid.raw[7] = low_byte(subnet);  // the last byte of the subnet's prefix
  port.gids = {{0, gid, GidType::infiniband, ""}};
  port.pkeys = {0x0012, 0xffff};
  return model;
}

const rdma::PortFacts* Adapter::port(int number) const {
  for (const rdma::PortFacts& port : model.facts.ports) {
    if (port.number == number) return &port;
  }
  return nullptr;
}

bool Adapter::is_port_up(int number) const {
  for (std::size_t i = 0; i < model.facts.ports.size(); ++i) {
    if (model.facts.ports[i].number == number) return is_up[i];
  }
  return false;
}

}  // namespace rdmacoll::verbs_sim
