// Socket addresses, and which of this host's a job listens on.
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
  explicit SocketAddress(const sockaddr* address);  // of one of the two families

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
  bool is_link_local() const;  // IPv6: of no use without naming an interface of this host
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

// `setting` is RDMACOLL_INTERFACE: names and networks ("eth0,10.1.0.0/16"), or "" for automatic:
// all that are up, the loopback address last, which serves ranks of this host.
Status choose_addresses(const std::vector<InterfaceAddress>& present, const std::string& setting,
                        std::vector<SocketAddress>& chosen);

// In which order a peer's addresses are tried: those on a network of ours first. Loopback addresses
// mean the peer only when it shares our network namespace, and then they come first.
std::vector<SocketAddress> dial_order(const std::vector<SocketAddress>& theirs,
                                      const std::vector<InterfaceAddress>& ours, bool same_host);

}  // namespace rdmacoll
