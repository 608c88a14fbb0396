#include "transport/shm/shm_transport.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>

#include "base/system_error.h"
#include "base/text.h"

namespace rdmacoll {

using shm::ShmPeer;

namespace {

constexpr uint32_t kDoorbellToken = UINT32_MAX;  // no rank has this number
// Sockets report only a peer's end and heartbeats, so one check per millisecond is enough. An idle
// poll is so short that even the clock is read only every few polls.
constexpr Nanoseconds kEventCheckInterval = kMillisecond;
constexpr uint32_t kPollsPerClockRead = 16;
constexpr int kEventsPerCheck = 64;

uint64_t random_word() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

ShmTransport::ShmTransport(const World& world, MemoryPool& pool, const Clock& clock,
                           ShmOptions options)
    : world_(world),
      pool_(pool),
      clock_(clock),
      options_(options),
      probe_(random_word()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      opened_(open()),
      peers_(world.members.size()),
      events_checked_at_(clock.now()) {
  live_.reserve(peers_.size());
}

ShmTransport::~ShmTransport() = default;

Status ShmTransport::open() {
  if (!epoll_) return system_error("epoll_create1", errno);
  RC_RETURN_IF_ERROR(doorbell_.open());
  return watch(epoll_.get(), doorbell_.event(),
               {.events = EPOLLIN, .data = {.u32 = kDoorbellToken}});
}

void ShmTransport::adopt(int peer, Fd socket, bool is_dialer) {
  RC_ASSERT(peer >= 0 && peer < world_.size() && peer != world_.rank, cat("rank ", peer));
  auto& slot = peers_[static_cast<std::size_t>(peer)];
  RC_ASSERT(slot == nullptr, cat("adopted twice: rank ", peer));
  const shm::RankState home{.world = world_,
                            .pool = pool_,
                            .clock = clock_,
                            .one_copy = options_.one_copy,
                            .peer_timeout = options_.peer_timeout,
                            .doorbell = doorbell_,
                            .probe = probe_,
                            .epoll = epoll_.get(),
                            .counters = counters_};
  slot = std::make_unique<ShmPeer>(home, peer, std::move(socket), is_dialer);
  live_.push_back(slot.get());
  is_connecting_ = true;
}

bool ShmTransport::is_connected(int peer) const {
  const auto& slot = peers_.at(static_cast<std::size_t>(peer));
  return slot != nullptr && slot->connected();
}

Reach ShmTransport::reach(int peer) const {
  const auto& slot = peers_.at(static_cast<std::size_t>(peer));
  const bool one_copy = slot != nullptr && slot->one_copy();
  return {.transport = "shm",
          .views = true,
          .foreign_views = one_copy,
          .lends = true,
          .view_pieces_max = shm::kPiecesMax,
          .transfer_bytes_max = one_copy ? shm::kTransferBytesMax : shm::kStagedBytesMax,
          .eager_bytes = shm::kDataBytesMax,
          .shared_pools = true};
}

PeerPool ShmTransport::pool_of(int peer) const {
  const auto& slot = peers_.at(static_cast<std::size_t>(peer));
  return slot == nullptr ? PeerPool{} : slot->pool();
}

ShmPeer* ShmTransport::usable(int peer) {
  RC_ASSERT(peer >= 0 && peer < world_.size() && peer != world_.rank, cat("rank ", peer));
  ShmPeer* found = peers_[static_cast<std::size_t>(peer)].get();
  if (found != nullptr && found->state() == ShmPeer::State::failed) return nullptr;
  RC_ASSERT(found != nullptr && found->connected(), cat("rank ", peer, " is not connected"));
  return found;
}

Status ShmTransport::post_control(int peer, std::span<const std::byte> message) {
  ShmPeer* to = usable(peer);
  return to == nullptr ? Status() : to->outbound().post_control(message);
}

Status ShmTransport::post_send(const Transfer& transfer) {
  ShmPeer* to = usable(transfer.peer);
  return to == nullptr ? Status() : to->outbound().send(transfer);
}

Status ShmTransport::post_recv(const Transfer& transfer) {
  ShmPeer* from = usable(transfer.peer);
  return from == nullptr ? Status() : from->inbound().receive(transfer);
}

Status ShmTransport::publish(const Transfer& transfer) {
  ShmPeer* to = usable(transfer.peer);
  return to == nullptr ? Status() : to->outbound().publish(transfer);
}

Status ShmTransport::await(int peer, Lane lane, uint64_t sequence, uint64_t cookie) {
  ShmPeer* from = usable(peer);
  return from == nullptr ? Status() : from->inbound().await(lane, sequence, cookie);
}

Status ShmTransport::release(int peer, Lane lane, uint64_t sequence) {
  ShmPeer* from = usable(peer);
  return from == nullptr ? Status() : from->inbound().release(lane, sequence);
}

GpuViews ShmTransport::gpu_views(int peer, const GpuSlab& slab) const {
  const auto& slot = peers_.at(static_cast<std::size_t>(peer));
  return slot == nullptr || !slot->connected() ? GpuViews::no : slot->gpu_views(slab);
}

void ShmTransport::offer(int peer, const GpuSlab& slab, GpuWork& work) {
  ShmPeer* to = usable(peer);
  if (to != nullptr) to->offer(slab, work);
}

void ShmTransport::open_offers(GpuWork& work) {
  for (ShmPeer* peer : live_) {
    if (peer->connected()) peer->open_offers(work);
  }
}

void ShmTransport::stop_views(int peer) {
  // Also after the end of the connection, since the memory stays open.
  const auto& slot = peers_.at(static_cast<std::size_t>(peer));
  if (slot != nullptr) slot->stop_views();
}

std::string ShmTransport::end_of(int peer, bool on_gpu) {
  const auto& found = peers_.at(static_cast<std::size_t>(peer));
  return found == nullptr ? "" : found->end(on_gpu);
}

bool ShmTransport::poll(Sink& sink) {
  const bool woken = doorbell_.disarm();
  bool moved = false;
  for (ShmPeer* peer : live_) moved |= peer->connected() && peer->poll(sink);

  if (woken || is_connecting_ || ++polls_ >= kPollsPerClockRead) {
    polls_ = 0;
    const Nanoseconds now = clock_.now();
    if (woken || is_connecting_ || now - events_checked_at_ >= kEventCheckInterval)
      moved |= check_events(now, sink);
  }
  if (moved) {
    std::erase_if(live_, [](ShmPeer* peer) { return peer->state() == ShmPeer::State::failed; });
  }
  return moved;
}

bool ShmTransport::check_events(Nanoseconds now, Sink& sink) {
  events_checked_at_ = now;
  bool moved = false;
  std::array<epoll_event, kEventsPerCheck> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsPerCheck, 0);
  for (int i = 0; i < count; ++i) {
    const uint32_t token = events[static_cast<std::size_t>(i)].data.u32;
    if (token == kDoorbellToken) {
      doorbell_.drain();
    } else {
      peers_[token]->check_socket(sink);
      moved = true;
    }
  }
  bool meeting = false;
  for (ShmPeer* peer : live_) {
    // A peer may still have to send its greeting, so its socket need not be readable.
    if (!peer->connected()) peer->check_socket(sink);
    peer->keep_alive(now, sink);
    const bool failed = peer->state() == ShmPeer::State::failed;
    moved |= failed;
    meeting |= !failed && !peer->connected();
  }
  is_connecting_ = meeting;
  return moved;
}

bool ShmTransport::arm() {
  doorbell_.arm();
  for (ShmPeer* peer : live_) {
    if (peer->arm()) continue;
    doorbell_.disarm();
    return false;
  }
  return true;
}

Nanoseconds ShmTransport::next_deadline() const {
  Nanoseconds deadline = kNever;
  for (const ShmPeer* peer : live_) deadline = std::min(deadline, peer->next_deadline());
  return deadline;
}

void ShmTransport::show_core(int core, std::vector<int>& others) {
  doorbell_.show_core(core);
  for (const ShmPeer* peer : live_) {
    const int other = peer->connected() ? peer->core() : -1;
    if (other >= 0) others.push_back(other);
  }
}

void ShmTransport::fail(int peer) {
  RC_ASSERT(peer >= 0 && peer < world_.size() && peer != world_.rank, cat("rank ", peer));
  ShmPeer* found = peers_[static_cast<std::size_t>(peer)].get();
  if (found == nullptr) return;
  found->close();
  std::erase(live_, found);
}

bool ShmTransport::needs_poll() const {
  return is_connecting_ || std::any_of(live_.begin(), live_.end(), [](ShmPeer* peer) {
           return peer->outbound().has_work() || peer->outbound().awaits_grants();
         });
}

bool ShmTransport::flushed() const {
  return std::all_of(live_.begin(), live_.end(), [](ShmPeer* peer) {
    return peer->state() == ShmPeer::State::failed || peer->outbound().finished();
  });
}

}  // namespace rdmacoll
