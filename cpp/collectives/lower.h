// Fits a schedule to where memory lies and who can see whose: a pure pass between algorithm and
// executor, so that one ring file serves shared memory, TCP, RDMA and GPUs.
#pragma once

#include <vector>

#include "collectives/schedule.h"

namespace rdmacoll {

struct Placement {
  std::vector<bool> views;     // by rank: publish and await work between us
  bool input_visible = true;   // peers (and devices) can read the caller's input where it lies
  bool output_visible = true;  // ... and the output, and write there
  std::vector<bool> devices;   // by rank: what moves between us moves by a device; empty: nobody
  bool output_shared = false;  // all ranks have the same output memory
};

// send + receive between ranks that see each other's memory become publish + await, and a reduce or
// copy straight from the view; no scratch is left for them. What a viewer must see but cannot
// (memory of the caller outside the pool) is packed into work first, and results that are forwarded
// are made in work and unpacked at the end. A device that moves bytes is such a viewer, too, and
// what it writes is made in work as well. Where all outputs are the same memory nobody sends what
// is there: a word without bytes says that it is. Only for algorithms in which each part of the
// output is written by one rank, once.
Schedule lower(const Schedule& schedule, const Placement& placement);

}  // namespace rdmacoll
