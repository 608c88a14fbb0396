#include "bootstrap/link_rate.h"

#include <fstream>

#include "base/text.h"

namespace rdmacoll {

std::string interface_towards(const SocketAddress& theirs,
                              const std::vector<InterfaceAddress>& ours) {
  const InterfaceAddress* found = nullptr;
  for (const InterfaceAddress& one : ours) {
    const bool is_near = one.is_up && one.address.shares_prefix(theirs, one.prefix_bits);
    if (is_near && (found == nullptr || one.prefix_bits > found->prefix_bits)) found = &one;
  }
  if (found == nullptr) return "";
  return found->interface.substr(0, found->interface.find(':'));  // "eth0:1" is an address of eth0
}

double interface_gbit_per_s(const std::string& root, const std::string& interface) {
  if (interface.empty()) return 0;
  std::ifstream stream(cat(root, "/", interface, "/speed"));
  double mbit = 0;
  constexpr double kNobodysRate = 4'294'967'295;  // -1, as some kernels write it
  if (!(stream >> mbit) || mbit <= 0 || mbit >= kNobodysRate) return 0;
  return mbit / 1000;
}

}  // namespace rdmacoll
