// A device of the library with its protection domain, completion queue and events.
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <optional>

#include "base/system_error.h"
#include "base/text.h"
#include "transport/rdma/error_texts.h"
#include "transport/rdma/libibverbs.h"

namespace rdmacoll::rdma {
namespace {

// Acknowledging takes a lock of the library, so several events are acknowledged together.
constexpr unsigned kEventsPerAcknowledgement = 64;
constexpr std::size_t kPolledAtOnce = 32;
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
// A read by a NIC makes its earlier writes to GPU memory visible.
constexpr int kAccessOfGpuMemory = kAccess | IBV_ACCESS_REMOTE_READ;

class VerbsRegistration final : public Registration {
 public:
  VerbsRegistration(const Library& library, ibv_mr* region) : library_(library), region_(region) {}
  VerbsRegistration(const VerbsRegistration&) = delete;
  VerbsRegistration& operator=(const VerbsRegistration&) = delete;
  ~VerbsRegistration() override { library_.deregister_memory(region_); }

  MemoryKeys keys() const override { return {region_->lkey, region_->rkey}; }

 private:
  const Library& library_;
  ibv_mr* region_;
};

CompletionKind kind_of(ibv_wc_opcode opcode) {
  if (opcode == IBV_WC_RECV) return CompletionKind::received;
  if (opcode == IBV_WC_RECV_RDMA_WITH_IMM) return CompletionKind::received_immediate;
  return CompletionKind::sent;
}

Completion completion_from(const ibv_wc& from) {
  Completion completion{.id = from.wr_id,
                        .queue_pair = from.qp_num,
                        .status = static_cast<int>(from.status),
                        .vendor_error = from.vendor_err};
  if (from.status != IBV_WC_SUCCESS) return completion;
  completion.kind = kind_of(from.opcode);
  if (completion.kind != CompletionKind::sent) completion.bytes = from.byte_len;
  if ((from.wc_flags & IBV_WC_WITH_IMM) != 0) completion.immediate = be32toh(from.imm_data);
  return completion;
}
static_assert(kNotCarriedOut == IBV_WC_LOC_QP_OP_ERR && kFlushed == IBV_WC_WR_FLUSH_ERR,
              "verbs.h has the library's number of its own");

AsyncEvent event_from(const Library& library, const ibv_async_event& from) {
  AsyncEvent event{.text = library.event_text(from.event_type)};
  switch (from.event_type) {
    case IBV_EVENT_PORT_ACTIVE:
      event.kind = EventKind::port_up;
      event.port = from.element.port_num;
      break;
    case IBV_EVENT_PORT_ERR:
      event.kind = EventKind::port_down;
      event.port = from.element.port_num;
      break;
    case IBV_EVENT_DEVICE_FATAL:
      event.kind = EventKind::device_fatal;
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      event.kind = EventKind::queue_pair_fatal;
      event.queue_pair = from.element.qp->qp_num;
      break;
    case IBV_EVENT_CQ_ERR:
      event.kind = EventKind::completion_queue_fatal;
      break;
    default:
      break;
  }
  return event;
}

class VerbsDevice final : public Device {
 public:
  VerbsDevice(std::unique_ptr<Context> context, DeviceFacts facts)
      : context_(std::move(context)), facts_(std::move(facts)) {}
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;
  ~VerbsDevice() override {
    if (queue_ != nullptr) {
      acknowledge();
      library().destroy_queue(queue_);
    }
    channel_descriptor_.release();  // the library closes it
    if (channel_ != nullptr) library().destroy_channel(channel_);
    if (domain_ != nullptr) library().free_domain(domain_);
  }

  Status start(uint32_t completions) {
    if (completions > static_cast<uint32_t>(facts_.completions_max)) {
      return {Code::failed, cat("a completion queue of ", completions, " entries is more than the ",
                                facts_.completions_max, " that ", facts_.name,
                                " can have: use fewer ranks or another device.")};
    }
    domain_ = library().allocate_domain(context_->get());
    if (domain_ == nullptr) return exhausted("a protection domain", errno);
    channel_ = library().create_channel(context_->get());
    if (channel_ == nullptr) return exhausted("a completion channel", errno);
    channel_descriptor_ = Fd(channel_->fd);
    ::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
    queue_ = library().create_queue(context_->get(), static_cast<int>(std::max(completions, 1u)),
                                    nullptr, channel_, 0);
    if (queue_ == nullptr) {
      return exhausted(cat("a completion queue of ", completions, " entries"), errno);
    }
    return {};
  }

  const DeviceFacts& facts() const override { return facts_; }
  // The kernel answers no query on a removed device. The device's name may stay a little longer.
  bool is_there() const override {
    ibv_port_attr port;
    return facts_.ports.empty() || context_->query_port(facts_.ports.front().number, port);
  }

  Status register_memory(std::byte* memory, std::size_t bytes,
                         std::unique_ptr<Registration>& registration) override {
    ibv_mr* region = library().register_memory(domain_, memory, bytes, kAccess);
    if (region == nullptr) return not_registered(facts_.name, bytes, errno, memory_limit());
    registration = std::make_unique<VerbsRegistration>(library(), region);
    return {};
  }

  Status register_gpu_memory(std::byte* memory, std::size_t bytes,
                             std::unique_ptr<Registration>& registration) override {
    ibv_mr* region = library().register_memory(domain_, memory, bytes, kAccessOfGpuMemory);
    if (region == nullptr) return gpu_memory_not_registered(facts_.name, bytes, errno);
    registration = std::make_unique<VerbsRegistration>(library(), region);
    return {};
  }

  // The kernel checks whether the driver knows dma-bufs before it looks at the descriptor.
  bool takes_dma_bufs() override {
    if (library().register_dma_buf == nullptr) return false;
    if (takes_dma_bufs_) return *takes_dma_bufs_;
    ibv_mr* region = library().register_dma_buf(domain_, 0, 0, 0, -1, 0);
    takes_dma_bufs_ = region == nullptr && errno != EOPNOTSUPP && errno != EPROTONOSUPPORT;
    if (region != nullptr) library().deregister_memory(region);
    return *takes_dma_bufs_;
  }

  Status register_dma_buf(const DmaBufPart& part,
                          std::unique_ptr<Registration>& registration) override {
    RC_ASSERT(library().register_dma_buf != nullptr, "takes_dma_bufs() was not asked");
    ibv_mr* region = library().register_dma_buf(domain_, part.offset, part.bytes,
                                                reinterpret_cast<uint64_t>(part.memory),
                                                part.descriptor, kAccessOfGpuMemory);
    if (region == nullptr) return dma_buf_not_registered(facts_.name, part.bytes, errno);
    registration = std::make_unique<VerbsRegistration>(library(), region);
    return {};
  }

  Status create_queue_pair(const QueuePairLimits& limits, int port, int gid_index, int pkey_index,
                           std::unique_ptr<QueuePair>& queue_pair) override {
    return make_queue_pair({.context = context_.get(),
                            .facts = &facts_,
                            .domain = domain_,
                            .completions = queue_,
                            .port = port,
                            .gid_index = gid_index,
                            .pkey_index = pkey_index},
                           limits, queue_pair);
  }

  std::size_t poll(std::span<Completion> into, Status& status) override {
    std::size_t count = 0;
    while (count < into.size()) {
      const std::size_t wanted = std::min(into.size() - count, entries_.size());
      const int got =
          queue_->context->ops.poll_cq(queue_, static_cast<int>(wanted), entries_.data());
      if (got < 0) {
        status = {Code::failed,
                  cat("the completion queue of ", facts_.name, " is broken (ibv_poll_cq: ", got,
                      "), which a reset of the device or an overflow does.")};
        return count;
      }
      for (int i = 0; i < got; ++i) into[count++] = completion_from(entries_[i]);
      if (static_cast<std::size_t>(got) < wanted) break;
    }
    return count;
  }

  Status arm() override {
    const int error = queue_->context->ops.req_notify_cq(queue_, 0);
    if (error == 0) return {};
    return {Code::failed, cat("events of ", facts_.name, " cannot be requested: ",
                              error_text(error), ". Was the device reset?")};
  }

  int completion_fd() const override { return channel_->fd; }

  void take_completion_events() override {
    ibv_cq* queue = nullptr;
    void* user = nullptr;
    while (library().take_queue_event(channel_, &queue, &user) == 0) ++events_taken_;
    if (events_taken_ >= kEventsPerAcknowledgement) acknowledge();
  }

  int async_fd() const override { return context_->get()->async_fd; }

  bool take_async_event(AsyncEvent& event) override {
    ibv_async_event taken{};
    if (library().take_async_event(context_->get(), &taken) != 0) return false;
    event = event_from(library(), taken);
    library().acknowledge_async_event(&taken);
    return true;
  }

 private:
  const Library& library() const { return context_->library(); }

  // Acknowledges all events. Otherwise destroying the queue would wait for ever.
  void acknowledge() {
    if (events_taken_ != 0) library().acknowledge_queue_events(queue_, events_taken_);
    events_taken_ = 0;
  }

  Status exhausted(const std::string& what, int error) const {
    const std::string refused = cat(facts_.name, " does not give ", what);
    if (is_shortage(error)) return system_error(refused, error);
    const MemoryLimit limit = memory_limit();
    return {
        Code::failed,
        cat(refused, ": ", error_text(error),
            ". Either other programs use up the device (rdma resource show), or the limit on "
            "pinned memory is too small (",
            limit.allowed ? bytes_text(*limit.allowed) : "unlimited", "; ulimit -l unlimited).")};
  }

  std::unique_ptr<Context> context_;
  DeviceFacts facts_;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  Fd channel_descriptor_;
  ibv_cq* queue_ = nullptr;
  unsigned events_taken_ = 0;
  std::optional<bool> takes_dma_bufs_;
  std::array<ibv_wc, kPolledAtOnce> entries_{};
};

}  // namespace

Status open_verbs_device(std::unique_ptr<Context> context, DeviceFacts facts, uint32_t completions,
                         std::unique_ptr<Device>& device) {
  if (!facts.unusable.empty()) return {Code::failed, cat(facts.name, " ", facts.unusable, ".")};
  auto opened = std::make_unique<VerbsDevice>(std::move(context), std::move(facts));
  RC_RETURN_IF_ERROR(opened->start(completions));
  device = std::move(opened);
  return {};
}

}  // namespace rdmacoll::rdma
