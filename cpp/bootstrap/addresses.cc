#include "bootstrap/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <memory>
#include <sstream>

#include "base/text.h"

namespace rdmacoll {
namespace {

std::optional<int> parse_number(std::string_view text, int max) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > max) {
    return std::nullopt;
  }
  return value;
}

struct Network {
  SocketAddress address;
  int bits = 0;
};

// "10.1.0.0/16", or a bare address, which is a network of one.
std::optional<Network> parse_network(std::string_view text) {
  const std::size_t slash = text.find('/');
  const auto address = SocketAddress::parse_host(text.substr(0, slash));
  if (!address) return std::nullopt;
  const int whole = address->family() == AF_INET ? 32 : 128;
  if (slash == std::string_view::npos) return Network{*address, whole};
  const std::optional<int> bits = parse_number(text.substr(slash + 1), whole);
  if (!bits) return std::nullopt;
  return Network{*address, *bits};
}

std::string describe(const std::vector<InterfaceAddress>& present) {
  std::vector<std::string> names;
  for (const InterfaceAddress& one : present) {
    names.push_back(cat(one.interface, " ", one.address.host(), "/", one.prefix_bits,
                        one.is_up ? "" : " (down)"));
  }
  return names.empty() ? "none" : join(names, ", ");
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address) {
  RC_ASSERT(address->sa_family == AF_INET || address->sa_family == AF_INET6);
  std::memcpy(&storage_, address,
              address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
}

std::optional<SocketAddress> SocketAddress::parse_host(std::string_view text) {
  const std::string host(text);
  sockaddr_in v4{.sin_family = AF_INET};
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    return SocketAddress(reinterpret_cast<const sockaddr*>(&v4));
  }
  sockaddr_in6 v6{.sin6_family = AF_INET6};
  if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) {
    return SocketAddress(reinterpret_cast<const sockaddr*>(&v6));
  }
  return std::nullopt;
}

std::optional<SocketAddress> SocketAddress::parse(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  std::optional<SocketAddress> address = parse_host(host);
  const std::optional<int> port = parse_number(text.substr(colon + 1), 65'535);
  if (!address || !port || bracketed != (address->family() == AF_INET6)) return std::nullopt;
  address->set_port(static_cast<uint16_t>(*port));
  return address;
}

std::span<const uint8_t> SocketAddress::ip() const {
  if (family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage_);
    return {reinterpret_cast<const uint8_t*>(&v4->sin_addr), 4};
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage_);
  return {reinterpret_cast<const uint8_t*>(&v6->sin6_addr), 16};
}

std::string SocketAddress::host() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(family(), ip().data(), text.data(), text.size());
  return text.data();
}

std::string SocketAddress::text() const {
  return family() == AF_INET6 ? cat("[", host(), "]:", port()) : cat(host(), ":", port());
}

// Both families have the port at the same place.
uint16_t SocketAddress::port() const {
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

void SocketAddress::set_port(uint16_t port) {
  reinterpret_cast<sockaddr_in*>(&storage_)->sin_port = htons(port);
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return ip()[0] == 127;
  return std::all_of(ip().begin(), ip().end() - 1, [](uint8_t byte) { return byte == 0; }) &&
         ip()[15] == 1;
}

bool SocketAddress::is_link_local() const {
  return family() == AF_INET6 && ip()[0] == 0xfe && (ip()[1] & 0xc0) == 0x80;
}

bool SocketAddress::shares_prefix(const SocketAddress& other, int bits) const {
  if (family() != other.family() || bits < 0 || bits > static_cast<int>(ip().size()) * 8) {
    return false;
  }
  const std::size_t whole = static_cast<std::size_t>(bits) / 8;
  if (!std::equal(ip().begin(), ip().begin() + static_cast<std::ptrdiff_t>(whole),
                  other.ip().begin())) {
    return false;
  }
  const int rest = bits % 8;
  return rest == 0 || ((ip()[whole] ^ other.ip()[whole]) >> (8 - rest)) == 0;
}

socklen_t SocketAddress::bytes() const {
  return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<InterfaceAddress> addresses;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_netmask == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const SocketAddress address(one->ifa_addr);
    if (address.is_link_local()) continue;
    int bits = 0;
    const auto* mask = reinterpret_cast<const uint8_t*>(one->ifa_netmask);
    const std::size_t offset =
        family == AF_INET ? offsetof(sockaddr_in, sin_addr) : offsetof(sockaddr_in6, sin6_addr);
    for (std::size_t i = 0; i < (family == AF_INET ? 4u : 16u); ++i) {
      bits += std::popcount(mask[offset + i]);
    }
    addresses.push_back({one->ifa_name, address, bits, (one->ifa_flags & IFF_UP) != 0});
  }
  return addresses;
}

Status choose_addresses(const std::vector<InterfaceAddress>& present, const std::string& setting,
                        std::vector<SocketAddress>& chosen) {
  chosen.clear();
  if (setting.empty() || setting == "auto" || setting == "automatic") {
    for (const InterfaceAddress& one : present) {
      if (one.is_up && !one.address.is_loopback()) chosen.push_back(one.address);
    }
    chosen.push_back(*SocketAddress::parse_host("127.0.0.1"));
    return {};
  }
  std::istringstream items(setting);
  for (std::string item; std::getline(items, item, ',');) {
    const std::optional<Network> network = parse_network(item);
    std::size_t found = 0;
    for (const InterfaceAddress& one : present) {
      const bool fits = network ? one.address.shares_prefix(network->address, network->bits)
                                : one.interface == item;
      if (!one.is_up || !fits) continue;
      chosen.push_back(one.address);
      ++found;
    }
    if (found == 0) {
      return Status(Code::invalid,
                    cat("RDMACOLL_INTERFACE=", setting, ": ", item,
                        " is no interface or network of this host that is up and has an address. "
                        "There are: ",
                        describe(present), "."));
    }
  }
  return {};
}

std::vector<SocketAddress> dial_order(const std::vector<SocketAddress>& theirs,
                                      const std::vector<InterfaceAddress>& ours, bool same_host) {
  std::vector<SocketAddress> loopback, near, far;
  for (const SocketAddress& address : theirs) {
    const bool is_near = std::any_of(ours.begin(), ours.end(), [&](const InterfaceAddress& one) {
      return one.is_up && one.address.shares_prefix(address, one.prefix_bits);
    });
    (address.is_loopback() ? loopback : is_near ? near : far).push_back(address);
  }
  std::vector<SocketAddress> order;
  if (same_host) order = loopback;
  order.insert(order.end(), near.begin(), near.end());
  order.insert(order.end(), far.begin(), far.end());
  return order;
}

}  // namespace rdmacoll
