// An open device of the library, and its facts.
#include <fcntl.h>
#include <net/if.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "transport/rdma/libibverbs.h"

namespace rdmacoll::rdma {
namespace {

PortState state_of(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return PortState::down;
    case IBV_PORT_INIT:
      return PortState::init;
    case IBV_PORT_ARMED:
      return PortState::armed;
    case IBV_PORT_ACTIVE:
    case IBV_PORT_ACTIVE_DEFER:
      return PortState::active;
    default:
      return PortState::other;
  }
}

LinkLayer link_of(uint8_t link) {
  // Kernels that do not report it know only InfiniBand.
  if (link == IBV_LINK_LAYER_INFINIBAND || link == IBV_LINK_LAYER_UNSPECIFIED) {
    return LinkLayer::infiniband;
  }
  return link == IBV_LINK_LAYER_ETHERNET ? LinkLayer::ethernet : LinkLayer::unknown;
}

GidType type_of(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_IB:
      return GidType::infiniband;
    case IBV_GID_TYPE_ROCE_V1:
      return GidType::roce_v1;
    case IBV_GID_TYPE_ROCE_V2:
      return GidType::roce_v2;
    default:
      return GidType::unknown;
  }
}

Gid gid_from(const ibv_gid& from) {
  Gid gid;
  std::copy(std::begin(from.raw), std::end(from.raw), gid.raw.begin());
  return gid;
}

// Reads the GIDs of all ports. Returns false if library or kernel cannot do it in one call.
bool read_gid_table(const Context& context, std::size_t entries_max,
                    std::vector<ibv_gid_entry>& entries) {
  if (context.library().query_gid_table == nullptr) return false;
  entries.resize(entries_max);
  const ssize_t count = context.library().query_gid_table(context.get(), entries.data(),
                                                          entries.size(), 0, sizeof(ibv_gid_entry));
  if (count < 0) return false;
  entries.resize(static_cast<std::size_t>(count));
  return true;
}

std::vector<GidFacts> gids_of(const std::vector<ibv_gid_entry>& entries, int port) {
  std::vector<GidFacts> gids;
  for (const ibv_gid_entry& entry : entries) {
    GidFacts facts{.index = static_cast<int>(entry.gid_index),
                   .gid = gid_from(entry.gid),
                   .type = type_of(entry.gid_type),
                   .interface = {}};
    if (static_cast<int>(entry.port_num) != port || facts.gid.is_zero()) continue;
    char name[IF_NAMESIZE] = {};
    if (entry.ndev_ifindex != 0 && ::if_indextoname(entry.ndev_ifindex, name) != nullptr) {
      facts.interface = name;
    }
    gids.push_back(std::move(facts));
  }
  return gids;
}

std::vector<uint16_t> pkeys_of(const Context& context, int port, int count) {
  std::vector<uint16_t> pkeys;
  for (int index = 0; index < count; ++index) {
    __be16 pkey = 0;
    context.library().query_pkey(context.get(), static_cast<uint8_t>(port), index, &pkey);
    pkeys.push_back(be16toh(pkey));
  }
  return pkeys;
}

PortFacts port_facts(const Context& context, int number, const ibv_port_attr& attributes) {
  return {.number = number,
          .state = state_of(attributes.state),
          .link = link_of(attributes.link_layer),
          .active_mtu = mtu_bytes(attributes.active_mtu),
          .gbit_per_s = 0,
          .lid = attributes.lid,
          .message_bytes_max = attributes.max_msg_sz,
          .gids = {},
          .pkeys = pkeys_of(context, number, attributes.pkey_tbl_len)};
}

}  // namespace

Context::Context(const Library& library, ibv_context* context)
    : library_(library), context_(context), commands_(context->cmd_fd), events_(context->async_fd) {
  const int flags = ::fcntl(events_.get(), F_GETFL);
  ::fcntl(events_.get(), F_SETFL, flags | O_NONBLOCK);
}

Context::~Context() {
  // The library closes these descriptors.
  commands_.release();
  events_.release();
  library_.close_device(context_);
}

// Does the work of the macro ibv_query_port. It prefers the driver's function, since the library's
// function fills only the fields of the first version.
bool Context::query_port(int port, ibv_port_attr& attributes) const {
  std::memset(&attributes, 0, sizeof(attributes));
  const auto number = static_cast<uint8_t>(port);
  if (verbs_context* driver = verbs_get_ctx_op(context_, query_port); driver != nullptr) {
    return driver->query_port(context_, number, &attributes, sizeof(attributes)) == 0;
  }
  return library_.query_port(context_, number,
                             reinterpret_cast<_compat_ibv_port_attr*>(&attributes)) == 0;
}

Gid Context::gid(int port, int index) const {
  ibv_gid gid{};
  if (library_.query_gid(context_, static_cast<uint8_t>(port), index, &gid) != 0) return {};
  return gid_from(gid);
}

DeviceFacts facts_of(const Context& context, const Sysfs& sysfs) {
  DeviceFacts facts{.name = context.get()->device->name};
  facts.is_software = sysfs.is_software(facts.name);
  facts.numa_node = sysfs.numa_node(facts.name);
  facts.node_guid = sysfs.node_guid(facts.name);
  ibv_device_attr device{};
  if (context.library().query_device(context.get(), &device) != 0) {
    facts.unusable = "does not answer (ibv_query_device)";
    return facts;
  }
  facts.firmware = device.fw_ver;
  facts.queue_depth_max = device.max_qp_wr;
  facts.completions_max = device.max_cqe;
  facts.scatter_max = device.max_sge;
  facts.reads_in_flight_max = device.max_qp_rd_atom;

  std::size_t gids_max = 0;
  std::vector<int> gid_counts;
  for (int number = 1; number <= device.phys_port_cnt; ++number) {
    ibv_port_attr attributes;
    if (!context.query_port(number, attributes)) continue;
    facts.ports.push_back(port_facts(context, number, attributes));
    facts.ports.back().gbit_per_s = sysfs.gbit_per_s(facts.name, number);
    gid_counts.push_back(attributes.gid_tbl_len);
    gids_max += static_cast<std::size_t>(std::max(attributes.gid_tbl_len, 0));
  }
  std::vector<ibv_gid_entry> table;
  const bool has_table = read_gid_table(context, gids_max, table);
  for (std::size_t i = 0; i < facts.ports.size(); ++i) {
    PortFacts& port = facts.ports[i];
    port.gids = has_table ? gids_of(table, port.number)
                          : sysfs.gids(facts.name, port.number, gid_counts[i]);
  }
  return facts;
}

}  // namespace rdmacoll::rdma
