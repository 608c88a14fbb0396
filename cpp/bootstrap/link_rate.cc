#include "bootstrap/link_rate.h"

#include <algorithm>
#include <fstream>

#include "base/text.h"

namespace rdmacoll {

std::string interface_towards(const SocketAddress& theirs,
                              const std::vector<InterfaceAddress>& ours) {
  const auto found = std::find_if(ours.begin(), ours.end(), [&](const InterfaceAddress& one) {
    return one.is_up && one.address.shares_prefix(theirs, one.prefix_bits);
  });
  return found == ours.end() ? "" : found->interface;
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
