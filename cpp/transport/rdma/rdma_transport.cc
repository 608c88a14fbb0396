#include "transport/rdma/rdma_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/small_range.h"
#include "base/system_error.h"
#include "base/text.h"

namespace rdmacoll {

using rdma::Completion;
using rdma::RdmaPeer;

namespace {

constexpr std::size_t kCompletionsPerPoll = 64;
// Sockets and events report only the end of a peer, and a check costs a system call or two.
constexpr Nanoseconds kEventCheckInterval = kMillisecond;
constexpr uint32_t kPollsPerClockRead = 16;
constexpr int kEventsPerCheck = 64;
// A registration of freed memory keeps the memory, so each check looks for some.
constexpr std::size_t kAllocationsPerCheck = 4;
constexpr uint32_t kCompletionsMax = 32 << 10;
constexpr uint32_t kPollsOfAll = kCompletionsMax / kCompletionsPerPoll;

// The source of an epoll event.
enum class Source : uint32_t { completions, events, socket };
uint64_t token(Source source, std::size_t index) {
  return static_cast<uint64_t>(source) << 32 | index;
}

}  // namespace

Status RdmaTransport::open(const World& world, MemoryPool& pool, const Clock& clock,
                           rdma::Verbs& verbs, std::vector<rdma::Rail> rails,
                           rdma::PeerOptions options, std::unique_ptr<RdmaTransport>& transport) {
  RC_ASSERT(!rails.empty() && rails.size() <= rdma::kRailsMax, cat(rails.size(), " rails"));
  std::unique_ptr<RdmaTransport> made(
      new RdmaTransport(world, pool, clock, std::move(rails), options));
  RC_RETURN_IF_ERROR(made->open_devices(verbs));
  transport = std::move(made);
  return {};
}

RdmaTransport::RdmaTransport(const World& world, MemoryPool& pool, const Clock& clock,
                             std::vector<rdma::Rail> rails, const rdma::PeerOptions& options)
    : world_(world),
      pool_(pool),
      clock_(clock),
      options_(options),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      peers_(world.members.size()),
      events_checked_at_(clock.now()) {
  ports_.rails = std::move(rails);
  completions_.resize(kCompletionsPerPoll);
  if (options_.finds_cut) copy_speed_ = rdma::measure_copy_speed(clock_);
}

RdmaTransport::~RdmaTransport() {
  live_.clear();
  peers_.clear();  // queue pairs and registrations of peers go before shared ones
  send_stages_.reset();
  receive_stages_.reset();
  gpus_.reset();
  slabs_.reset();
  devices_.clear();  // registrations go before the devices
}

Status RdmaTransport::open_devices(rdma::Verbs& verbs) {
  if (!epoll_) return system_error("epoll_create1", errno);
  const uint64_t wanted = uint64_t{rdma::completions_of_a_pair(options_, pool_.size())} *
                              static_cast<uint64_t>(std::max(1, world_.size() - 1)) +
                          rdma::GpuFlushes::kCompletions;
  devices_.resize(ports_.rails.size());
  for (std::size_t rail = 0; rail < devices_.size(); ++rail) {
    Port& port = devices_[rail];
    port.completions_left = static_cast<uint32_t>(std::min<uint64_t>(
        {wanted, kCompletionsMax,
         static_cast<uint64_t>(std::max(1, ports_.rails[rail].completions_max))}));
    RC_RETURN_IF_ERROR(verbs.open({ports_.rails[rail].device, port.completions_left}, port.device));
    // Reserves completions for the flushes of GPU memory, which callers may use later.
    port.completions_left -= std::min(port.completions_left, rdma::GpuFlushes::kCompletions);
    ports_.devices.push_back(port.device.get());
    const std::array<std::pair<Source, int>, 2> watched = {
        {{Source::completions, port.device->completion_fd()},
         {Source::events, port.device->async_fd()}}};
    for (const auto& [source, fd] : watched) {
      epoll_event event{.events = EPOLLIN, .data = {.u64 = token(source, rail)}};
      RC_RETURN_IF_ERROR(watch(epoll_.get(), fd, event));
    }
  }
  const std::span<rdma::Device* const> all(ports_.devices);
  slabs_ = std::make_unique<rdma::Slabs>(pool_, all, counters_);
  for (auto* stages : {&send_stages_, &receive_stages_}) {
    *stages = std::make_unique<rdma::Stages>(pool_, all, counters_);
  }
  return {};
}

void RdmaTransport::use_gpus(const GpuMemoryForNics& gpus) {
  RC_ASSERT(gpus_ == nullptr);
  gpus_ = std::make_unique<rdma::GpuAccess>(gpus, ports_.devices, ports_.rails, options_.path,
                                            counters_);
  slabs_->add_gpus(gpus_->registrations);
}

GpuWays RdmaTransport::gpu_ways(Gpu gpu) const {
  return gpus_ == nullptr ? GpuWays{} : gpus_->facts->ways(gpu);
}

// ---- handshake ----

void RdmaTransport::adopt(int peer, Fd socket, bool) {
  if (peers_.at(static_cast<std::size_t>(peer)) != nullptr) return;
  if (Status met = meet(peer, std::move(socket)); !met.ok()) {
    failed_early_.emplace_back(peer, met.message());
  }
  is_connecting_ = true;
}

Status RdmaTransport::meet(int rank, Fd socket) {
  const uint32_t needed = rdma::completions_of_a_pair(options_, pool_.size());
  auto& slot = peers_[static_cast<std::size_t>(rank)];
  slot = std::make_unique<RdmaPeer>(world_, rank, ports_, options_, pool_,
                                    rdma::RankState{*slabs_, *send_stages_, *receive_stages_,
                                                    counters_, clock_, copy_speed_, gpus_});
  epoll_event event{.events = EPOLLIN | EPOLLRDHUP,
                    .data = {.u64 = token(Source::socket, static_cast<std::size_t>(rank))}};
  Status status = watch(epoll_.get(), socket.get(), event);
  for (std::size_t rail = 0; status.ok() && rail < devices_.size(); ++rail) {
    if (devices_[rail].completions_left < needed) {
      status = {Code::failed, cat("the completion queue of ", ports_.rails[rail].device,
                                  " has no room for one more queue pair (", needed, " of ",
                                  devices_[rail].completions_left, " left).")};
    }
  }
  if (status.ok()) status = slot->open(std::move(socket), clock_.now());
  if (!status.ok()) {
    slot->close();
    return status;
  }
  const std::vector<uint32_t> numbers = slot->queue_pairs();
  for (std::size_t rail = 0; rail < numbers.size(); ++rail) {
    devices_[rail].peers[numbers[rail]] = slot.get();
    devices_[rail].completions_left -= needed;
  }
  live_.push_back(slot.get());
  return {};
}

bool RdmaTransport::is_connected(int peer) const {
  const auto& slot = peers_.at(static_cast<std::size_t>(peer));
  return slot != nullptr && slot->is_connected();
}

Reach RdmaTransport::reach(int peer) const {
  const auto& found = peers_.at(static_cast<std::size_t>(peer));
  return {.transport = "rdma",
          .transfer_bytes_max = std::size_t{1} << 40,
          .foreign_transfers = false,
          .eager_bytes = found == nullptr ? 0 : found->eager_bytes()};
}

// ---- posting ----

RdmaPeer* RdmaTransport::usable(int peer) {
  is_touched_ = true;  // the caller is about to post
  RC_ASSERT(peer >= 0 && peer < world_.size() && peer != world_.rank, cat("rank ", peer));
  RdmaPeer* found = peers_[static_cast<std::size_t>(peer)].get();
  if (found != nullptr && found->has_failed()) return nullptr;
  RC_ASSERT(found != nullptr && found->is_connected(), cat("rank ", peer, " is not connected"));
  return found;
}

// Posted requests leave with the next poll() or arm(). So all requests of one turn of the engine to
// a peer share messages and doorbells.

Status RdmaTransport::post_control(int peer, std::span<const std::byte> message) {
  RdmaPeer* to = usable(peer);
  return to == nullptr ? Status() : to->outbound().post_control(message);
}

Status RdmaTransport::post_send(const Transfer& transfer) {
  RdmaPeer* to = usable(transfer.peer);
  return to == nullptr ? Status() : to->outbound().post_send(transfer);
}

Status RdmaTransport::post_recv(const Transfer& transfer) {
  RdmaPeer* from = usable(transfer.peer);
  return from == nullptr ? Status() : from->inbound().post_recv(transfer);
}

void RdmaTransport::unpin(const Piece& memory) {
  slabs_->unpin(memory);
  forget_unpinned();
}

void RdmaTransport::forget_unpinned() {
  if (!slabs_->has_unpinned()) return;
  const bool is_used = is_any_of(live_, [](const RdmaPeer* peer) { return peer->has_transfers(); });
  if (!is_used) slabs_->forget_unpinned();
}

// ---- progress ----

bool RdmaTransport::poll(Sink& sink) {
  const bool woken = std::exchange(is_armed_, false);
  // Posted requests leave before incoming data is taken, since a peer may wait for them.
  const bool was_touched = std::exchange(is_touched_, false);
  if (was_touched) {
    for (RdmaPeer* peer : live_) peer->push();
  }
  bool moved = !failed_early_.empty();
  for (const auto& [peer, cause] : failed_early_) sink.peer_failed(peer, cause);
  failed_early_.clear();
  for (std::size_t rail = 0; rail < devices_.size(); ++rail) moved |= take_completions(rail, sink);
  if (gpus_ != nullptr) gpus_->flushes.push();
  bool has_news = moved;
  if (woken || is_connecting_ || ++polls_ >= kPollsPerClockRead) {
    polls_ = 0;
    const Nanoseconds now = clock_.now();
    if (woken || is_connecting_ || now - events_checked_at_ >= kEventCheckInterval) {
      moved |= check_events(now, sink);
      has_news = true;
    }
  }
  if (!has_news && !was_touched) return false;  // the usual case
  if (is_ending_) moved |= end_departed_peers(sink);
  bool has_failed = false;
  is_touched_ = has_work_ = false;
  for (RdmaPeer* peer : live_) {
    moved |= peer->report(sink);
    if (has_news) peer->push();
    moved |= peer->end_if_at_fault(sink);
    has_failed |= peer->has_failed();
    const bool works_on = !peer->may_sleep();
    is_touched_ |= works_on;
    has_work_ |= works_on || peer->has_more();
  }
  if (has_failed) forget_failed();
  forget_unpinned();
  return moved;
}

// The peer's data was acknowledged before its socket closed, so all of it is in the queues by now.
bool RdmaTransport::end_departed_peers(Sink& sink) {
  bool moved = false;
  for (std::size_t rail = 0; rail < devices_.size(); ++rail) {
    for (uint32_t i = 0; i < kPollsOfAll && take_completions(rail, sink); ++i) moved = true;
  }
  const Nanoseconds now = clock_.now();
  for (RdmaPeer* peer : live_) moved |= peer->end(now, sink);
  return moved;
}

bool RdmaTransport::take_completions(std::size_t rail, Sink& sink) {
  Port& port = devices_[rail];
  bool moved = !port.early.empty();
  for (const Completion& completion : port.early) dispatch(rail, completion, sink);
  port.early.clear();
  Status status;
  const std::size_t count = port.device->poll(completions_, status);
  for (std::size_t i = 0; i < count; ++i) dispatch(rail, completions_[i], sink);
  if (!status.ok()) fail_all(status.message(), sink);
  return moved || count > 0;
}

void RdmaTransport::dispatch(std::size_t rail, const Completion& completion, Sink& sink) {
  const auto& peers = devices_[rail].peers;
  const auto found = peers.find(completion.queue_pair);
  if (gpus_ != nullptr && gpus_->flushes.owns(rail, completion.queue_pair)) {
    return gpus_->flushes.handle(rail, completion);
  }
  // Completions of a closed queue pair are ignored.
  if (found != peers.end()) found->second->handle(rail, completion, sink);
}

bool RdmaTransport::check_events(Nanoseconds now, Sink& sink) {
  events_checked_at_ = now;
  bool moved = false;
  if (gpus_ != nullptr) gpus_->registrations.sweep(kAllocationsPerCheck);
  std::array<epoll_event, kEventsPerCheck> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsPerCheck, 0);
  for (int i = 0; i < count; ++i) {
    const uint64_t data = events[static_cast<std::size_t>(i)].data.u64;
    const auto index = static_cast<std::size_t>(data & UINT32_MAX);
    switch (static_cast<Source>(data >> 32)) {
      case Source::completions:
        devices_[index].device->take_completion_events();
        break;
      case Source::events:
        take_events(index, sink);
        break;
      case Source::socket:
        if (peers_[index] != nullptr) peers_[index]->check_socket(now, sink);
        moved = true;
        break;
    }
  }
  bool is_connecting = false;
  is_ending_ = false;
  for (RdmaPeer* peer : live_) {
    if (!peer->is_connected()) peer->check_socket(now, sink);
    peer->keep_alive(now, sink);
    moved |= peer->has_failed();
    is_connecting |= !peer->has_failed() && !peer->is_connected();
    is_ending_ |= peer->has_ended();
  }
  is_connecting_ = is_connecting;
  return moved;
}

void RdmaTransport::take_events(std::size_t rail, Sink& sink) {
  rdma::AsyncEvent event;
  while (devices_[rail].device->take_async_event(event)) {
    const std::string where = ports_.rails[rail].text();
    switch (event.kind) {
      case rdma::EventKind::device_fatal:
      case rdma::EventKind::completion_queue_fatal:
        fail_all(cat("the device failed: ", event.text, " on ", where), sink);
        break;
      case rdma::EventKind::queue_pair_fatal: {
        const auto found = devices_[rail].peers.find(event.queue_pair);
        if (found == devices_[rail].peers.end()) break;
        found->second->give_up(
            sink, cat("queue pair ", event.queue_pair, " failed: ", event.text, " on ", where));
        break;
      }
      default:  // a port that is down may come back within the retries
        break;
    }
  }
}

void RdmaTransport::fail_all(const std::string& cause, Sink& sink) {
  for (RdmaPeer* peer : live_) peer->give_up(sink, cause);
}

void RdmaTransport::forget_failed() {
  std::erase_if(live_, [](const RdmaPeer* peer) { return peer->has_failed(); });
  for (Port& port : devices_) {
    std::erase_if(port.peers, [](const auto& entry) { return entry.second->has_failed(); });
  }
}

bool RdmaTransport::arm() {
  if (!failed_early_.empty()) return false;
  if (gpus_ != nullptr && gpus_->flushes.needs_push()) return false;
  has_work_ = false;
  for (RdmaPeer* peer : live_) {
    peer->push();
    has_work_ |= peer->needs_poll();
    if (!peer->may_sleep()) {
      is_touched_ = true;
      return false;
    }
  }
  is_armed_ = true;
  bool is_quiet = true;
  for (Port& port : devices_) {
    // Arm first, then poll once more: a completion before the arming makes no event.
    Status status = port.device->arm();
    const std::size_t count = port.device->poll(completions_, status);
    port.early.insert(port.early.end(), completions_.begin(),
                      completions_.begin() + static_cast<std::ptrdiff_t>(count));
    is_quiet &= count == 0 && status.ok();
  }
  return is_quiet;
}

Nanoseconds RdmaTransport::next_deadline() const {
  Nanoseconds deadline = kNever;
  for (const RdmaPeer* peer : live_) deadline = std::min(deadline, peer->next_deadline());
  return deadline;
}

void RdmaTransport::fail(int peer) {
  std::erase_if(failed_early_, [peer](const auto& entry) { return entry.first == peer; });
  RdmaPeer* found = peers_.at(static_cast<std::size_t>(peer)).get();
  if (found == nullptr) return;
  found->close();
  forget_failed();
  is_touched_ = true;
}

bool RdmaTransport::needs_poll() const {
  if (is_connecting_ || !failed_early_.empty() || has_work_) return true;
  return is_touched_ && is_any_of(live_, [](const RdmaPeer* peer) { return peer->needs_poll(); });
}

bool RdmaTransport::flushed() const {
  return are_all_of(live_, [](const RdmaPeer* peer) { return peer->is_flushed(); });
}

}  // namespace rdmacoll
