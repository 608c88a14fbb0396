// The rates of links between nodes, as far as the kernel knows them.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/addresses.h"

namespace rdmacoll {

// Our interface on whose network the address lies, and on the smallest such network. "": none,
// since a router leads there.
std::string interface_towards(const SocketAddress& theirs,
                              const std::vector<InterfaceAddress>& ours);

// The rate of an interface in Gbit/s. `root`: /sys/class/net, or in tests a folder like it. Returns
// 0 if the kernel does not know (loopback, many virtual machines, an interface that is down).
double interface_gbit_per_s(const std::string& root, const std::string& interface);

}  // namespace rdmacoll
