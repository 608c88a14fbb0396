// Facts about the RDMA devices of this machine. They are plain values, so the choice among them is
// a pure function and tests can use recorded machines.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rdmacoll::rdma {

enum class LinkLayer : uint8_t { unknown, infiniband, ethernet };
enum class PortState : uint8_t { down, init, armed, active, other };
enum class GidType : uint8_t { infiniband, roce_v1, roce_v2, unknown };
std::string_view text(LinkLayer link);   // "InfiniBand"
std::string_view text(PortState state);  // "active"
std::string_view text(GidType type);     // "RoCE v2"

struct Gid {
  std::array<uint8_t, 16> raw{};

  bool is_zero() const { return *this == Gid{}; }
  bool is_link_local() const { return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80; }
  bool is_ipv4() const;  // ::ffff:a.b.c.d, including the link-local 169.254.0.0/16
  bool is_of_subnet(const Gid& other) const;  // InfiniBand: the same prefix
  std::string text() const;                   // "fe80::1", "::ffff:10.9.0.1"
  bool operator==(const Gid&) const = default;
};

struct GidFacts {
  int index = 0;
  Gid gid;
  GidType type = GidType::unknown;
  std::string interface;  // the network interface behind it, if there is one
};

struct PortFacts {
  int number = 1;
  PortState state = PortState::other;
  LinkLayer link = LinkLayer::unknown;
  uint32_t active_mtu = 0;  // bytes
  double gbit_per_s = 0;    // rate of the link: width times speed
  uint16_t lid = 0;         // InfiniBand
  uint64_t message_bytes_max = 0;
  std::vector<GidFacts> gids;   // entries that are set
  std::vector<uint16_t> pkeys;  // by index; 0: not set
};

struct DeviceFacts {
  std::string name;
  std::string firmware;
  std::string node_guid;  // "0011:2233:4455:6677"
  // Why the device cannot carry data ("is an iWARP device"), or "". If set, other facts are
  // unknown.
  std::string unusable;
  bool is_software = false;  // soft-RoCE: no hardware, and its own timers
  int numa_node = -1;
  int queue_depth_max = 0;      // work requests of one queue
  int completions_max = 0;      // entries of one completion queue
  int scatter_max = 0;          // pieces of one work request
  int reads_in_flight_max = 0;  // max_qp_rd_atom
  std::vector<PortFacts> ports;
};

}  // namespace rdmacoll::rdma
