#include "verbs_sim/device.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/event.h"
#include "base/text.h"
#include "transport/rdma/error_texts.h"
#include "verbs_sim/queue_pair.h"

namespace rdmacoll::verbs_sim {

// ---- registered memory ----

SimRegistration::~SimRegistration() { device_.remove(*this); }

bool SimRegistration::holds(uint64_t address, uint64_t bytes) const {
  const auto begin = reinterpret_cast<uint64_t>(memory_);
  return address >= begin && bytes <= bytes_ && address - begin <= bytes_ - bytes;
}

void SimRegistration::read(const std::byte* address, std::span<std::byte> into) const {
  if (is_of_gpu()) return range_->read(address, into);
  std::memmove(into.data(), address, into.size());
}

void SimRegistration::write(std::byte* address, std::span<const std::byte> bytes) const {
  if (is_of_gpu()) return range_->write(&device_.adapter_, address, bytes);
  std::memmove(address, bytes.data(), bytes.size());
}

Status SimDevice::register_memory(std::byte* memory, std::size_t bytes,
                                  std::unique_ptr<rdma::Registration>& registration) {
  RC_RETURN_IF_ERROR(gone());
  const std::size_t lockable = adapter_.model.lockable_bytes;
  const bool is_of_gpu = adapter_.gpus != nullptr && adapter_.gpus->owns(memory);
  const int error = memory == nullptr || bytes == 0    ? EINVAL
                    : is_of_gpu                        ? EFAULT
                    : bytes > lockable                 ? ENOMEM
                    : locked_bytes_ > lockable - bytes ? ENOMEM
                                                       : 0;
  if (error != 0) {
    return {Code::failed, cat("registering ", bytes, " bytes on ", facts_.name, " beside ",
                              locked_bytes_, " others: ", std::strerror(error))};
  }
  locked_bytes_ += bytes;
  add(memory, bytes, {}, registration);
  return {};
}

// Local and remote keys never coincide, and no key is used twice. So a mixed-up or stale key shows.
void SimDevice::add(std::byte* memory, std::size_t bytes, std::unique_ptr<GpusOfHost::Range> range,
                    std::unique_ptr<rdma::Registration>& registration) {
  next_key_ += 2 + 2 * static_cast<uint32_t>(fabric_.below(8));
  auto made = std::make_unique<SimRegistration>(
      *this, memory, bytes, rdma::MemoryKeys{next_key_, next_key_ + 1}, std::move(range));
  registrations_[next_key_] = made.get();
  ++fabric_.counters_.registrations;
  registration = std::move(made);
}

Status SimDevice::register_gpu_memory(std::byte* memory, std::size_t bytes,
                                      std::unique_ptr<rdma::Registration>& registration) {
  RC_RETURN_IF_ERROR(gone());
  std::unique_ptr<GpusOfHost::Range> range;
  const bool is_known = adapter_.model.has_peer_memory && adapter_.gpus != nullptr;
  const int error = is_known ? adapter_.gpus->map(memory, bytes, range) : EFAULT;
  if (error != 0) return rdma::gpu_memory_not_registered(facts_.name, bytes, error);
  add(memory, bytes, std::move(range), registration);
  return {};
}

Status SimDevice::register_dma_buf(const rdma::DmaBufPart& part,
                                   std::unique_ptr<rdma::Registration>& registration) {
  RC_RETURN_IF_ERROR(gone());
  RC_ASSERT(adapter_.model.takes_dma_bufs && adapter_.gpus != nullptr);
  std::unique_ptr<GpusOfHost::Range> range;
  const int error = adapter_.gpus->map_dma_buf(part, range);
  if (error != 0) return rdma::dma_buf_not_registered(facts_.name, part.bytes, error);
  add(part.memory, part.bytes, std::move(range), registration);
  return {};
}

bool SimDevice::would_write(uint32_t key, const std::byte* memory, std::size_t bytes) const {
  const SimRegistration* found = find_remote(key);
  if (found == nullptr || !found->holds(reinterpret_cast<uint64_t>(memory), bytes)) return false;
  if (found->is_of_gpu()) found->range()->check(memory);
  return true;
}

void SimDevice::remove(SimRegistration& registration) {
  for (const SimQueuePair* queue_pair : queue_pairs_) {
    RC_ASSERT(
        !queue_pair->uses(registration.keys().local),
        cat("queue pair ", queue_pair->local().queue_pair, " of ", facts_.name,
            " has posted requests in the ", registration.bytes(), " bytes that are deregistered"));
  }
  registrations_.erase(registration.keys().local);
  if (!registration.is_of_gpu()) locked_bytes_ -= registration.bytes();
  ++fabric_.counters_.deregistrations;
}

const SimRegistration* SimDevice::find_remote(uint32_t key) const {
  const auto found = registrations_.find(key - 1);
  return found != registrations_.end() ? found->second : nullptr;
}

const SimRegistration* SimDevice::find_local(uint32_t key) const {
  const auto found = registrations_.find(key);
  return found != registrations_.end() ? found->second : nullptr;
}

void SimDevice::check_local(const rdma::Sge& piece) const {
  if (piece.bytes == 0) return;
  const SimRegistration* found = find_local(piece.local_key);
  RC_ASSERT(
      found != nullptr && found->holds(reinterpret_cast<uint64_t>(piece.address), piece.bytes),
      cat(piece.bytes, " bytes at ", static_cast<const void*>(piece.address),
          " are not in the registration of local key ", piece.local_key));
}

// ---- the device ----

SimDevice::SimDevice(SimFabric& fabric, Adapter& adapter, rdma::DeviceFacts facts,
                     std::size_t completions)
    : fabric_(fabric),
      adapter_(adapter),
      facts_(std::move(facts)),
      completions_max_(completions),
      completion_event_(make_event()),
      async_event_(make_event()),
      next_key_(static_cast<uint32_t>(0x1000 + 2 * fabric.below(0x1000))) {
  RC_ASSERT(completion_event_ && async_event_, std::strerror(errno));
  fabric_.devices_.push_back(this);
}

SimDevice::~SimDevice() {
  RC_ASSERT(queue_pairs_.empty() && registrations_.empty(),
            cat(queue_pairs_.size(), " queue pairs and ", registrations_.size(),
                " registrations outlive their device ", facts_.name));
  std::erase(fabric_.devices_, this);
}

Status SimDevice::gone() const {
  if (!adapter_.is_broken) return {};
  return {Code::failed, cat(facts_.name, " has failed: ", std::strerror(EIO))};
}

Status SimDevice::create_queue_pair(const rdma::QueuePairLimits& limits, int port, int gid_index,
                                    int pkey_index, std::unique_ptr<rdma::QueuePair>& queue_pair) {
  RC_RETURN_IF_ERROR(gone());
  const rdma::PortFacts* found = adapter_.port(port);
  const auto is_index_of_gid = [&](const rdma::GidFacts& gid) { return gid.index == gid_index; };
  const auto depth = static_cast<uint32_t>(facts_.queue_depth_max);
  const bool is_possible =
      found != nullptr && limits.sends > 0 && limits.sends <= depth && limits.receives <= depth &&
      limits.send_pieces > 0 && limits.send_pieces <= static_cast<uint32_t>(facts_.scatter_max) &&
      limits.inline_bytes <= adapter_.model.inline_bytes_max &&
      std::any_of(found->gids.begin(), found->gids.end(), is_index_of_gid) && pkey_index >= 0 &&
      static_cast<std::size_t>(pkey_index) < found->pkeys.size() &&
      found->pkeys[static_cast<std::size_t>(pkey_index)] != 0;
  const bool has_room = queue_pairs_.size() < adapter_.model.queue_pairs_max;
  if (!is_possible || !has_room) {
    return {Code::failed,
            cat("a queue pair of ", limits.sends, " sends, ", limits.receives, " receives, ",
                limits.send_pieces, " pieces and ", limits.inline_bytes, " inline bytes on ",
                facts_.name, " port ", port, ", GID ", gid_index, ", PKEY ", pkey_index, ": ",
                std::strerror(is_possible ? ENOMEM : EINVAL))};
  }
  auto made = std::make_unique<SimQueuePair>(*this, limits, port, gid_index, pkey_index);
  queue_pairs_.push_back(made.get());
  queue_pair = std::move(made);
  return {};
}

void SimDevice::remove(SimQueuePair& queue_pair) {
  std::erase(queue_pairs_, &queue_pair);
  // Hardware libraries clean the completion queue. soft-RoCE's library leaves its entries.
  if (facts_.is_software) return;
  std::erase_if(completions_, [&](const QueuedCompletion& completion) {
    return completion.shown.queue_pair == queue_pair.local().queue_pair;
  });
}

SimQueuePair* SimDevice::find_queue_pair(uint32_t number) const {
  for (SimQueuePair* queue_pair : queue_pairs_) {
    if (queue_pair->local_.queue_pair == number) return queue_pair;
  }
  return nullptr;
}

// ---- completions ----

void SimDevice::push(QueuedCompletion completion) {
  if (is_queue_broken_) return;
  RC_ASSERT(completions_.size() < completions_max_,
            cat("the completion queue of ", facts_.name, " overflows at ", completions_max_,
                " entries: post no more signalled sends and receives than fit in it"));
  completions_.push_back(completion);
  if (!is_armed_) return;
  is_armed_ = false;
  if (fabric_.chance(fabric_.policy_.event_lost)) {
    ++fabric_.counters_.events_lost;
    return;
  }
  ++fabric_.counters_.events;
  ring(completion_event_);
}

std::size_t SimDevice::poll(std::span<rdma::Completion> into, Status& status) {
  if (fabric_.chance(fabric_.policy_.step_on_poll)) fabric_.step();
  status = gone();
  if (status.ok() && is_queue_broken_) {
    status = {Code::failed, cat("the completion queue of ", facts_.name, " is broken")};
  }
  if (!status.ok()) return 0;
  std::size_t count = 0;
  for (; count < into.size() && !completions_.empty(); ++count) {
    const QueuedCompletion& completion = completions_.front();
    into[count] = completion.shown;
    // The queue pair may be destroyed while its completions are still here.
    SimQueuePair* queue_pair = find_queue_pair(completion.shown.queue_pair);
    if (queue_pair != nullptr) queue_pair->give_back(completion);
    completions_.pop_front();
  }
  return count;
}

Status SimDevice::arm() {
  RC_RETURN_IF_ERROR(gone());
  // An arrival between the user's last poll and this call makes no event.
  if (fabric_.chance(fabric_.policy_.step_at_arm)) fabric_.step();
  is_armed_ = true;
  if (fabric_.chance(fabric_.policy_.event_spurious)) {
    ++fabric_.counters_.events_spurious;
    ring(completion_event_);
  }
  return {};
}

void SimDevice::take_completion_events() { silence(completion_event_); }

// ---- asynchronous events ----

void SimDevice::tell(rdma::AsyncEvent event) {
  async_events_.push_back(std::move(event));
  ring(async_event_);
}

bool SimDevice::take_async_event(rdma::AsyncEvent& event) {
  if (async_events_.empty()) return false;
  event = std::move(async_events_.front());
  async_events_.pop_front();
  if (async_events_.empty()) silence(async_event_);
  return true;
}

}  // namespace rdmacoll::verbs_sim
