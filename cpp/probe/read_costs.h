// The costs of one-copy reads, from the times of three reads. Pure.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace rdmacoll::probe {

// Times of reads of a peer's memory, in nanoseconds.
struct ReadTimes {
  double one_page = 0;   // a byte of one page
  double each_page = 0;  // a byte of each page
  double all_bytes = 0;  // all bytes of these pages
};

// A read takes the time of the call, plus that of each page, plus that of the bytes. A rate of 0:
// the times make no sense. Another program has disturbed them.
struct ReadCosts {
  double call_ns = 0;
  double page_ns = 0;
  double bytes_per_us = 0;

  bool is_known() const { return bytes_per_us > 0; }
};

// `pages`: the number of pages of the longer reads, 2 at least.
ReadCosts costs_of(const ReadTimes& times, double pages, double page_bytes);

}  // namespace rdmacoll::probe
