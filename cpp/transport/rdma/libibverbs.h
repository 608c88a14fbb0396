// The private header of the files libibverbs*.cc. librdmacoll must load on machines without
// libibverbs, so it looks up the library's functions at run time.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "transport/rdma/sysfs.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll::rdma {

// The functions of the library. Their names differ from the library's, since ibv_reg_mr,
// ibv_query_port and ibv_get_device_list are macros in its header. The frequent calls (post, poll,
// arm) belong to the driver, not to the library: context->ops.
struct Library {
  ibv_device** (*device_list)(int* count);
  void (*free_device_list)(ibv_device** list);
  ibv_context* (*open_device)(ibv_device* device);
  int (*close_device)(ibv_context* context);
  int (*query_device)(ibv_context* context, ibv_device_attr* attributes);
  int (*query_port)(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attributes);
  int (*query_gid)(ibv_context* context, uint8_t port, int index, ibv_gid* gid);
  int (*query_pkey)(ibv_context* context, uint8_t port, int index, __be16* pkey);
  ibv_pd* (*allocate_domain)(ibv_context* context);
  int (*free_domain)(ibv_pd* domain);
  ibv_mr* (*register_memory)(ibv_pd* domain, void* memory, size_t bytes, int access);
  int (*deregister_memory)(ibv_mr* region);
  ibv_comp_channel* (*create_channel)(ibv_context* context);
  int (*destroy_channel)(ibv_comp_channel* channel);
  ibv_cq* (*create_queue)(ibv_context* context, int entries, void* user, ibv_comp_channel* channel,
                          int vector);
  int (*destroy_queue)(ibv_cq* queue);
  int (*take_queue_event)(ibv_comp_channel* channel, ibv_cq** queue, void** user);
  void (*acknowledge_queue_events)(ibv_cq* queue, unsigned int count);
  ibv_qp* (*create_pair)(ibv_pd* domain, ibv_qp_init_attr* attributes);
  int (*modify_pair)(ibv_qp* pair, ibv_qp_attr* attributes, int mask);
  int (*destroy_pair)(ibv_qp* pair);
  int (*take_async_event)(ibv_context* context, ibv_async_event* event);
  void (*acknowledge_async_event)(ibv_async_event* event);
  const char* (*event_text)(ibv_event_type type);
  int (*fork_init)();
  // Null if the library is older than these functions.
  ssize_t (*query_gid_table)(ibv_context* context, ibv_gid_entry* entries, size_t count,
                             uint32_t flags, size_t entry_bytes);
  ibv_fork_status (*fork_status)();
  ibv_mr* (*register_dma_buf)(ibv_pd* domain, uint64_t offset, size_t bytes, uint64_t address,
                              int descriptor, int access);

  std::string warning;  // Verbs::warning()
};

// Loads the library at the first call in the process, and prepares it for forks. It is never
// unloaded, since drivers have threads and handlers of their own.
Status load_library(const Library*& library);

// An open device of the library and its two descriptors. A forked child closes the descriptors.
// Otherwise it would keep the queue pairs of a dead parent alive.
class Context {
 public:
  Context(const Library& library, ibv_context* context);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();

  const Library& library() const { return library_; }
  ibv_context* get() const { return context_; }
  bool query_port(int port, ibv_port_attr& attributes) const;
  // The GID of a port at `index`, or all zero.
  Gid gid(int port, int index) const;

 private:
  const Library& library_;
  ibv_context* context_;
  Fd commands_;
  Fd events_;
};

inline uint32_t mtu_bytes(ibv_mtu mtu) { return 128u << mtu; }

DeviceFacts facts_of(const Context& context, const Sysfs& sysfs);

Status open_verbs_device(std::unique_ptr<Context> context, DeviceFacts facts, uint32_t completions,
                         std::unique_ptr<Device>& device);

// The parts of a device that a queue pair uses. The device outlives the queue pair.
struct QueuePairResources {
  const Context* context = nullptr;
  const DeviceFacts* facts = nullptr;
  ibv_pd* domain = nullptr;
  ibv_cq* completions = nullptr;
  int port = 1;
  int gid_index = 0;
  int pkey_index = 0;
};
Status make_queue_pair(const QueuePairResources& resources, const QueuePairLimits& limits,
                       std::unique_ptr<QueuePair>& queue_pair);

}  // namespace rdmacoll::rdma
