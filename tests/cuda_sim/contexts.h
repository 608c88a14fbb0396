// Primary contexts of the GPUs, one each.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "cuda/driver_api.h"
#include "cuda_sim/streams.h"

namespace rdmacoll::cuda_sim {

struct Context {
  int gpu = 0;
  int retained = 0;
  cuda::Result error = cuda::kSuccess;  // stays after an illegal access
  std::set<int> peers;                  // GPUs whose memory this context's kernels may touch
  int lock_fd = -1;                     // holds a GPU in exclusive mode
  std::shared_ptr<Stream> legacy;
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread;

  cuda::ContextHandle handle() { return reinterpret_cast<cuda::ContextHandle>(this); }
};

// The calling thread's stack of contexts. The last one is current, and may be null.
std::vector<Context*>& context_stack();

}  // namespace rdmacoll::cuda_sim
