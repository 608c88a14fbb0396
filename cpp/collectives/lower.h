// Fits a schedule to where memory lies and which ranks see it. A pure pass between algorithm and
// executor, so that one ring file serves shared memory, TCP, RDMA and GPUs.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "collectives/schedule.h"

namespace rdmacoll {

// The memory of the callers' inputs, or of their outputs.
enum class CallerMemory : uint8_t {
  visible,  // memory beside the work memory that peers and NICs read and write in place
  hidden,   // memory of this process alone, on the host or on the GPU of the work memory
  device,   // a GPU has some of it: processors cannot reach it, and NICs may (DirectAccess)
};

// The access of NICs to callers' memory on GPUs (GPUDirect RDMA).
struct DirectAccess {
  bool reads_input = false;
  bool reads_output = false;
  bool writes_output = false;

  auto operator<=>(const DirectAccess&) const = default;
};

struct Placement {
  std::vector<bool> views;  // by rank: whether publish and await work with it
  CallerMemory input = CallerMemory::visible;
  CallerMemory output = CallerMemory::visible;
  std::vector<bool> nics;      // by rank: whether a NIC moves the bytes; empty: nowhere
  bool output_shared = false;  // all ranks have the same output memory, which no GPU has
  DirectAccess direct = {};    // for memory that is `device`
  // By rank: whether it and this rank may write to what the other one publishes. Empty: nobody.
  std::vector<bool> lends = {};
};

// Between ranks that see each other's memory, send + receive become publish + await, and reduce and
// copy read straight from the view. These transfers need no scratch slots.
//
// Data that a viewer must read but cannot see (caller's memory outside the pool) is packed into
// work first. Results that are forwarded are packed, too: they are first made in the caller's
// memory. A processor that reduces into lines which a peer has read waits for each line, while a
// long copy into such lines does not.
//
// A slot that is sent to a rank, and comes back from there with other data, is lent to the viewer.
// It writes that data to the view, and its release says that this is done.
//
// A NIC that moves bytes counts as a viewer. Outputs that it reads or writes are made in work and
// unpacked at the end.
//
// Work memory lies on the host, or on a GPU (Recipe::on_gpu). There, kernels reach the callers'
// memory of that GPU. It is visible if peers have opened it, and hidden otherwise.
//
// With work memory on the host, memory of GPUs is staged. Each input is packed before its first
// use, and each output is made in work and unpacked at the end. Other
// steps touch such memory in two cases. NICs with direct access send inputs, and they receive and
// pass on outputs that no processor reads or writes. A copy from an input to such an output stays
// on the GPU.
//
// If all outputs are the same memory, output data is not sent: a message without bytes says that
// the data is there. This is only for algorithms in which each part of the output is written by one
// rank, once.
Schedule lower(const Schedule& schedule, const Placement& placement);

}  // namespace rdmacoll
