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
// (memory of the caller outside the pool) is packed into work first. So are results that are
// forwarded: they are made where the caller wants them, since a processor that reduces into lines
// which a peer has read waits for each of them, while a long copy there does not. A device that
// moves bytes is such a viewer, too; what it reads or writes is made in work and unpacked at the
// end. Where all outputs are the same memory nobody sends what
// is there: a word without bytes says that it is. Only for algorithms in which each part of the
// output is written by one rank, once.
Schedule lower(const Schedule& schedule, const Placement& placement);

}  // namespace rdmacoll
