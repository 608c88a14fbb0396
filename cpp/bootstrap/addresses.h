// Socket addresses, and the choice of this host's addresses that a job listens on.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace rdmacoll {

// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  explicit SocketAddress(const sockaddr* address);  // an IPv4 or IPv6 address

  // "10.0.0.1:4711", "[fd00::1]:4711"; numbers only, nothing is looked up.
  static std::optional<SocketAddress> parse(std::string_view text);
  // "10.0.0.1", "fd00::1"; port 0.
  static std::optional<SocketAddress> parse_host(std::string_view text);

  std::string text() const;
  std::string host() const;
  int family() const { return storage_.ss_family; }
  uint16_t port() const;
  void set_port(uint16_t port);
  bool is_loopback() const;
  bool is_link_local() const;  // IPv6: of use only with an interface's name
  bool shares_prefix(const SocketAddress& other, int bits) const;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t bytes() const;

 private:
  std::span<const uint8_t> ip() const;

  sockaddr_storage storage_{};
};

struct InterfaceAddress {
  std::string interface;
  SocketAddress address;
  int prefix_bits = 0;
  bool is_up = true;
};
std::vector<InterfaceAddress> interface_addresses();

// Chooses the addresses to listen on. `setting` is RDMACOLL_INTERFACE: names and networks
// ("eth0,10.1.0.0/16"), or "" for automatic. Automatic takes all addresses that are up, and last
// the loopback address, for ranks of this host. ConfigError if an item of the setting fits no
// address.
Status choose_addresses(const std::vector<InterfaceAddress>& present, const std::string& setting,
                        std::vector<SocketAddress>& chosen);

// The order in which a peer's addresses are tried: those on a network of ours first. Loopback
// addresses reach the peer only if it shares our network namespace (`same_host`). Then they come
// first.
std::vector<SocketAddress> dial_order(const std::vector<SocketAddress>& theirs,
                                      const std::vector<InterfaceAddress>& ours, bool same_host);

}  // namespace rdmacoll
