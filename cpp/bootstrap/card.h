// A rank's card: its addresses, its build and its settings, as one line of JSON. The caller carries
// the cards between ranks before any connection exists.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bootstrap/addresses.h"
#include "transport/provider.h"

namespace rdmacoll {

// Grows with every change of frames, messages, the handshake, this card or the other texts of a
// start.
inline constexpr uint32_t kWireVersion = 30;

struct Card {
  uint32_t wire = kWireVersion;  // a card of another version is read up to abi
  uint32_t abi = 0;
  std::string host;
  int64_t pid = 0;
  // Boot and network namespace, "BOOT:INODE". Equal for ranks whose abstract Unix sockets may
  // connect.
  std::string node_key;
  std::string cpus;    // CPUs that this rank may run on: "0-3,8"; "": unknown
  int numa_node = -1;  // NUMA node that it is bound to; -1: none
  uint32_t uid = 0;
  std::string unix_name;
  std::vector<SocketAddress> tcp;
  uint64_t pool_bytes = 0;                          // size of this rank's buffer pool
  std::map<std::string, TransportCard> transports;  // by name
  std::map<std::string, std::string> settings;      // those that must be equal on all ranks
};

std::string to_json(const Card& card);

// Reads exactly the text that to_json of the same version writes. `rank` is for messages.
Status parse_card(std::string_view text, int rank, Card& card);

std::string this_node_key();
// The part of a card's node key that all ranks share which share a machine's CPUs; "": unknown.
std::string_view machine_key(const Card& card);
std::string this_host_name();

}  // namespace rdmacoll
