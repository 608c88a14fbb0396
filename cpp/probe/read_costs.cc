#include "probe/read_costs.h"

#include <algorithm>

namespace rdmacoll::probe {

ReadCosts costs_of(const ReadTimes& times, double pages, double page_bytes) {
  const double more_pages = pages - 1;
  const double more = times.all_bytes - times.one_page;
  if (times.one_page <= 0 || more <= 0) return {};
  // A read of whole pages has no list of pieces, so a page costs at most what it costs there.
  const double page =
      std::clamp((times.each_page - times.one_page) / more_pages, 0.0, more / more_pages / 2);
  const double call = std::max(times.one_page - page, 1.0);
  const double moved = times.all_bytes - call - page * pages;
  if (moved <= 0) return {};
  return {call, page, pages * page_bytes * kMicrosecond / moved};
}

}  // namespace rdmacoll::probe
