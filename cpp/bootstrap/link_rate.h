// What the links between nodes carry, as far as the kernel knows.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/addresses.h"

namespace rdmacoll {

// The interface of ours on whose network the address is, the smallest one; "": none, it is reached
// through a router.
std::string interface_towards(const SocketAddress& theirs,
                              const std::vector<InterfaceAddress>& ours);

// In Gbit/s. `root` is /sys/class/net, or in tests a folder like it. 0: the kernel does not know
// (loopback, many virtual machines, an interface that is down).
double interface_gbit_per_s(const std::string& root, const std::string& interface);

}  // namespace rdmacoll
