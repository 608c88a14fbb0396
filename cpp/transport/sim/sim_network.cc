#include "transport/sim/sim_network.h"

#include <algorithm>
#include <utility>

#include "transport/sim/sim_transport.h"

namespace rdmacoll {
namespace {

Nanoseconds from_us(double us) { return static_cast<Nanoseconds>(us * kMicrosecond); }
double to_us(Nanoseconds time) { return static_cast<double>(time) / kMicrosecond; }

// The smallest chunk of a message and the most chunks, since each chunk is one or two events.
constexpr double kChunkBytesMin = 64 << 10;
constexpr double kChunksMax = 8;
// Bytes of a pair that TCP has in flight or unsent before a sender waits. The value is fitted to
// benchmarks/scale_check.
constexpr double kSocketBytes = 4 << 20;

}  // namespace

SimNetwork::SimNetwork(int ranks, const SimPolicy& policy)
    : policy_(policy),
      random_(policy.seed),
      dead_(ranks, false),
      processors_(ranks, 0),
      is_woken_(ranks, false) {
  for (int rank = 0; rank < ranks; ++rank) nodes_.push_back(policy.node_of(rank));
  if (policy_.links) {
    ports_.emplace(*policy_.links, nodes_);
  } else {
    last_ordered_.assign(static_cast<std::size_t>(ranks) * ranks, 0);
    last_arrival_.assign(static_cast<std::size_t>(ranks) * ranks, 0);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    transports_.push_back(std::make_unique<SimTransport>(*this, rank));
  }
}

SimNetwork::~SimNetwork() = default;

Nanoseconds SimNetwork::chaotic_delay() {
  const auto span = static_cast<uint64_t>(policy_.delay_max - policy_.delay_min) + 1;
  return policy_.delay_min + static_cast<Nanoseconds>(random_() % span);
}

void SimNetwork::push(Nanoseconds time, int from, int to, Delivery deliver) {
  events_.push_back({time, events_sent_++, from, to, std::move(deliver)});
  std::push_heap(events_.begin(), events_.end());
}

void SimNetwork::send(int from, int to, std::size_t bytes, Order order, Delivery deliver,
                      Delivery sent) {
  if (ports_) {
    const double posted = to_us(work(from, ports_->link(from, to).overhead_us));
    Message message{posted, static_cast<double>(bytes), std::move(deliver), std::move(sent)};
    if (order != Order::ordered) return queue(from, to, std::move(message));
    pass(0, from, to, message.bytes, posted, std::move(message.deliver));
    return;
  }
  const int delays = order == Order::ordered ? policy_.control_delays : 1;
  Nanoseconds time = clock_.now() + delays * chaotic_delay();
  const std::size_t pair = static_cast<std::size_t>(from) * dead_.size() + to;
  if (order != Order::free) time = last_ordered_[pair] = std::max(time, last_ordered_[pair] + 1);
  if (order == Order::last) time = std::max(time, last_arrival_[pair] + 1);
  last_arrival_[pair] = std::max(last_arrival_[pair], time);
  push(time, from, to, std::move(deliver));
}

// ---- links ----

Nanoseconds SimNetwork::work(int rank, double us) {
  return processors_[rank] = std::max(processors_[rank], clock_.now()) + from_us(us);
}

void SimNetwork::queue(int from, int to, Message message) {
  message.chunk = std::max(kChunkBytesMin, message.bytes / kChunksMax);
  std::vector<Message>& messages = messages_[{from, to}];
  messages.push_back(std::move(message));
  take_over(from, to);
  if (messages.size() == 1) send_chunk(from, to);
}

void SimNetwork::send_chunk(int from, int to) {
  Message& message = messages_[{from, to}].front();
  const double bytes = std::min(message.bytes, message.chunk);
  const double time = std::max(to_us(clock_.now()), message.posted_us);
  Delivery deliver;
  if (bytes == message.bytes) deliver = std::move(message.deliver);
  const double last = pass(0, from, to, bytes, time, std::move(deliver));
  push(from_us(last), -1, -1, [=, this] { end_chunk(from, to, bytes); });
}

void SimNetwork::end_chunk(int from, int to, double bytes) {
  const auto at = messages_.find({from, to});
  std::vector<Message>& messages = at->second;
  messages.front().bytes -= bytes;
  take_over(from, to);
  if (messages.front().bytes == 0) messages.erase(messages.begin());
  if (messages.empty()) {
    messages_.erase(at);
  } else {
    send_chunk(from, to);
  }
}

// Reports sends whose memory is free again. A device reads memory until the last byte has left. The
// kernel has copied the bytes that TCP has in flight.
void SimNetwork::take_over(int from, int to) {
  const bool is_by_socket = !policy_.links->via_nic && !ports_->is_near(from, to);
  double held = 0;
  for (Message& message : messages_[{from, to}]) {
    held += message.bytes;
    if (held > (is_by_socket ? kSocketBytes : 0)) return;
    if (!message.sent) continue;
    const Nanoseconds posted = from_us(message.posted_us);
    push(std::max(clock_.now(), posted), -1, -1, std::exchange(message.sent, {}));
  }
}

// A port serves messages in the order of arrival.
double SimNetwork::pass(int hop, int from, int to, double bytes, double time_us, Delivery deliver) {
  const Link& link = ports_->link(from, to);
  double last = 0;
  const double begins = ports_->pass(hop, from, to, bytes, time_us, last);
  if (hop + 1 < ports_->hops(from, to)) {
    const double next = begins + (hop == 0 ? link.latency_us : 0);
    push(from_us(next), from, to, [=, this, deliver = std::move(deliver)]() mutable {
      pass(hop + 1, from, to, bytes, next, std::move(deliver));
    });
  } else if (deliver) {
    push(from_us(last), from, to, [this, to, &link, deliver = std::move(deliver)] {
      work(to, link.overhead_us);
      deliver();
    });
  }
  return last;
}

void SimNetwork::wake(int rank) {
  if (is_woken_[rank]) return;
  is_woken_[rank] = true;
  woken_.push_back(rank);
}

int SimNetwork::take_woken() {
  if (woken_.empty()) return -1;
  const int rank = woken_.back();
  woken_.pop_back();
  is_woken_[rank] = false;
  return rank;
}

// ---- events ----

bool SimNetwork::step(Nanoseconds limit) {
  if (events_.empty() || events_.front().time > limit) return false;
  std::pop_heap(events_.begin(), events_.end());
  // Taken out of the queue first, since delivering may send more.
  const Event event = std::move(events_.back());
  events_.pop_back();
  clock_.advance_to(event.time);
  if (!is_broken(event.from, event.to)) event.deliver();
  return true;
}

void SimNetwork::kill(int rank) {
  dead_[rank] = true;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank || dead_[peer]) continue;
    // Earlier messages of the rank may still arrive. The end of its connection comes after them.
    send(rank, peer, 0, Order::last, [this, rank, peer] {
      transports_[peer]->lose(rank, "closed its connection (process ended)");
    });
  }
}

bool SimNetwork::is_broken(int from, int to) const {
  if (from < 0) return false;
  if (from == unplugged_ || to == unplugged_) return true;
  return !cut_.empty() && cut_.contains({std::min(from, to), std::max(from, to)});
}

bool SimNetwork::cut(int a, int b) {
  if (!transports_[a]->is_connected(b) || !transports_[b]->is_connected(a)) return false;
  cut_.insert({std::min(a, b), std::max(a, b)});
  for (const auto& [rank, peer] : {std::pair(a, b), std::pair(b, a)}) {
    at(clock_.now() + chaotic_delay(), [this, rank = rank, peer = peer] {
      transports_[rank]->lose(peer, "connection reset by peer");
    });
  }
  return true;
}

void SimNetwork::unplug(int rank) {
  unplugged_ = rank;
  unplugged_at_ = clock_.now();
}

Nanoseconds SimNetwork::last_heard(int rank, int listener, Nanoseconds polled_at) const {
  const bool is_cut_off = rank == unplugged_ || listener == unplugged_;
  return is_cut_off ? std::min(polled_at, unplugged_at_) : polled_at;
}

// ---- messages of an earlier world ----

SimMessage SimNetwork::note(int from, int to, std::span<const std::byte> message) {
  SimMessage word{clock_.now() - began_, from, to, {message.begin(), message.end()}};
  if (words_ != nullptr) words_->push_back(word);
  if (policy_.tamper) policy_.tamper(word);
  return word;
}

void SimNetwork::arrive_late(SimMessage word) {
  const Nanoseconds time = began_ + word.after;
  at(time, [this, word = std::move(word)] {
    if (transports_[word.to]->hear_late(word.from, word.message)) late_from_.insert(word.from);
  });
}

bool SimNetwork::is_awake(int rank) const { return transports_[rank]->is_awake(); }

}  // namespace rdmacoll
