// A rank's card: how it can be reached and what it was built and set to, as one line of JSON. The
// caller carries the cards between ranks before there is any connection.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bootstrap/addresses.h"

namespace rdmacoll {

// Grows with every change of what is sent: frames, messages, handshake, this card.
inline constexpr uint32_t kWireVersion = 26;

struct RdmaCard {
  std::string obstacle;  // why this rank cannot use it, and the cure; "" when it can
  bool has_devices = false;
  std::string request;      // by which settings it was asked for here; "": by none
  uint64_t pool_bytes = 0;  // the largest pool that it could pin, or was told to
};

struct Card {
  uint32_t wire = kWireVersion;  // of another version nothing else is read
  uint32_t abi = 0;
  std::string host;
  int64_t pid = 0;
  // Boot and network namespace, "BOOT:INODE": equal where abstract Unix sockets may connect.
  std::string node_key;
  std::string cpus;    // that this rank may run on: "0-3,8"; "": unknown
  int numa_node = -1;  // that it is bound to; -1: to none
  uint32_t uid = 0;
  std::string unix_name;
  std::vector<SocketAddress> tcp;
  uint64_t pool_bytes = 0;  // of the buffer pool that this rank has made
  RdmaCard rdma;
  std::map<std::string, std::string> settings;  // those that must be equal everywhere
};

std::string to_json(const Card& card);

// Reads exactly what to_json writes, by the same version. `rank` is for messages.
Status parse_card(std::string_view text, int rank, Card& card);

std::string this_node_key();
// Of a node's key: equal for all that share the CPUs of a machine; "": unknown.
std::string_view machine_key(const Card& card);
std::string this_host_name();

}  // namespace rdmacoll
