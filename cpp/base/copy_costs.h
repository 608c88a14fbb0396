// The costs of a copy between pinned host memory and a GPU, in the slower direction.
#pragma once

namespace rdmacoll {

struct CopyCosts {
  double start_us = 0;      // a copy of no bytes takes so long until the host sees its end
  double bytes_per_us = 0;  // 0: not measured

  bool is_known() const { return bytes_per_us > 0; }
  bool operator==(const CopyCosts&) const = default;
};

}  // namespace rdmacoll
