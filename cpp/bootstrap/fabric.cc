#include "bootstrap/fabric.h"

#include <algorithm>
#include <utility>

#include "base/small_range.h"
#include "base/text.h"
#include "bootstrap/link_rate.h"

namespace rdmacoll {
namespace {

// While no peer is expected, the listener is checked once in this many polls (and before each
// sleep). A check costs a system call, and a late caller can wait some microseconds.
constexpr uint32_t kPollsPerLook = 256;

void append(std::vector<std::string>& texts, const std::vector<std::string>& more) {
  texts.insert(texts.end(), more.begin(), more.end());
}

}  // namespace

// Forwards the reports of the transports, and records the state of each peer. A transport that has
// not reported `connected` is not ready for calls.
class Fabric::StateRecorder final : public Sink {
 public:
  StateRecorder(Fabric& fabric, Sink& sink) : fabric_(fabric), sink_(sink) {}
  void connected(int peer) override {
    fabric_.set_state(peer, State::connected);
    sink_.connected(peer);
  }
  void sent(uint64_t cookie) override { sink_.sent(cookie); }
  void received(uint64_t cookie) override { sink_.received(cookie); }
  void viewed(uint64_t cookie, const View& view) override { sink_.viewed(cookie, view); }
  void control(int peer, std::span<const std::byte> message) override {
    sink_.control(peer, message);
  }
  void peer_failed(int peer, const std::string& cause) override {
    fabric_.set_state(peer, State::failed);
    sink_.peer_failed(peer, cause);
  }
  void answered(int peer, const std::string& refusal) override { sink_.answered(peer, refusal); }
  GpuWork* gpu_work() override { return sink_.gpu_work(); }

 private:
  Fabric& fabric_;
  Sink& sink_;
};

bool Fabric::shares_memory() const {
  const auto is_used = [](const TransportChoice::Entry& entry) { return entry.is_used; };
  return is_any_of(choice_.entries(), is_used) && are_all_of(choice_.entries(), [](auto& entry) {
           return !entry.is_used || entry.provider->shares_memory();
         });
}

bool Fabric::via_nic() const {
  return is_any_of(choice_.entries(), [](const TransportChoice::Entry& entry) {
    return entry.is_used && entry.provider->via_nic();
  });
}

std::vector<std::string> Fabric::nics() const {
  std::vector<std::string> names;
  for (const TransportChoice::Entry& entry : choice_.entries()) {
    if (entry.is_used) append(names, entry.provider->nics());
  }
  return names;
}

std::vector<std::string> Fabric::ports() const {
  std::vector<std::string> texts;
  for (const TransportChoice::Entry& entry : choice_.entries()) {
    if (entry.is_used) append(texts, entry.provider->ports());
  }
  return texts;
}

std::vector<std::string> Fabric::choices() const {
  std::vector<std::string> lines;
  for (const TransportChoice::Entry& entry : choice_.entries()) {
    if (entry.is_used) append(lines, entry.provider->choices());
  }
  return lines;
}

// Warnings come first, then notes.
void Fabric::note_choice() {
  for (const TransportChoice::Entry& entry : choice_.entries()) {
    const std::string& warning = entry.agreement.warning;
    if (!warning.empty()) notes_.insert(notes_.begin(), warning);
    append(notes_, entry.agreement.notes);
    if (entry.is_used) append(notes_, entry.provider->notes());
  }
}

double Fabric::link_gbit_per_s() const {
  for (const TransportChoice::Entry& entry : choice_.entries()) {
    if (!entry.is_used) continue;
    if (const std::optional<double> gbit = entry.provider->port_gbit_per_s()) return *gbit;
  }
  for (int peer = 0; peer < world_.size(); ++peer) {
    if (world_.same_node(world_.rank, peer)) continue;
    const std::vector<InterfaceAddress> ours = interface_addresses();
    const bool same_host = cards_[peer].node_key == card_.node_key;
    const std::vector<SocketAddress> theirs = dial_order(cards_[peer].tcp, ours, same_host);
    if (theirs.empty()) return 0;
    return interface_gbit_per_s("/sys/class/net", interface_towards(theirs.front(), ours));
  }
  return 0;
}

std::string Fabric::summary() const {
  std::map<std::string_view, int> peers;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (is_connected(peer)) ++peers[reach(peer).transport];
  }
  std::vector<std::string> texts;
  for (const auto& [name, count] : peers) {
    texts.push_back(cat(name, " (", count, count == 1 ? " peer)" : " peers)"));
  }
  return texts.empty() ? "none" : join(texts, ", ");
}

// Routing.

bool Fabric::meets_on_unix_socket(int peer) const {
  return peers_[static_cast<std::size_t>(peer)].socket_kind == SocketKind::unix_domain;
}

Transport* Fabric::connected(int peer) const {
  RC_ASSERT(peer >= 0 && peer < static_cast<int>(peers_.size()), cat("rank ", peer));
  return peers_[peer].connected;
}

Status Fabric::answer_unconnected(int peer) const {
  return peers_[peer].state == State::failed ? Status() : Status::busy();
}

bool Fabric::is_connected(int peer) const { return connected(peer) != nullptr; }

Reach Fabric::reach(int peer) const {
  const Transport* to = connected(peer);
  if (to == nullptr && peers_[peer].state == State::failed) return {};
  RC_ASSERT(to != nullptr, cat("rank ", peer, " is not connected"));
  return to->reach(peer);
}

PeerPool Fabric::pool_of(int peer) const {
  const Transport* to = connected(peer);
  return to == nullptr ? PeerPool{} : to->pool_of(peer);
}

Status Fabric::post_control(int peer, std::span<const std::byte> message) {
  Transport* to = connected(peer);
  return to != nullptr ? to->post_control(peer, message) : answer_unconnected(peer);
}

Status Fabric::post_send(const Transfer& transfer) {
  Transport* to = connected(transfer.peer);
  return to != nullptr ? to->post_send(transfer) : answer_unconnected(transfer.peer);
}

Status Fabric::post_recv(const Transfer& transfer) {
  Transport* to = connected(transfer.peer);
  return to != nullptr ? to->post_recv(transfer) : answer_unconnected(transfer.peer);
}

Status Fabric::publish(const Transfer& transfer) {
  Transport* to = connected(transfer.peer);
  return to != nullptr ? to->publish(transfer) : answer_unconnected(transfer.peer);
}

Status Fabric::await(int peer, Lane lane, uint64_t sequence, uint64_t cookie) {
  Transport* to = connected(peer);
  return to != nullptr ? to->await(peer, lane, sequence, cookie) : answer_unconnected(peer);
}

Status Fabric::release(int peer, Lane lane, uint64_t sequence) {
  Transport* to = connected(peer);
  return to != nullptr ? to->release(peer, lane, sequence) : answer_unconnected(peer);
}

GpuViews Fabric::gpu_views(int peer, const GpuSlab& slab) const {
  const Transport* to = connected(peer);
  return to != nullptr ? to->gpu_views(peer, slab) : GpuViews::no;
}

void Fabric::offer(int peer, const GpuSlab& slab, GpuWork& work) {
  Transport* to = connected(peer);
  if (to != nullptr) to->offer(peer, slab, work);
}

void Fabric::open_offers(GpuWork& work) {
  for (const auto& one : transports_) one->open_offers(work);
}

void Fabric::stop_views(int peer) {
  for (const auto& one : transports_) one->stop_views(peer);
}

std::string Fabric::end_of(int peer, bool on_gpu) {
  const Peer& found = peers_.at(static_cast<std::size_t>(peer));
  const bool was_connected = found.connected != nullptr || found.state == State::failed;
  return was_connected && found.route != nullptr ? found.route->end_of(peer, on_gpu) : "";
}

// Progress.

// One transport at most has devices that access callers' memory.
bool Fabric::pin(const Piece& memory) {
  return is_any_of(transports_, [&](const auto& one) { return one->pin(memory); });
}

void Fabric::unpin(const Piece& memory) {
  for (const auto& one : transports_) {
    if (one->is_pinned(memory)) return one->unpin(memory);
  }
}

bool Fabric::is_pinned(const Piece& memory) const {
  return is_any_of(transports_, [&](const auto& one) { return one->is_pinned(memory); });
}

void Fabric::use_gpus(const GpuMemoryForNics& gpus) {
  for (const auto& one : transports_) one->use_gpus(gpus);
}

GpuWays Fabric::gpu_ways(Gpu gpu) const {
  for (const auto& one : transports_) {
    if (const GpuWays ways = one->gpu_ways(gpu); ways.any()) return ways;
  }
  return {};
}

bool Fabric::poll(Sink& sink) {
  if (peers_.empty()) return false;
  StateRecorder recorder(*this, sink);
  bool moved = false;
  for (const auto& one : transports_) moved |= one->poll(recorder);
  if (is_connecting() || ++polls_ % kPollsPerLook == 0) moved |= connect_peers(sink);
  return moved;
}

bool Fabric::arm() {
  if (peers_.empty()) return true;
  signalled_ |= take_signals();
  return !signalled_ && are_all_of(transports_, [](const auto& one) { return one->arm(); });
}

Nanoseconds Fabric::next_deadline() const {
  if (peers_.empty()) return kNever;
  Nanoseconds deadline = next_connect_deadline();
  for (const auto& one : transports_) deadline = std::min(deadline, one->next_deadline());
  return deadline;
}

void Fabric::show_core(int core, std::vector<int>& others) {
  for (const auto& one : transports_) one->show_core(core, others);
}

void Fabric::fail(int peer) {
  const State state = peers_[peer].state;
  if (state == State::adopted || state == State::connected) peers_[peer].route->fail(peer);
  std::erase_if(dials_, [&](const auto& dial) { return dial->peer() == peer; });
  set_state(peer, State::failed);
}

bool Fabric::is_connecting() const {
  return signalled_ || !dials_.empty() || waiting_ > 0 || listener_->is_busy();
}

bool Fabric::needs_poll() const {
  if (peers_.empty()) return false;
  return is_connecting() ||
         is_any_of(transports_, [](const auto& one) { return one->needs_poll(); });
}

bool Fabric::flushed() const {
  return are_all_of(transports_, [](const auto& one) { return one->flushed(); });
}

Transport::Counters Fabric::counters() const {
  Counters sum;
  for (const auto& one : transports_) {
    const Counters counters = one->counters();
    sum.connections += counters.connections;
    sum.registrations += counters.registrations;
    sum.control_messages += counters.control_messages;
    sum.bytes_sent += counters.bytes_sent;
    sum.bytes_striped += counters.bytes_striped;
    sum.bytes_received += counters.bytes_received;
    sum.bytes_copied += counters.bytes_copied;
    sum.gpu_bytes_sent += counters.gpu_bytes_sent;
    sum.gpu_bytes_received += counters.gpu_bytes_received;
    sum.doorbells += counters.doorbells;
  }
  sum.handshakes = handshakes_;  // a transport's later exchanges with its peer do not count
  return sum;
}

}  // namespace rdmacoll
