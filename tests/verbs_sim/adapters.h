// The adapters of simulated hosts: their ports, GIDs, limits and state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "transport/rdma/facts.h"

namespace rdmacoll::verbs_sim {

struct AdapterModel {
  rdma::DeviceFacts facts;
  uint32_t inline_bytes_max = 512;
  std::size_t queue_pairs_max = 1024;
  std::size_t lockable_bytes = std::numeric_limits<std::size_t>::max();  // RLIMIT_MEMLOCK
  bool has_peer_memory = true;                                           // the kernel's module
  bool takes_dma_bufs = true;
};

// Host and number make every address unique. Soft-RoCE: both GIDs are RoCE v2, link-local first.
AdapterModel soft_roce(int host, int number = 0);
// Like an mlx5: four GIDs, link-local and IPv4, each as v1 and as v2.
AdapterModel ethernet(int host, int number = 0);
// Like an mlx5 on InfiniBand: PKEY index 0 is a limited membership, and index 1 is the default one.
// LIDs start anew in every subnet.
AdapterModel infiniband(int host, int number = 0, int subnet = 0);

class GpusOfHost;

struct Adapter {
  AdapterModel model;
  int host = 0;
  GpusOfHost* gpus = nullptr;       // the host's
  std::vector<bool> is_up;          // by the port's position
  bool is_broken = false;           // device fatal
  bool is_gone = false;             // removed from the machine
  uint32_t next_queue_pair = 0x11;  // equal on all adapters, since numbers are unique only within
                                    // an adapter

  // Returns null if there is no port of that number.
  const rdma::PortFacts* port(int number) const;
  bool is_port_up(int number) const;
};

}  // namespace rdmacoll::verbs_sim
